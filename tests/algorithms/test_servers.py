"""Each server algorithm against its NumPy reference at rtol 1e-12, and the registry's entries."""

import inspect

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from helpers.servers import ELASTIC, EVENTS, PEERS, build, drive, visits
from helpers.twins import INNER, close, defaults, falling, flat_of
from reference import collective as reference
from reference import server as server_reference

from ddl import api
from ddl.algorithms import SERVER
from ddl.api import Visit, at_step
from ddl.config.schedules import recorded

pytestmark = pytest.mark.usefixtures("x64")
CASES = {  # hyperparameters; other algorithms run with their defaults
  "async_easgd": [{"alpha": 0.2, "period": 1}, {"alpha": 0.1, "period": 3}],
  "async_measgd": [{"alpha": 0.2, "momentum": 0.5, "period": 1}, {"alpha": 0.1, "momentum": 0.9, "period": 2}],
  "hogwild_easgd": [{"alpha": 0.2, "period": 2}],
  "downpour": [{"period": 1}, {"period": 3}],
  "dc_asgd": [{"compensation": 0.5, "adaptive": False}, {"compensation": 2.0, "adaptive": True}],
  "dynsgd": [{"period": 1}, {"period": 3}],
  "async_local_sgd": [
    {"outer_learning_rate": 0.7, "outer_momentum": 0.9, "every": n, "decay": c, "period": 2}
    for n, c in ((1, 0.0), (3, 0.0), (3, 0.2))
  ],
  "fedbuff": [
    {
      "weight": weight,
      "outer_learning_rate": 0.7,
      "outer_momentum": 0.9,
      "nesterov": nesterov,
      "buffer": 3,
      "period": 2,
    }
    for weight, nesterov in (("polynomial", True), ("constant", False))
  ],
  "decoupled_diloco": [
    {"quorum": 1, "average": "mean", "fragments": 1, "period": 2, "delay": 0},
    *({"fragments": 2, "period": 2, "delay": delay, "keep": 0.25} for delay in (0, 1)),
    {"average": "mean", "fragments": 3, "period": 2, "delay": 2, "keep": 0.5},
  ],
  "halos": [
    {
      "group_size": 2,
      "period": 2,
      "local_rate": 0.5,
      "local_momentum": 0.9,
      "local_every": 2,
      "merge_every": 2,
      "merge_weight": 0.3,
      "global_rate": 0.4,
      "global_momentum": 0.5,
      "global_every": 2,
      "link": link,
    }
    for link in (0, 1)
  ],
  "rennala_sgd": [{"gradients": 2}, {"gradients": 4}],
  "ringmaster_asgd": [{"threshold": 2}, {"threshold": 100}],
}

# ---- references


SLOW = [(1, "momentum"), (3, "adam"), (5, "nesterov"), (4, "falling"), (3, "injected")]


@pytest.mark.parametrize(
  "workers, inner",
  [(4, "momentum"), (4, "falling adam"), *(pytest.param(*case, marks=pytest.mark.slow) for case in SLOW)],
)
@pytest.mark.parametrize("name", SERVER)
def test_an_algorithm_equals_its_reference(name, workers, inner):
  assert name in server_reference.TWINS, f"{name} has no NumPy reference: write it in tests/reference/server.py"
  order, peers = visits(workers, seed=workers)
  for case in CASES.get(name, [{}]):
    hyper = defaults(name, workers) | case
    x0, grad = reference.problem(workers, 4 * EVENTS)
    expected = server_reference.TWINS[name](
      x0, grad, order=order, peers=peers, workers=workers, inner=INNER[inner][1], **hyper
    )
    algorithm, branches = build(name, inner, workers=workers, **hyper), name == "decoupled_diloco"
    params, evaluate, *_ = drive(algorithm, x0, grad, order, peers, workers=workers, compiled=branches)
    close(params, expected.params)
    close(evaluate, expected.evaluate)


def test_each_reference_has_an_algorithm():
  assert set(server_reference.TWINS) == set(SERVER)


# ---- reads


@pytest.mark.parametrize("name", [name for name in SERVER if name not in (*ELASTIC, "halos", "decoupled_diloco")])
def test_a_read_replies_with_the_current_model(name):
  """Worker 0 visits, then worker 1 with peer 0; then 0 reads the center, or its model in peer-to-peer algorithms."""
  algorithm = build(name, workers=2)
  x0, grad = reference.problem(2, 4 * EVENTS)
  _, _, server, all_ = drive(algorithm, x0, grad, [0, 1], [-1, 0], workers=2)
  params, state, old = all_[0]
  server, reply = algorithm.read(server, old, Visit(np.int32(0), np.int32(-1)))
  board = server.board if name == "gosgd" else server
  current = jax.tree.map(lambda x: x[0], board) if name in PEERS else algorithm.evaluate(server)
  np.testing.assert_array_equal(flat_of(algorithm.merge(reply, state, params)[0]), flat_of(current))
  assert name == "pull_gossip" or not np.allclose(flat_of(old), flat_of(reply))


# ---- the step of a schedule


