"""Virtual time of exchanges on graphs: workers wait only for the neighbors that they receive from."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddl.config import default_experiment
from ddl.costs.step_cost import synthetic
from ddl.engine import traffic
from ddl.events.lockstep import ExchangeSeconds, walk
from ddl.run import virtual_time
from ddl.run.build import build, param_shapes

WORKERS = 8
RING = tuple(tuple((rank - shift) % WORKERS for rank in range(WORKERS)) for shift in (1, -1))


class Times:
  """Step times of 1 s; the first step of worker 0 takes `late` seconds more."""

  def __init__(self, late):
    self.late = late

  def steps(self, worker, number, span):
    return np.full(span, 1.0) + self.late * (worker == 0 and number == 0)

  def deaths(self, *_):
    return []


def finished(hops, delay, late=0.0, seconds=0.5, steps=6, count=WORKERS):
  exchange = ExchangeSeconds(lambda step: (delay == 0 and step > 0) or delay > 0, delay, seconds, hops)
  return [
    step.released for step in walk(workers=count, steps=steps, round_steps=1, times=Times(late), exchanges=[exchange])
  ]


@pytest.mark.parametrize("delay", [0, 1])
def test_a_late_worker_delays_one_more_neighbor_at_each_step(delay):
  ring, even = finished(RING, delay, late=10.0), finished(RING, delay)
  distance = np.minimum(np.arange(WORKERS), WORKERS - np.arange(WORKERS))
  for number, (late, on_time) in enumerate(zip(ring, even, strict=True)):
    reached = distance <= number + 1 - delay
    np.testing.assert_allclose((late - on_time > 1)[reached], True)
    np.testing.assert_allclose(late[~reached], on_time[~reached])
  everyone = finished((), delay, late=10.0)
  assert (everyone[delay] - even[delay] > 1).all()  # a collective delays all workers at once


@given(st.integers(0, 1), st.floats(0, 3))
def test_workers_of_equal_speed_take_the_time_of_a_collective(delay, seconds):
  ring, collective = (finished(hops, delay, seconds=seconds) for hops in (RING, ()))
  np.testing.assert_allclose(ring, collective, rtol=1e-12)


def test_workers_without_sources_do_not_wait():
  hops = ((None, 0, None),)  # worker 1 receives from worker 0
  result = finished(hops, 0, late=10.0, steps=1, count=3)[0]
  np.testing.assert_allclose(result, [11.0, 11.5, 1.0])


@pytest.mark.parametrize(
  ("name", "settings", "seconds"),
  [
    ("d_psgd", {}, [2.0]),
    ("d_psgd", {"graph": "exponential"}, [3.0]),
    ("sgp", {}, [1.0] * 3),
    ("local_sgd", {}, [6.0]),
  ],
)
def test_an_exchange_on_a_graph_costs_one_message_per_neighbor(name, settings, seconds):
  """Messages take 1 s; an all-reduce of 8 workers takes six, up and down a tree."""
  config = default_experiment(algorithm={"name": name, **settings}, workers=8, batch=4, model={"name": "linear"})
  config = config.changed({"network": {"message_seconds": 1.0}})
  components = build(config, synthetic("linear", 8, 64))
  charged = virtual_time.charges(config, traffic.of(components.algorithm, param_shapes(components.model), 8))
  assert list(charged.exchanges) == seconds
  assert [len(hops) for hops in charged.hops] == ([0] if name == "local_sgd" else seconds)
