"""Elastic membership in virtual time: the workers present in each round, and the times of their steps."""

from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ddl.events import lockstep, presence
from ddl.events.lockstep import ExchangeSeconds, finish, presence_of, stack, walk
from ddl.events.presence import Presence
from ddl.events.times import TIMES, Death

ALL = (0, 1, 2)


class Table(NamedTuple):
  """Steps of 1 s (2 s for worker 2), and deaths: (worker, step) -> (share of the step, down seconds)."""

  died: dict
  workers: int = 3

  def steps(self, worker, first, count):
    return np.full(count, 2.0 if worker == 2 else 1.0)

  def deaths(self, worker, first, seconds):
    hit = [(k, *self.died[worker, first + k]) for k in range(len(seconds)) if (worker, first + k) in self.died]
    return [Death((k + share) * seconds[0], down) for k, share, down in hit]


def walked(died, steps=10, exchange=0.5, **more):
  """Return the step times of rounds of two steps, with an exchange without delay at their end."""
  exchanges = [ExchangeSeconds(lambda step: step > 0 and step % 2 == 0, 0, exchange)]
  options = {"workers": 3, "steps": steps, "round_steps": 2, "times": Table(died), "exchanges": exchanges}
  return [*walk(**options | {"present": True} | more)]


def ends(steps):
  return [float(np.nanmax(step.released)) for step in steps]


def test_a_loss_and_a_return():
  """Worker 2 dies 2 s into its second round and is down for 3 s: it is up at 4.5 + 2 + 3 = 9.5 s."""
  steps = walked({(2, 3): (0.0, 3.0)})
  # Round 0 takes 4 s and 0.5 s for all three; rounds of the other two take 2.5 s: they begin at 4.5, 7 and 9.5 s.
  assert presence_of(3, steps) == Presence(3, ((0, ALL), (2, (0, 1)), (6, ALL)))
  assert ends(steps) == [2, 4.5, 5.5, 7, 8, 9.5, 11.5, 14, 16, 18.5]
  record = stack(steps)
  assert np.isnan(record.free[2:6, 2]).all() and np.isfinite(record.free[6:, 2]).all()
  assert record.free[6, 2] == 9.5 and np.nansum(record.lost) == 0
  waits = walked({(2, 3): (0.0, 3.0)}, present=False)  # its round takes 2 + 3 + 4 s
  assert ends(waits)[3] == 4.5 + 9.5 and presence_of(3, waits) == presence.everyone(3)


def test_a_worker_that_restarts_after_the_start_of_a_round_joins_the_next_one():
  steps = walked({(2, 3): (0.0, 3.1)})
  assert presence_of(3, steps).changes == ((0, ALL), (2, (0, 1)), (8, ALL))


def test_a_worker_that_dies_in_the_round_of_its_return_stays_absent():
  """Worker 2 restarts at 9.5 s, dies at the start of that round, and restarts at 10.5 s."""
  steps = walked({(2, 3): (0.0, 3.0), (2, 6): (0.0, 1.0)})
  assert presence_of(3, steps).changes == ((0, ALL), (2, (0, 1)), (8, ALL))


def test_an_absent_worker_does_not_die_again_in_its_lost_round():
  """Worker 2 dies at 4.5 s and restarts at 7.5 s; the others' next round starts at 9.5 s."""
  steps = walked({(2, 2): (0.0, 3.0), (2, 3): (0.0, 30.0)})
  assert presence_of(3, steps).changes == ((0, ALL), (2, (0, 1)), (6, ALL))


def test_if_all_workers_die_the_first_to_restart_repeats_the_round():
  """All die at the start of the second round, at 4.5 s, and restart after 5, 4 and 6 s."""
  steps = walked({(0, 2): (0.0, 5.0), (1, 2): (0.0, 4.0), (2, 2): (0.0, 6.0)})
  assert presence_of(3, steps).changes == ((0, ALL), (2, (1,)), (4, ALL))
  # Worker 1 loses 4 s and repeats its round: until 4.5 + 4 + 2 + 0.5 = 11 s, when the others have restarted.
  assert steps[2].lost[1] == 4.0 and ends(steps)[2:5] == [9.5, 11.0, 13.0]