COUNTS = {  # optimizer, its counts after two updates and `at_step(state, 9)`: 9 of a schedule, 2 of moments
  "sgd": (optax.sgd(falling, momentum=0.9), "9"),
  "adamw": (optax.adamw(falling, weight_decay=0.1), "29"),
  "recorded": (recorded(optax.adam(falling), falling), "929"),
  "clipped": (optax.chain(optax.clip_by_global_norm(1.0), optax.adam(falling)), "29"),
  "masked": (optax.masked(optax.adam(falling), {"a": True, "b": False}), "29"),
  "partition": (optax.partition({"x": optax.adam(falling), "y": optax.sgd(falling)}, {"a": "x", "b": "y"}), "299"),
  "injected": (optax.inject_hyperparams(optax.sgd)(falling), "99"),
  "injected twice": (optax.inject_hyperparams(optax.adam)(falling, b1=optax.constant_schedule(0.9)), "9992"),
  "decay": (optax.chain(optax.add_decayed_weights(falling), optax.adam(0.1)), "92"),
  "noise": (optax.chain(optax.add_noise(0.1, 0.5, key=0), optax.adam(0.1)), "92"),
  "if finite": (optax.apply_if_finite(optax.adam(falling), 3), "29"),
  "every third": (optax.MultiSteps(optax.adam(falling), 3).gradient_transformation(), "00"),
  "from the first on": (optax.conditionally_transform(optax.adam(falling), lambda step: step >= 0), "22"),
}


@pytest.mark.parametrize("name", COUNTS)
def test_at_step_changes_only_counts_of_schedules(name):
  params = {"a": jnp.ones(3), "b": jnp.ones(())}
  inner, expected = COUNTS[name]
  state = inner.init(params)
  with jax.numpy_dtype_promotion("standard"):
    for _ in range(2):
      _, state = inner.update(params, state, params)
  after = at_step(state, np.int32(9))
  kinds = [
    jax.tree.map(lambda x: (jnp.shape(x), jnp.result_type(x), getattr(x, "weak_type", 0)), x) for x in (state, after)
  ]
  assert kinds[0] == kinds[1]
  counts = optax.tree_utils.tree_get_all_with_path(after, "count")
  assert "".join(str(count) for _, count in counts if jnp.ndim(count) == 0) == expected
  steps = optax.tree_utils.tree_get_all_with_path(after, "step")
  assert [int(step) for _, step in steps] == ([9] if name == "from the first on" else [])


# ---- types, errors and registry


@pytest.mark.parametrize("name", SERVER)
def test_functions_keep_the_types_of_states(name):
  params = {"a": jnp.zeros((2, 3), jnp.float32), "b": jnp.zeros((), jnp.bfloat16)}
  algorithm = build(name, optax.sgd(0.1, momentum=0.9), workers=4)
  state, server, reply = jax.eval_shape(algorithm.init, params)
  visit = Visit(*[jax.ShapeDtypeStruct((), jnp.int32)] * 2)
  message = jax.eval_shape(algorithm.request, state, params)

  def kinds(tree):
    leaves, shape = jax.tree.flatten(tree)
    return shape, [(x.shape, x.dtype, getattr(x, "weak_type", False)) for x in leaves]

  assert kinds(jax.eval_shape(algorithm.serve, server, message, visit)) == kinds((server, reply))
  assert kinds(jax.eval_shape(algorithm.local, params, state, params)) == kinds((params, state))
  assert kinds(jax.eval_shape(algorithm.merge, reply, state, params)) == kinds((params, state))
  assert kinds(jax.eval_shape(algorithm.evaluate, server)) == kinds(params)
  if algorithm.read:
    assert kinds(jax.eval_shape(algorithm.read, server, reply, visit)) == kinds((server, reply))


WRONG = [
  *[(name, {"alpha": alpha}) for name in ELASTIC for alpha in (-0.1, 1.01, float("nan"))],
  *[(name, {"alpha": 0.51}) for name in ELASTIC if name != "original_easgd"],  # four simultaneous pulls
  ("async_msgd", {"momentum": 1.0}),
  ("async_measgd", {"momentum": -0.1}),
  ("dc_asgd", {"compensation": -1.0}),
  ("async_local_sgd", {"outer_learning_rate": -0.7}),
  ("async_local_sgd", {"outer_momentum": 1.0}),
  ("async_local_sgd", {"every": 0}),
  ("async_local_sgd", {"decay": 0.3}),
  ("gosgd", {"probability": 1.5}),
]


@pytest.mark.parametrize("name, wrong", WRONG)
def test_an_error_names_the_option_and_its_value(name, wrong):
  ((key, value),) = wrong.items()
  with pytest.raises(ValueError, match=f"^{name}\\.{key} .*must be .*, got {value:g}\\.$") as caught:
    build(name, workers=4, **wrong)
  assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", SERVER)
def test_spec(name):
  spec = SERVER[name]
  assert spec.factory.__name__ == name
  keywords = inspect.signature(spec.factory).parameters.values()
  keywords = [k for k in keywords if k.kind is inspect.Parameter.KEYWORD_ONLY]
  assert set(spec.symbols) == {k.name for k in keywords} - {"workers"} and all(spec.symbols.values())
  assert all(k.default is not inspect.Parameter.empty for k in keywords if k.name != "workers")
  for axis in ("parallelism", "optimization", "scheduling", "pattern", "payload"):
    assert getattr(spec.taxonomy, axis) in getattr(api, axis.upper())
  assert "arXiv" in spec.citation or name == "dynsgd"
  arrivals = build(name, workers=4).arrivals
  assert arrivals.peers in api.PEERS and arrivals.order in api.ORDERS
