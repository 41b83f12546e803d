"""Each algorithm against its NumPy twin, in float64 at rtol 1e-12, and what it declares of itself."""

import inspect
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.flatten_util import ravel_pytree
from reference import collective as reference

from ddl import api
from ddl.algorithms import COLLECTIVE
from ddl.schedule import due

pytestmark = pytest.mark.usefixtures("x64")


def lenient(inner):
  """The optimizer under standard dtype promotion: optax.adam's `b1**count` is not strict. ddl's own code stays so."""

  def update(*args):
    with jax.numpy_dtype_promotion("standard"):
      return inner.update(*args)

  return optax.GradientTransformation(inner.init, update)


INNER = {  # the same optimizer twice: for ddl and for the twin
  "sgd": (optax.sgd(0.1), reference.sgd(0.1)),
  "momentum": (optax.sgd(0.05, momentum=0.9), reference.heavy_ball(0.05, 0.9)),
  "nesterov": (optax.sgd(0.05, momentum=0.9, nesterov=True), reference.nesterov(0.05, 0.9)),
  "adam": (lenient(optax.adam(0.05)), reference.adam(0.05)),
  "adamw": (lenient(optax.adamw(0.05, weight_decay=0.1)), reference.adam(0.05, decay=0.1)),
  "decay": (
    optax.chain(optax.add_decayed_weights(0.1), optax.sgd(0.1)),
    reference.sgd(0.1, decay=0.1),
  ),
}
CASES = {  # what is not here runs with the defaults of its Spec
  "local_sgd": [{"period": 1}, {"period": 4}],
  "post_local_sgd": [{"period": 3, "start": start} for start in (0, 4, 1000)],
  "dasgd": [{"period": 4, "delay": d, "keep": xi} for d in (0, 1, 4) for xi in (0, 0.25, 1)]
  + [{"period": 3, "delay": 2, "keep": 0.5}, {"period": 1, "delay": 1, "keep": 0.25}],
  "easgd": [{"alpha": 0.1, "period": 1}, {"alpha": 0.2, "period": 3}],
  "eamsgd": [{"alpha": 0.1, "momentum": 0.9, "period": 1}, {"alpha": 0.2, "momentum": 0.5, "period": 3}],
  "round_robin_easgd": [{"alpha": 0.3}],
}
SHAPES = {"bias": (), "kernel": (2, 3)}  # 7 values: neither 2 nor 8 workers divide them


def tree_of(flat):
  """[n] -> a tree of leaves of several shapes, packed in the order of their names."""
  leaves, at = {}, 0
  for name, shape in SHAPES.items():
    count = int(np.prod(shape))
    leaves[name] = flat[at : at + count].reshape(shape)
    at += count
  return leaves


def flat_of(tree):
  return ravel_pytree(tree)[0]


def schedule(algorithm, t):
  """What happens at step t, in order: the contract of `ddl.api.Algorithm`, word by word."""
  if algorithm.launch is None:
    return ("local",)
  s, round_ = (t - algorithm.start) % algorithm.period, (t - algorithm.start) // algorithm.period
  if t < algorithm.start or algorithm.delay == 0:
    ends = t < algorithm.start or s == algorithm.period - 1
    return ("local", "launch", "merge") if ends else ("local",)
  if round_ == 0 and not algorithm.primed:
    return ("local",)
  return ("launch",) * (s == 0) + ("local",) + ("merge",) * (s == algorithm.delay - 1)


@cache
def gradients(grad):
  """(step, params) of all workers -> their gradients, compiled once per gradient function."""

  def one(worker, step, params):
    return tree_of(grad(worker, step, flat_of(params)))

  lifted = jax.jit(jax.vmap(one, in_axes=(0, None, 0)))
  return lambda step, params: lifted(jnp.arange(params["bias"].shape[0]), step, params)


