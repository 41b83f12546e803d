"""Batches of runs: each run equals the same run computed separately, in float64 at rtol 1e-12."""

from functools import partial
from itertools import cycle

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.runs import HYPER, STEPS, feed, make, model
from helpers.twins import close, flat_of, tree_of

from ddl.algorithms import COLLECTIVE
from ddl.api import Model
from ddl.engine.execution import ExecutionConfig

pytestmark = pytest.mark.usefixtures("x64")

RUNS = 3
LAYOUTS = [(1, ExecutionConfig("unroll", "scan", 5)), (2, ExecutionConfig("vmap", "unroll", 4))]
LAYOUTS += [(2, ExecutionConfig("map", "scan", 12)), (8, ExecutionConfig("vmap", "scan", 5))]


def seeded():
  """The problem with a start and noise drawn from the run's key."""
  plain = model()

  def init(key):
    start = flat_of(plain.init(key)[0])
    return tree_of(start + jax.random.uniform(key, start.shape, start.dtype)), {"count": jnp.zeros((), jnp.int32)}

  def loss(params, extra, batch, key):
    value, _ = plain.loss(params, {}, batch, key)
    noise = jax.random.uniform(key, dtype=jnp.float64)
    return value + noise * jnp.sum(flat_of(params)), {"count": extra["count"] + 1}

  return Model(init, loss)


def shifted(run, first, steps):
  """Return different batches for each run."""
  batches = feed(first, steps)
  return batches | {"step": (batches["step"] + run) % STEPS}


def key(run):
  return jax.random.key(10 + run)


def separately(trainer, run):
  """Return the carry after each call, and all losses."""
  carries, losses = [], []
  calls = trainer.plan(0, STEPS, STEPS)
  for call, carry, loss in trainer.run(trainer.start(key(run)), calls, partial(shifted, run), key(run)):
    carries.append(jax.tree.map(np.asarray, carry))
    losses.append(trainer.losses(call, loss))
  return carries, np.concatenate(losses)


def as_batch(trainer):
  """Return the same for each run of a batch."""

  def all_batches(first, steps):
    batches = [shifted(run, first, steps) for run in range(RUNS)]
    return {name: np.stack([batch[name] for batch in batches], axis=1) for name in batches[0]}

  carries, losses = [], []
  start = trainer.join([trainer.start(key(run)) for run in range(RUNS)])
  keys = jnp.stack([key(run) for run in range(RUNS)])
  for call, carry, loss in trainer.run(start, trainer.plan(0, STEPS, STEPS), all_batches, keys):
    carries.append([jax.tree.map(np.asarray, trainer.part(carry, run)) for run in range(RUNS)])
    losses.append(trainer.losses(call, loss))
  return [([carry[run] for carry in carries], np.concatenate([loss[run] for loss in losses])) for run in range(RUNS)]


def assert_batch_equals_separate_runs(trainer):
  result = as_batch(trainer)
  assert len({losses.tobytes() for _, losses in result}) == RUNS
  for run in range(RUNS):
    jax.tree.map(close, result[run], separately(trainer, run))


@pytest.mark.slow
@pytest.mark.parametrize("name, layout", [*zip(COLLECTIVE, cycle(LAYOUTS))])
def test_each_run_of_a_batch_equals_a_separate_run(name, layout):
  assert_batch_equals_separate_runs(make(name, *layout, model=seeded(), **HYPER.get(name, {})))


@pytest.mark.parametrize("name", ["dasgd", "easgd"])
@pytest.mark.sampled(2)
def test_conditional_exchanges_of_a_batch(name, monkeypatch):
  monkeypatch.setattr("ddl.engine.calls.MOST_KINDS", 0)
  assert_batch_equals_separate_runs(make(name, 2, ExecutionConfig("vmap", "scan", 5), model=seeded(), **HYPER[name]))
