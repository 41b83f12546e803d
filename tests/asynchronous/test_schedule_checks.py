"""Schedules that do not fit a run are errors: too short, for other workers, or without the peers of gossip."""

import jax.numpy as jnp
import numpy as np
import optax
import pytest
from helpers import servers

from ddl import memory
from ddl.api import Arrivals, Model
from ddl.asynchronous.simulator import Simulator
from ddl.engine.execution import ExecutionConfig
from ddl.engine.workers import make_workers
from ddl.events.schedule import make_schedule, visits
from ddl.events.times import lognormal

WORKERS, STEPS = 4, 12
MODEL = Model(
  lambda key: ({"x": jnp.ones(3)}, {}), lambda params, extra, batch, key: (jnp.sum(params["x"] ** 2), extra)
)


def build(name, **hyper):
  return servers.build(name, optax.sgd(0.1), workers=WORKERS, **hyper)


def plan(algorithm, workers=WORKERS, steps=STEPS):
  return make_schedule(algorithm, workers=workers, steps=steps, times=lognormal(workers=workers, seed=0))


def make(algorithm, events, operations):
  return Simulator(algorithm, MODEL, make_workers(WORKERS, 1), ExecutionConfig("map", "scan", 4), events, operations)


@pytest.mark.parametrize(("name", "hyper"), [("async_sgd", {}), ("downpour", {"period": 3})])
def test_steps_beyond_the_end_are_errors(name, hyper):
  algorithm = build(name, **hyper)
  simulator = make(algorithm, *plan(algorithm))
  count = visits(algorithm, WORKERS, STEPS)
  assert simulator.plan(0, STEPS, 4)[-1].end == STEPS
  assert simulator.virtual_seconds(STEPS) == simulator.events.served[count - 1]
  needed = visits(algorithm, WORKERS, 15)
  line = rf"^the number of visits of the schedule must be at least {needed} for step 15, got {count}\.$"
  for call in (lambda: simulator.plan(0, 15, 4), lambda: simulator.virtual_seconds(15)):
    with pytest.raises(ValueError, match=line):
      call()


def test_virtual_time_is_0_before_the_first_visit():
  algorithm = build("downpour", period=9)
  simulator = make(algorithm, *plan(algorithm))
  assert visits(algorithm, WORKERS, 2) == 0 and simulator.virtual_seconds(2) == 0.0


@pytest.mark.parametrize("workers", [2, 8])
def test_another_number_of_workers_is_an_error(workers):
  algorithm = build("async_sgd")
  with pytest.raises(ValueError, match=rf"^the number of workers of the schedule must be 4, got {workers}\.$"):
    make(algorithm, *plan(algorithm, workers))


def test_a_worker_without_visits_counts():
  algorithm = build("async_sgd")
  times = lognormal(workers=WORKERS, seed=0, slow=(1.0, 1.0, 1.0, 1e6))
  schedule = make_schedule(algorithm, workers=WORKERS, steps=STEPS, times=times)
  assert schedule[0].worker.max() == 2
  make(algorithm, *schedule)


@pytest.mark.parametrize(("name", "hyper"), [("pull_gossip", {}), ("ad_psgd", {}), ("gosgd", {"probability": 0.5})])
def test_gossip_without_peers_is_an_error(name, hyper):
  algorithm = build(name, **hyper)
  schedule = plan(algorithm._replace(arrivals=Arrivals()))
  with pytest.raises(ValueError, match=r"^the schedule must be one in which workers exchange with peers, got [^\n]*$"):
    make(algorithm, *schedule)


def test_a_short_schedule_may_have_no_peers():
  algorithm = build("gosgd", probability=0.1)
  events, operations = plan(algorithm, steps=3)
  without = events._replace(peer=np.full_like(events.peer, -1))  # the chance is 0.9 ** 12
  make(algorithm, without, operations)


def test_a_simulator_keeps_its_schedule_after_an_error():
  algorithm = build("async_sgd")
  simulator = make(algorithm, *plan(algorithm))
  before = simulator.events
  with pytest.raises(ValueError, match="the number of workers of the schedule must be 4, got 2"):
    simulator.follow(*plan(algorithm, 2))
  assert simulator.events is before


def test_a_round_larger_than_the_memory_is_an_error(monkeypatch):
  monkeypatch.setattr(memory, "total", lambda: 10**9)
  with pytest.raises(ValueError, match=r"^a round of 1000000000 steps of 4 workers must .*, got at least 32\.0 GB"):
    plan(build("async_easgd", period=10**9))
