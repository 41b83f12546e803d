"""Runs that are made side by side: each equals the same run made alone, in float64 at rtol 1e-12."""

from functools import partial

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
  """The problem, from a start and with noise that are those of a run's key."""
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
  """Each run has batches of its own."""
  batches = feed(first, steps)
  return batches | {"step": (batches["step"] + run) % STEPS}


def key(run):
  return jax.random.key(10 + run)


def alone(trainer, run):
  """The carry after each call, and all losses."""
  carries, losses = [], []
  calls = trainer.plan(0, STEPS, STEPS)
  for call, carry, loss in trainer.run(trainer.start(key(run)), calls, partial(shifted, run), key(run)):
    carries.append(jax.tree.map(np.asarray, carry))
    losses.append(trainer.losses(call, loss))
  return carries, np.concatenate(losses)


def together(trainer):
  """The same of each run."""

  def all_batches(first, steps):
    batches = [shifted(run, first, steps) for run in range(RUNS)]
    return {name: np.stack([each[name] for each in batches], axis=1) for name in batches[0]}

  carries, losses = [], []
  start = trainer.join([trainer.start(key(run)) for run in range(RUNS)])
  keys = jnp.stack([key(run) for run in range(RUNS)])
  for call, carry, loss in trainer.run(start, trainer.plan(0, STEPS, STEPS), all_batches, keys):
    carries.append([jax.tree.map(np.asarray, trainer.part(carry, run)) for run in range(RUNS)])
    losses.append(trainer.losses(call, loss))
  return [([each[run] for each in carries], np.concatenate([each[run] for each in losses])) for run in range(RUNS)]


def each_equals_itself_alone(trainer):
  result = together(trainer)
  assert len({losses.tobytes() for _, losses in result}) == RUNS
  for run in range(RUNS):
    jax.tree.map(close, result[run], alone(trainer, run))


@pytest.mark.slow
@pytest.mark.parametrize("devices, how", LAYOUTS)
@pytest.mark.parametrize("name", COLLECTIVE)
def test_each_equals_itself_alone(name, devices, how):
  each_equals_itself_alone(make(name, devices, how, model=seeded(), **HYPER.get(name, {})))


@pytest.mark.parametrize("name", ["dasgd", "easgd"])
@pytest.mark.sampled(2)
def test_calls_that_ask_what_is_due(name, monkeypatch):
  monkeypatch.setattr("ddl.engine.calls.MOST_KINDS", 0)
  each_equals_itself_alone(make(name, 2, ExecutionConfig("vmap", "scan", 5), model=seeded(), **HYPER[name]))