def drive(algorithm, x0, grad, *, workers, steps, prepare=lambda state: state):
  """Returns (params, evaluate: [steps, workers, n], state); x0 is [n], or [workers, n] to start apart.

  The algorithm runs without jit, because compiling it costs more than ten such steps.
  """

  def everywhere(fn):
    return jax.vmap(fn, axis_name="w")

  params = everywhere(tree_of)(jnp.broadcast_to(jnp.asarray(x0), (workers, np.shape(x0)[-1])))
  state = prepare(everywhere(algorithm.init)(params))
  history, evaluated = [], []
  for t in range(steps):
    for action in schedule(algorithm, t):
      if action == "launch":
        message = everywhere(algorithm.launch)(state, params)
      elif action == "local":
        params, state = everywhere(algorithm.local)(gradients(grad)(t, params), state, params)
      else:
        params, state = everywhere(algorithm.merge)(message, state, params)
    history.append(everywhere(flat_of)(params))
    evaluated.append(everywhere(flat_of)(everywhere(algorithm.evaluate)(state, params)))
  return jnp.stack(history), jnp.stack(evaluated), state


def build(name, inner, **hyper):
  return COLLECTIVE[name].factory(inner, axis_name="w", **hyper)


def close(actual, expected):
  # The values are of size one; a coordinate that passes through zero has no relative precision.
  np.testing.assert_allclose(actual, expected, rtol=1e-12, atol=1e-13)


# ---- the twins


def cases(name, workers):
  spec = COLLECTIVE[name].hyper
  return CASES.get(name) or [{key: h.default(workers) if callable(h.default) else h.default for key, h in spec.items()}]


@pytest.mark.parametrize(
  "workers, inner", [(1, "momentum"), (2, "adam"), (8, "momentum"), (8, "nesterov"), (8, "adam")]
)
@pytest.mark.parametrize("name", COLLECTIVE)
def test_equals_its_twin(name, workers, inner):
  assert name in reference.TWINS, f"{name} has no NumPy twin: write it in tests/reference.py from its paper"
  steps = 10
  x0, grad = reference.problem(workers, steps)
  for hyper in cases(name, workers):
    twin = reference.TWINS[name](x0, grad, workers=workers, steps=steps, inner=INNER[inner][1], **hyper)
    params, evaluate, _ = drive(build(name, INNER[inner][0], **hyper), x0, grad, workers=workers, steps=steps)
    close(params, twin.params)
    close(evaluate, np.repeat(twin.evaluate[:, None], workers, axis=1))


def test_a_twin_for_each_algorithm_and_no_other():
  assert set(reference.TWINS) == set(COLLECTIVE)


# ---- the schedule


@pytest.mark.parametrize("primed", [False, True])
@pytest.mark.parametrize("start", [0, 1, 4])
def test_due_follows_the_contract(start, primed):
  algorithm = build("local_sgd", optax.sgd(0.1), period=1)
  order = {"launch": ("launch", "local"), "merge": ("local", "merge"), "exchange": ("local", "launch", "merge")}
  order[""], order["launch merge"] = ("local",), ("launch", "local", "merge")
  for period in range(1, 5):
    for delay in range(period + 1):
      one = algorithm._replace(period=period, delay=delay, start=start, primed=primed)
      for t in range(15):
        now = due(one, t)
        assert order[" ".join(key for key in now._fields if getattr(now, key))] == schedule(one, t), (one, t)
        assert due(one, np.int32(t)) == now


@pytest.mark.parametrize("wrong", [{"period": 0}, {"delay": -1}, {"period": 2, "delay": 3}, {"start": -1}])
def test_due_names_what_does_not_fit(wrong):
  (name, value) = list(wrong.items())[-1]
  with pytest.raises(ValueError, match=f"{name} (is )?{value}"):
    due(build("local_sgd", optax.sgd(0.1), period=1)._replace(**wrong), 0)


# ---- what the algorithms say of themselves


@pytest.mark.parametrize("name", COLLECTIVE)
def test_spec(name):
  spec = COLLECTIVE[name]
  assert spec.factory.__name__ == name
  keywords = inspect.signature(spec.factory).parameters.values()
  keywords = [k for k in keywords if k.kind is inspect.Parameter.KEYWORD_ONLY]
  assert set(spec.hyper) == {k.name for k in keywords} - {"axis_name"}
  assert all(k.default is inspect.Parameter.empty for k in keywords)
  for axis in ("parallelism", "optimization", "scheduling", "pattern", "payload"):
    assert getattr(spec.taxonomy, axis) in getattr(api, axis.upper())
