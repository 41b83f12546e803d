"""The steps of collective algorithms in virtual time against a tick-by-tick simulation."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from ddl.events import lockstep
from ddl.events.times import Times


def ticked(durations, exchanges):
  """Simulate tick by tick; return the tick at which each worker begins each step: [steps, workers].

  durations: [steps][workers] ticks; exchanges: (ticks, period, delay, offset) of each.
  """
  steps, workers = len(durations), len(durations[0])
  left, at = [None] * workers, [0] * workers  # tick at which a worker's step ends; the step it is at
  reached, arrived, queue, link, begins = {}, set(), [], None, {}

  def launched(n, after):
    _, period, _, offset = exchanges[n]
    return after >= offset + period and (after - offset) % period == 0

  def leave(after):
    for n, (ticks, *_) in sorted(enumerate(exchanges), key=lambda item: item[1][2] > 0):  # no delay first
      if launched(n, after):
        queue.append((ticks, (n, after)))

  leave(0)
  for tick in range(100_000):
    if link and link[0] == tick:
      arrived.add(link[1])
      link = None
    for w in range(workers):
      if left[w] == tick:
        left[w], at[w] = None, at[w] + 1
        reached[at[w]] = reached.get(at[w], 0) + 1
        if reached[at[w]] == workers:
          leave(at[w])
      needed = {(n, at[w] - x[2]) for n, x in enumerate(exchanges) if at[w] >= x[2] and launched(n, at[w] - x[2])}
      if left[w] is None and at[w] < steps and arrived.issuperset(needed):
        begins[at[w], w] = tick
        left[w] = tick + durations[at[w]][w]
    if link is None and queue:
      ticks, name = queue.pop(0)
      link = tick + ticks, name
    if min(at) == steps:
      break
  return np.array([[begins[s, w] for w in range(workers)] for s in range(steps)])


@st.composite
def cases(draw):
  exchanges = []
  for _ in range(draw(st.integers(0, 3))):
    period, delay = draw(st.integers(1, 3)), draw(st.integers(0, 5))
    exchanges.append((draw(st.integers(1, 12)), period, delay, draw(st.integers(-period if delay else 0, 3))))
  workers = draw(st.integers(1, 3))
  return [[draw(st.integers(1, 9)) for _ in range(workers)] for _ in range(12)], exchanges


@settings(max_examples=100)
@given(cases())
def test_steps_equal_a_tick_by_tick_simulation(case):
  durations, exchanges = case
  seconds, workers = np.array(durations, float), len(durations[0])
  walked = lockstep.walk(
    workers=workers, steps=len(seconds), round_steps=1,
    times=Times(lambda worker, first, count: seconds[first : first + count, worker], workers=workers, seed=0),
    exchanges=[
      lockstep.ExchangeSeconds(
        lambda step, period=period, offset=offset: step >= offset + period and (step - offset) % period == 0,
        delay, ticks,
      )
      for ticks, period, delay, offset in exchanges
    ],
  )  # fmt: skip
  np.testing.assert_allclose([step.begun for step in walked], ticked(durations, exchanges))


def test_collectives_of_a_step_start_before_its_end():
  """By hand: steps of 2 and 3 s; messages of 2 s start 1 s before the slower worker ends, and share the link."""
  seconds = np.array([2.0, 3.0])
  settings = {
    "workers": 2, "steps": 2, "round_steps": 1, "local_seconds": 2.0, "local_lead": 1.0,
    "times": Times(lambda worker, first, count: np.full(count, seconds[worker]), workers=2, seed=0),
  }  # fmt: skip
  assert lockstep.finish(**settings).tolist() == [4.0, 8.0]
  once = lockstep.ExchangeSeconds(
    lambda step: step == 1, 1, 5.0
  )  # from 4 to 9 s, when the second step's messages start
  assert lockstep.finish(**settings, exchanges=[once]).tolist() == [4.0, 11.0]
