"""Each collective algorithm against its NumPy reference at rtol 1e-12, and the registry's entries."""

import inspect

import jax
import numpy as np
import pytest
from helpers.twins import INNER, build, close, defaults, drive
from reference import collective as reference

from ddl import api
from ddl.algorithms import COLLECTIVE

pytestmark = pytest.mark.usefixtures("x64")

OUTER = {"outer_learning_rate": 0.7, "outer_momentum": 0.9}
NOLOCO = {"outer_learning_rate": 0.7, "outer_momentum": 0.5, "attraction": 0.7}
CASES = {  # hyperparameters; other algorithms run with their defaults
  "local_sgd": [{"period": 1}, {"period": 4}],
  "post_local_sgd": [{"period": 3, "start": start} for start in (0, 4, 1000)],
  "adaptive_local_sgd": [{"periods": p} for p in (((0, 4),), ((0, 3), (4, 2), (7, 1)), ((0, 1), (2, 4)))],
  "dasgd": [{"period": 4, "delay": d, "keep": xi} for d in (0, 1, 4) for xi in (0, 0.25, 1)]
  + [{"period": p, "delay": d, "keep": 0.5} for p, d in ((3, 2), (1, 1), (2, 5), (1, 3))],
  "diloco": [{"period": 1, **OUTER}, {"period": 3, "outer_learning_rate": 0.4, "outer_momentum": 0.5}],
  "muloco": [{"period": 3, **OUTER}],
  "streaming_diloco": [
    {"period": h, **OUTER, "fragments": p, "delay": d, "keep": alpha}
    for h, p, d, alpha in ((1, 1, 0, 0), (3, 1, 1, 0.25), (4, 2, 0, 0.5), (4, 2, 3, 0.5), (3, 2, 3, 0.25), (3, 3, 1, 0))
  ],
  "fedavg": [{"period": 1, "share": 1.0}, {"period": 3, "share": 1.0}],
  "fedadam": [
    {"period": p, "share": 1.0, "server_rate": 0.3, "b1": 0.8, "b2": b2, "adaptivity": 0.01}
    for p, b2 in ((1, 0), (3, 0.9))
  ],
  "fedyogi": [
    {"period": p, "share": 1.0, "server_rate": 0.3, "b1": 0.8, "b2": b2, "adaptivity": 0.01}
    for p, b2 in ((1, 0), (3, 0.9))
  ],
  "fedadagrad": [
    {"period": p, "share": 1.0, "server_rate": 0.3, "b1": b1, "adaptivity": 0.01} for p, b1 in ((1, 0), (3, 0.6))
  ],
  "des_loc": [{"period": 1}, {"period": 2, "momentum_period": 3, "variance_period": 4}],
  "mt_dao": [
    {"period": p, "momentum_period": u, "variance_period": v, "b1": 0.95, "b2": 0.9, "weight": 0.6, "eps": 0.01}
    for p, u, v in ((2, None, None), (4, 3, 2))
  ],
  "fedprox": [
    {"proximal": 0.2, "period": p, "share": 1.0, "local_steps": steps} for p, steps in ((1, ()), (3, (1, 3, 2)))
  ],
  "fednova": [{"period": p, "share": 1.0, "local_steps": steps} for p, steps in ((1, ()), (4, (1, 4, 2)))],
  "scaffold": [{"period": p, "share": 1.0, "server_rate": r} for p, r in ((1, 1.0), (3, 0.7))],
  "edit": [
    {
      "period": p,
      **OUTER,
      "temperature": 0.7,
      "clip": c,
      "threshold": 1.0,
      "detector_rate": 0.5,
      "detector_warmup": 2,
      "local_steps": steps,
    }
    for p, c, steps in ((1, 10.0, ()), (2, 0.5, (1, 2)))
  ],
  "cocod": [{"period": 1}, {"period": 3}],
  "overlap_local_sgd": [
    {"period": p, "pull": a, "momentum": b} for p, a, b in ((1, 0.6, 0.7), (3, 0.6, 0.7), (2, 0.3, 0), (4, 1, 0.5))
  ],
  "pipe_sgd": [{"width": width} for width in (1, 2, 4)],
  "distributed_lion": [{"b1": 0.9, "b2": 0.99, "aggregate": how} for how in ("vote", "mean")],
  "sparseloco": [
    {"period": p, "kept": k, "decay": b, "outer_learning_rate": a, "quantize": q, "aggregate": how}
    for p, k, b, a, q, how in ((1, 1365, 1, 1, False, "workers"), (3, 2730, 0.9, 0.7, True, "senders"))
  ],
  "dion": [{"rank": 0.25, "momentum": 0.95}, {"rank": 1.0, "momentum": 0.5}],
  "snoo": [{"period": 1, **OUTER}, {"period": 3, "outer_learning_rate": 0.4, "outer_momentum": 0.5}],
  "gpa": [{"train_weight": 0.7, "average_weight": 0.9}],
  "one_bit_adam": [{"freeze_step": t, "b1": 0.9, "b2": 0.99, "eps": 1e-8} for t in (1, 4)],
  "slowmo": [{"period": p, "slow_rate": a, "slow_momentum": b} for p, a, b in ((1, 1, 0.5), (3, 0.8, 0.7))],
  "bmuf": [
    {"period": p, "block_learning_rate": r, "block_momentum": m, "nesterov": n}
    for p, r, m, n in ((1, 1, 0.5, True), (3, 0.9, 0.5, False), (3, 0.9, 0.8, True))
  ],
  "eager_diloco": [{"period": 1, **OUTER}, {"period": 3, **OUTER}],
  "noloco": [{"period": p, **NOLOCO, "pairings": n} for p, n in ((1, 8), (2, 3), (3, 1))],
  "sma": [{"alpha": 0.1, "momentum": 0.9, "period": 1}, {"alpha": 0.2, "momentum": 0.5, "period": 3}],
  "d_psgd": [{"graph": graph} for graph in ("ring", "torus", "exponential", "one_peer_exponential")],
  "overlap_sgp": [{"overlap": overlap} for overlap in (1, 3)],
  "gradient_tracking": [
    {"graph": graph, "adapt_first": adapt} for graph in ("ring", "one_peer_exponential") for adapt in (False, True)
  ],
  "exact_diffusion": [
    {"graph": graph, "consensus_rate": rate} for graph, rate in (("ring", 0.5), ("one_peer_exponential", 0.6))
  ],
  "quasi_global_momentum": [
    {"graph": graph, "momentum": 0.8, "buffer_decay": 0.7, "nesterov": nesterov}
    for graph, nesterov in (("ring", True), ("one_peer_exponential", False))
  ],
  "choco_sgd": [
    {"graph": graph, "compressor": name, "share": 0.34, "consensus_rate": 0.3, "adapt_first": adapt}
    for graph, name, adapt in (
      *(("ring", "sign", True), ("ring", "topk", False)),
      *(("one_peer_exponential", "topk", True), ("one_peer_exponential", "sign", False)),
    )
  ],
  "relay_sgd": [{"tree": "chain"}, {"tree": "binary_tree"}],
  "gossip_pga": [{"graph": "one_peer_exponential", "period": 4}],
  "easgd": [{"alpha": 0.1, "period": 1}, {"alpha": 0.2, "period": 3}],
  "eamsgd": [{"alpha": 0.1, "momentum": 0.9, "period": 1}, {"alpha": 0.2, "momentum": 0.5, "period": 3}],
  "round_robin_easgd": [{"alpha": 0.3}],
}

