"""Checkpoints with messages or buffers in flight: a restored run has the same bits as an undisturbed one."""

import jax
import numpy as np
import pytest
from helpers.runs import STEPS, feed, make, model
from helpers.servers import build as build_server
from helpers.simulations import KEY, TROUBLE, twin_model, twin_rows
from helpers.wrappers import LOSSY, wrapped

from ddl.algorithms import COLLECTIVE, SERVER, WRAPPERS
from ddl.asynchronous.simulator import Simulator
from ddl.config.catalog import keywords
from ddl.engine.compiled_trainer import CompiledTrainer
from ddl.engine.execution import ExecutionConfig
from ddl.engine.workers import make_workers
from ddl.events.barriers import asp, backup, ssp
from ddl.events.schedule import make_schedule, visits_until
from ddl.events.times import lognormal


def on_host(tree):
  return jax.tree.map(np.array, tree)  # a copy, because the next call overwrites the arrays of a carry


def check_resume(trainer, at, steps, batches):
  """Compare the carries of a run with those of a run from its carry after step `at`, which is returned."""
  calls, saved = trainer.plan(0, steps, at), {}
  for call, carry, _ in trainer.run(trainer.start(jax.random.key(0)), calls, batches, KEY):
    saved[call.end] = on_host(trainer.saved(carry))
  shapes = trainer.saved_shapes(jax.random.key(9), at)
  again = trainer.restored(jax.tree.map(lambda x, like: jax.device_put(x, like.sharding), saved[at], shapes), at)
  rest = [call for call in calls if call.first >= at]
  for call, carry, _ in trainer.run(again, rest, batches, KEY):
    jax.tree.map(np.testing.assert_array_equal, on_host(trainer.saved(carry)), saved[call.end])
  assert at < call.end == steps
  return saved[at]


# ---- collective algorithms and wrappers


def midway(schedule):
  """Return a step with as many messages in flight as possible, in the middle of as many rounds as possible."""

  def unfinished(step):
    rounds = sum(clock.round_at(step)[0] > 0 for clock in schedule.clocks)
    return sum(schedule.in_flight(step)), rounds, -abs(step - STEPS // 2)

  return max(range(4, 9), key=unfinished)


def check_midway(trainer):
  schedule = trainer.schedule
  at = midway(schedule)
  saved, in_flight = check_resume(trainer, at, STEPS, feed), schedule.in_flight(at)
  assert any(in_flight) or not any(clock.slots for clock in schedule.clocks)
  for messages, count in zip(saved.messages, in_flight, strict=True):
    assert count <= sum(any(np.any(x) for x in jax.tree.leaves(message)) for message in messages)


HOW = ExecutionConfig("vmap", "scan", 4)
COLLECTIVE_CASES = [*((name, {}) for name in COLLECTIVE), ("dasgd", {"period": 1, "delay": 4, "keep": 0.25})]


@pytest.mark.parametrize("name, hyper", COLLECTIVE_CASES)
@pytest.mark.sampled(len(COLLECTIVE_CASES) // 2)
def test_a_collective_algorithm(x64, name, hyper):
  check_midway(make(name, 2, HOW, **hyper))


WRAPPED = [(name, "sync_sgd" if name in ("sign", "dgc") else "streaming_diloco", {}) for name in WRAPPERS]
WRAPPED += [("dgc", "sync_sgd", {"stage_steps": 2}), ("topk", "pipe_sgd", {}), ("ef21", "eager_diloco", {})]


@pytest.mark.parametrize("wrapper, name, more", WRAPPED)
@pytest.mark.sampled(len(WRAPPED))
def test_a_wrapper(x64, wrapper, name, more):
  algorithm = wrapped(wrapper, name, hyper={wrapper: LOSSY[wrapper] | more})
  check_midway(CompiledTrainer(algorithm, model(), make_workers(8, 2), HOW))


# ---- server algorithms in virtual time


SERVED, SERVER_STEPS, MIDDLE = 4, 20, 11
SPEEDS = (1.0, 1.5, 1.0, 3.0)
DEATHS = {"death_rate": 0.2, "down_seconds": 0.02}
PERIODS = [(name, {"period": 3} if "period" in keywords(spec.factory) else {}) for name, spec in SERVER.items()]
SERVER_CASES = [(name, hyper, asp(), TROUBLE) for name, hyper in PERIODS]
SERVER_CASES += [  # 8, 5, 8 and 5 steps per round
  (name, {"period": 8, "dylu": True}, asp(), {"slow": SPEEDS})
  for name, spec in SERVER.items()
  if "dylu" in keywords(spec.factory)
]
SERVER_CASES += [
  ("async_sgd", {}, ssp(bound=1), TROUBLE), ("downpour", {"period": 3}, backup(spare=1), {}),
  ("downpour", {"period": 3}, asp(), DEATHS), ("hogwild_sgd", {}, asp(), DEATHS),
]  # fmt: skip


@pytest.mark.parametrize("name, hyper, barrier, trouble", SERVER_CASES)
@pytest.mark.sampled(len(SERVER_CASES) // 2)
def test_a_server_algorithm(x64, name, hyper, barrier, trouble):
  algorithm = build_server(name, "momentum", workers=SERVED, **hyper)
  if algorithm.lock_free:
    algorithm = algorithm._replace(arrivals=algorithm.arrivals._replace(blocks=3))
  times = lognormal(workers=SERVED, seed=0, jitter=0.3, **trouble)
  events, operations = make_schedule(
    algorithm, workers=SERVED, steps=SERVER_STEPS, times=times, barrier=barrier, message_seconds=0.001
  )
  served = visits_until(algorithm, events, SERVED, MIDDLE)
  assert np.ptp(np.bincount(events.worker[:served], minlength=SERVED)) or algorithm.arrivals.round_robin
  simulator = Simulator(
    algorithm, twin_model(SERVED, 4 * SERVER_STEPS), make_workers(SERVED, 2), ExecutionConfig("vmap", "scan", 64),
    events, operations,
  )  # fmt: skip
  check_resume(simulator, MIDDLE, SERVER_STEPS, twin_rows)
