"""Runs of a batch that differ in their hyperparameters: each equals the run of an algorithm with those constants."""

import inspect
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from helpers.runs import HYPER, STEPS, WORKERS, feed, model
from helpers.twins import build, close

from ddl.algorithms import COLLECTIVE
from ddl.config.catalog import traceable
from ddl.config.optimizers import OPTIMIZERS
from ddl.engine.compiled_trainer import CompiledTrainer
from ddl.engine.execution import ExecutionConfig
from ddl.engine.injected import RunKey, inject
from ddl.engine.workers import make_workers

pytestmark = pytest.mark.usefixtures("x64")
RUNS, KEY = 3, jax.random.key(0)
HOW = ExecutionConfig("vmap", "scan", 5)


def settings(name, run):
  """The numeric hyperparameters of a run; run 0 has those of the algorithm."""
  numbers = {key: value for key, value in HYPER.get(name, {}).items() if traceable("algorithm", name, key, value)}
  return {key: value * (1 - 0.1 * run) for key, value in numbers.items()} | {
    "learning_rate": 0.05 * (1 - 0.2 * run), "inner momentum": 0.9 - 0.1 * run
  }  # fmt: skip


def algorithm(name, values, check=True):
  numbers = dict(values)
  inner = optax.sgd(numbers.pop("learning_rate"), momentum=numbers.pop("inner momentum"))
  hyper = HYPER.get(name, {}) | numbers
  if check:
    return build(name, inner, WORKERS, **hyper)
  factory = inspect.unwrap(COLLECTIVE[name].factory)  # the values were checked as numbers
  more = {"workers": WORKERS} if "workers" in inspect.signature(factory).parameters else {}
  return factory(inner, **hyper, **more)


def final(trainer, start, batches, key):
  for _, carry, _ in trainer.run(start, trainer.plan(0, STEPS, STEPS), batches, key):  # noqa: B007
    pass
  return trainer.consensuses(carry)


@pytest.mark.parametrize("name", COLLECTIVE)
@pytest.mark.sampled(6)
def test_each_run_equals_the_algorithm_with_its_constants(name):
  make = partial(algorithm, name, check=False)
  trainer = CompiledTrainer(inject(make, settings(name, 0)), model(), make_workers(WORKERS, 2), HOW)
  starts = [trainer.start(RunKey(KEY, settings(name, run))) for run in range(RUNS)]

  def batches(first, steps):
    return {key: np.stack([x] * RUNS, axis=1) for key, x in feed(first, steps).items()}

  result = final(trainer, trainer.join(starts), batches, jnp.stack([KEY] * RUNS))
  for run in range(RUNS):
    plain = CompiledTrainer(algorithm(name, settings(name, run)), model(), make_workers(WORKERS, 2), HOW)
    (expected,) = final(plain, plain.start(KEY), feed, KEY)
    jax.tree.map(close, result[run].params, expected.params)
  if name != "independent":
    assert not np.allclose(jax.tree.leaves(result[0].params)[0], jax.tree.leaves(result[1].params)[0])


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.sampled(4)
def test_an_optimizer_with_traced_settings_equals_the_one_with_constants(name):
  more = {"weight_decay": 0.1, "clip_norm": 0.5, "momentum": 0.9}
  numbers = {
    key: 0.95 * value
    for key, parameter in inspect.signature(OPTIMIZERS[name]).parameters.items()
    if key != "rate"
    for value in [parameter.default or more.get(key, 0.0)]
    if traceable("optimizer", name, key, value)
  } | {"rate": 0.1}
  params = {"kernel": jnp.linspace(-1, 1, 12).reshape(3, 4), "bias": jnp.linspace(0.5, 1, 4)}

  def trained(values):
    values = dict(values)
    optimizer = OPTIMIZERS[name](values.pop("rate"), **values)
    model, state = params, optimizer.init(params)
    for step in range(3):
      grads = jax.tree.map(lambda x, step=step: jnp.sin(x + step), model)
      updates, state = optimizer.update(grads, state, model)
      model = optax.apply_updates(model, updates)
    return model

  with jax.numpy_dtype_promotion("standard"):  # optax raises b1 to the power of an integer
    traced = jax.jit(trained)({key: jnp.asarray(value) for key, value in numbers.items()})
    constant = jax.jit(lambda: trained(numbers))()
  jax.tree.map(close, traced, constant)