def test_message_seconds_depend_on_the_number_of_present_workers():
  steps = walked(
    {(2, 3): (0.0, 3.0)}, exchanges=[ExchangeSeconds(lambda step: step == 4, 0, lambda count: float(count))]
  )
  assert ends(steps)[3] == 4 + 2.0  # worker 2 is absent, and the message among two takes 2 s


def test_a_recorded_presence_replaces_deaths():
  recorded = Presence(3, ((0, (0, 2)), (4, (1, 2))))
  steps = walked({(2, 3): (0.0, 3.0)}, present=recorded)
  assert presence_of(3, steps) == recorded
  assert ends(steps) == [2, 4.5, 6.5, 9, 11, 13.5, 15.5, 18, 20, 22.5]
  with pytest.raises(ValueError, match=r"multiples of 2 \(the number of steps in a round\), got"):
    walked({}, present=Presence(3, ((0, ALL), (3, (0,)))))


@given(st.integers(1, 4), st.integers(0, 9), st.integers(0, 3), st.sampled_from([0.0, 0.1, 0.6]))
@settings(deadline=None, max_examples=40)
def test_presence_is_valid_and_repeats_bit_for_bit(workers, seed, delay, rate):
  times = TIMES["lognormal"](workers=workers, seed=seed, jitter=0.4, death_rate=rate, down_seconds=0.05)
  options = {"workers": workers, "steps": 60, "round_steps": 3, "times": times, "local_seconds": 0.01}
  options |= {"exchanges": [ExchangeSeconds(lambda step: step > 0 and step % 3 == 0, delay, 0.002)], "present": True}
  result = presence_of(workers, walk(**options))
  presence.check(result, 3)
  assert result == presence_of(workers, walk(**options))
  assert (np.diff(finish(**options)) > 0).all()
  if not rate:
    assert result == presence.everyone(workers)
    np.testing.assert_array_equal(finish(**options), finish(**options | {"present": False}))


def test_queries_and_file_of_a_presence(tmp_path):
  recorded = Presence(4, ((0, (0, 1, 2, 3)), (6, (0, 3)), (9, (0, 1, 3))))
  assert [recorded.at(step) for step in (0, 5, 6, 8, 9, 99)] == [(0, 1, 2, 3)] * 2 + [(0, 3)] * 2 + [(0, 1, 3)] * 2
  assert recorded.segments(2, 9) == [(2, 6, (0, 1, 2, 3)), (6, 9, (0, 3))]
  assert [recorded.worker_steps(step) for step in (0, 6, 8, 10)] == [0, 24, 28, 33]
  assert recorded.describe(12) == "elastic: 2 losses, 1 return, at least 2 of 4 present"
  presence.save(tmp_path / "presence.json", recorded)
  assert presence.load(tmp_path / "presence.json", 4) == recorded


@pytest.mark.parametrize(
  "text", ["", "{}", "[[0]]", "[[0, 1]]", "[[0, []]]", "[[1, [0]]]", "[[0, [0, 4]]]", "[[0, [1, 0]]]", "[[0, [true]]]",
           "[[0, [0]], [2, [1]]]", "[[0, [0]], [0, [0]]]", "[[0, [0]], [2, [0, 1]], [2, [0]]]", "[" * 10000]
)  # fmt: skip
def test_damaged_records_are_one_line_errors(text, tmp_path):
  (tmp_path / "presence.json").write_text(text)
  with pytest.raises(ValueError, match=r"^[^\n]*presence\.json[^\n]*$"):
    presence.load(tmp_path / "presence.json", 4)


def test_saved_steps_contain_absent_workers(tmp_path):
  record = stack(walked({(2, 3): (0.0, 3.0)}))
  lockstep.save(tmp_path / "record", record)
  assert presence_of(
    3, map(lockstep.StepTimes._make, zip(*lockstep.load(tmp_path / "record"), strict=True))
  ) == presence_of(3, walked({(2, 3): (0.0, 3.0)}))
