"""Workers dropped by a quorum barrier: against a NumPy loop, and one event at a time, bit for bit."""

import jax
import numpy as np
import pytest
from helpers import servers
from helpers.simulations import twin_model, twin_rows
from helpers.twins import INNER, close, flat_of
from reference import collective as reference
from reference.sequential import Sequential

from ddl.algorithms import SERVER
from ddl.asynchronous.simulator import Simulator
from ddl.config.catalog import keywords
from ddl.engine.execution import ExecutionConfig
from ddl.engine.workers import make_workers
from ddl.events.barriers import backup, cutoff
from ddl.events.operations import stops
from ddl.events.schedule import make_schedule
from ddl.events.times import lognormal

pytestmark = pytest.mark.usefixtures("x64")
WORKERS, ROUNDS, SLOW = 4, 6, 2
KEY = jax.random.key(1)
# Newer versions of XLA use fused multiply-add in only one of two equivalent programs on a CPU. With
# --xla_cpu_max_isa=AVX, which has no such instruction, the bits are equal.
EXACT = jax.__version__.startswith("0.10.")
ALWAYS = {"slow": tuple(100.0 if worker == SLOW else 1.0 for worker in range(WORKERS)), "jitter": 0.1}
AT_TIMES = {"jitter": 0.8}
DEATHS = {"jitter": 0.1, "death_rate": 0.2, "down_seconds": 0.02}
CASES = [
  ("async_sgd", 1, backup(spare=1), ALWAYS),
  ("downpour", 3, backup(spare=1), ALWAYS),
  ("async_sgd", 1, backup(spare=2), AT_TIMES),
  ("downpour", 2, cutoff(window=1), AT_TIMES),
]


def build(name, period):
  hyper = {"period": period} if "period" in keywords(SERVER[name].factory) else {}
  return servers.build(name, "momentum", workers=WORKERS, **hyper)


def plan(algorithm, barrier, trouble):
  times = lognormal(workers=WORKERS, seed=0, **trouble)
  steps = algorithm.period * ROUNDS
  return make_schedule(algorithm, workers=WORKERS, steps=steps, times=times, barrier=barrier, message_seconds=0.001)


def simulate(algorithm, period, schedule_, devices=1, gradients="map"):
  """Return (the consensus after each round, the last carry)."""
  steps = period * ROUNDS
  workers, how = make_workers(WORKERS, devices), ExecutionConfig(gradients, "scan", 64)
  simulator = Simulator(algorithm, twin_model(WORKERS, steps), workers, how, *schedule_)
  carry, history = simulator.start(KEY), []
  for _, after, _ in simulator.run(carry, simulator.plan(0, steps, period), twin_rows, KEY):
    carry = after
    history.append(jax.tree.map(np.asarray, simulator.consensus(carry)))
  return history, carry


def one_by_one(algorithm, period, schedule_):
  runner = Sequential(algorithm, twin_model(WORKERS, period * ROUNDS), *schedule_, WORKERS)
  runner.start(*runner.model.init(KEY))
  runner.run(0, stops(schedule_[1], [WORKERS * ROUNDS])[0], lambda w, t: ({"worker": [w], "step": [t]}, KEY))
  return runner


def numpy_rounds(name, period, events):
  """Return after each round (center [n], params [workers, n], extra [workers, n], counts [workers]), in NumPy."""
  x0, grad = reference.problem(WORKERS, period * ROUNDS)
  optimizer = INNER["momentum"][1]
  center, at_server, updates = x0, optimizer(), [optimizer() for _ in range(WORKERS)]
  extra, count, history = np.zeros((WORKERS, len(x0))), np.zeros(WORKERS, int), []
  for round_ in range(ROUNDS):
    params, messages, of_round = np.array([center] * WORKERS), [], events.round == round_
    served, dropped = (events.worker[of_round & (events.dropped == late)] for late in (False, True))
    for i in served:
      total = 0.0
      for step in range(round_ * period, (round_ + 1) * period):
        g, extra[i], count[i] = grad(i, step, params[i]), 0.5 * extra[i] + params[i], count[i] + 1
        total = total + g
        if name == "downpour":
          params[i] = params[i] + updates[i](g, params[i])
      messages.append(total)
    center = center + at_server(sum(messages) / len(messages), center)
    extra[dropped], count[dropped] = extra[served].mean(axis=0), count[served].max()
    history.append((center, params, extra.copy(), count.copy()))
  return history


@pytest.mark.parametrize("name, period, barrier, trouble", CASES)
@pytest.mark.parametrize("devices, gradients", [(1, "unroll"), (2, "map"), (1, "vmap")])
@pytest.mark.sampled(6)
def test_dropped_workers_restart_from_the_reply(name, period, barrier, trouble, devices, gradients):
  algorithm = build(name, period)
  schedule_ = plan(algorithm, barrier, trouble)
  events = schedule_[0]
  assert events.dropped.any()
  if trouble == ALWAYS:
    assert (events.dropped == (events.worker == SLOW)).all()
  history, carry = simulate(algorithm, period, schedule_, devices, gradients)
  expected = numpy_rounds(name, period, events)
  for consensus, (center, params, extra, count) in zip(history, expected, strict=True):
    close(flat_of(consensus.params), center)
    close(consensus.extra["mean"], extra.mean(axis=0))
    assert consensus.extra["count"] == count.max()
    deviation = params - params.mean(axis=0)
    np.testing.assert_allclose(consensus.distance, np.sqrt((deviation**2).sum(axis=1).mean()), rtol=1e-12, atol=1e-14)
  _, params, extra, count = expected[-1]
  close(jax.vmap(flat_of)(carry.worker.params), params)
  close(carry.worker.extra["mean"], extra)
  np.testing.assert_array_equal(carry.worker.extra["count"], count)


@pytest.mark.parametrize("name, period, barrier, trouble", [*CASES, ("downpour", 2, backup(spare=1), DEATHS)])
@pytest.mark.sampled(5)
def test_waves_with_dropped_workers_equal_one_event_at_a_time(name, period, barrier, trouble):
  algorithm = build(name, period)
  schedule_ = plan(algorithm, barrier, trouble)
  assert schedule_[0].dropped.any() and schedule_[0].restarted.any() == (trouble == DEATHS)
  _, carry = simulate(algorithm, period, schedule_)
  reference_run = one_by_one(algorithm, period, schedule_)
  for part in ("params", "state", "extra"):
    expected = jax.tree.map(lambda *x: np.stack(x), *getattr(reference_run, part))
    for a, b in zip(*map(jax.tree.leaves, (getattr(carry.worker, part), expected)), strict=True):
      if EXACT:
        assert np.asarray(a).tobytes() == b.tobytes(), part
      np.testing.assert_allclose(a, b, rtol=1e-13, atol=1e-14, err_msg=part)


def test_bytes_of_a_quorum_include_the_statistics():
  algorithm, steps = build("async_sgd", 1), ROUNDS
  workers, how = make_workers(WORKERS, 1), ExecutionConfig("map", "scan", 64)
  simulator = Simulator(algorithm, twin_model(WORKERS, steps), workers, how, *plan(algorithm, backup(spare=1), ALWAYS))
  sent = sum(map(simulator.nbytes, simulator.plan(0, steps, 1)))
  x = sum(leaf.nbytes for leaf in jax.tree.leaves(simulator.model.init(KEY)[0]))
  extra = sum(leaf.nbytes for leaf in jax.tree.leaves(simulator.model.init(KEY)[1]))
  assert sent == (ROUNDS * (WORKERS - 1) * (2 * x + extra) + (ROUNDS - 1) * (x + extra)) / WORKERS
