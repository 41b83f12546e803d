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
from ddl.engine.compiled_trainer import CompiledTrainer
from ddl.engine.execution import ExecutionConfig
from ddl.engine.injected import inject, with_values
from ddl.engine.workers import make_workers

pytestmark = pytest.mark.usefixtures("x64")
RUNS, KEY = 3, jax.random.key(0)
HOW = ExecutionConfig("vmap", "scan", 5)
# Hyperparameters on whose values a factory branches.
STRUCTURAL = {"fedavg": {"share"}, "scaffold": {"share"}, "noloco": {"outer_momentum", "attraction"}}


def settings(name, run):
  """The numeric hyperparameters of a run; run 0 has those of the algorithm."""
  hyper, structural = HYPER.get(name, {}), STRUCTURAL.get(name, ())
  numbers = {key: value for key, value in hyper.items() if type(value) is float and key not in structural}
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
  starts = [trainer.start(KEY) for _ in range(RUNS)]
  starts = [carry._replace(state=with_values(carry.state, settings(name, run))) for run, carry in enumerate(starts)]

  def batches(first, steps):
    return {key: np.stack([x] * RUNS, axis=1) for key, x in feed(first, steps).items()}

  found = final(trainer, trainer.join(starts), batches, jnp.stack([KEY] * RUNS))
  for run in range(RUNS):
    plain = CompiledTrainer(algorithm(name, settings(name, run)), model(), make_workers(WORKERS, 2), HOW)
    (expected,) = final(plain, plain.start(KEY), feed, KEY)
    jax.tree.map(close, found[run].params, expected.params)
  if name != "independent":
    assert not np.allclose(jax.tree.leaves(found[0].params)[0], jax.tree.leaves(found[1].params)[0])