LONG = ("dion", "distributed_lion", "edit", "one_bit_adam", "sparseloco")  # faster if compiled as a whole

# ---- references


def cases(name, workers):
  return CASES.get(name) or [defaults(name, workers)]


SLOW = [(1, "momentum"), (2, "adam"), (8, "nesterov"), (8, "adam")]


@pytest.mark.parametrize(
  "workers, inner", [(8, "momentum"), *(pytest.param(*case, marks=pytest.mark.slow) for case in SLOW)]
)
@pytest.mark.parametrize("name", COLLECTIVE)
def test_an_algorithm_equals_its_reference(name, workers, inner):
  assert name in reference.TWINS, f"{name} has no NumPy reference: write it in tests/reference from its paper"
  steps = 10
  x0, grad = reference.problem(workers, steps)
  for hyper in cases(name, workers):
    expected = reference.TWINS[name](x0, grad, workers=workers, steps=steps, inner=INNER[inner][1], **hyper)
    algorithm, compiled = build(name, INNER[inner][0], workers, **hyper), jax.jit if name in LONG else None
    params, evaluate, _ = drive(algorithm, x0, grad, workers=workers, steps=steps, compiled=compiled)
    close(params, expected.params)
    close(evaluate, np.repeat(expected.evaluate[:, None], workers, axis=1))


def test_each_reference_has_an_algorithm():
  assert set(reference.TWINS) == set(COLLECTIVE)


# ---- registry


@pytest.mark.parametrize("name", COLLECTIVE)
def test_spec(name):
  spec = COLLECTIVE[name]
  assert spec.factory.__name__ == name
  keywords = inspect.signature(spec.factory).parameters.values()
  keywords = [k for k in keywords if k.kind is inspect.Parameter.KEYWORD_ONLY]
  assert set(spec.symbols) <= {k.name for k in keywords} - {"workers"}
  without_default = {k.name for k in keywords if k.default is inspect.Parameter.empty} - {"workers"}
  assert without_default == ({"start"} if name == "post_local_sgd" else set())
  for axis in ("parallelism", "optimization", "scheduling", "pattern", "payload"):
    assert getattr(spec.taxonomy, axis) in getattr(api, axis.upper())
