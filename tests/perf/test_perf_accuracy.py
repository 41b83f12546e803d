"""Time to accuracy: what a hit, an interval, a winner and a break-even are, as properties."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ddl.perf.comm.collectives import all_reduce
from ddl.perf.hardware.network import Link, Network
from ddl.perf.planning import time_to_accuracy
from ddl.perf.planning.time_to_accuracy import Hit
from ddl.perf.step.timeline import round_seconds

STEPS = np.array([0.0, 10, 20, 30])
figures = st.lists(st.floats(0, 1) | st.just(math.nan), min_size=4, max_size=4).map(np.array)
positive = st.floats(1e-3, 1e3)


def linear(rate):
  return lambda steps: rate * steps


@given(figures, st.floats(0, 1))
def test_a_hit_is_the_first_evaluation_that_meets_the_target(values, target):
  found = time_to_accuracy.hit(STEPS, values, target, higher=True)
  met = [step for step, value in zip(STEPS, values, strict=True) if value >= target]
  if not met:
    assert math.isnan(found.steps) and math.isnan(found.before)
  else:
    assert found.steps == met[0]
    assert found.before == max(0, met[0] - 10)
  mirrored = time_to_accuracy.hit(STEPS, -values, -target, higher=False)
  assert np.array_equal(found, mirrored, equal_nan=True)


def test_a_curve_that_goes_back_is_refused():
  with pytest.raises(ValueError, match="increasing steps"):
    time_to_accuracy.hit(np.array([0.0, 10, 10]), np.zeros(3), 0.5, higher=True)


def test_the_interval_is_students_over_those_with_a_value():
  found = time_to_accuracy.estimate([1.0, 2.0, math.nan, 4.0])
  assert (found.reached, found.seeds) == (3, 4)
  assert found.mean == pytest.approx(7 / 3)
  assert found.half == pytest.approx(4.30265273 * np.std([1, 2, 4], ddof=1) / math.sqrt(3))  # t(0.975, 2) of tables
  assert time_to_accuracy.estimate([2.0, math.nan]) == (2.0, None, 1, 2)
  none = time_to_accuracy.estimate([math.nan])
  assert math.isnan(none.mean) and none[1:] == (None, 0, 1)


def test_seeds_that_never_get_there_are_counted_and_lose():
  slow = time_to_accuracy.reached([Hit(20, 10)] * 2, [linear(5.0)] * 2)
  fast = time_to_accuracy.reached([Hit(10, 0), Hit(math.nan, math.nan)], [linear(1.0)] * 2)
  assert fast.estimate == (10.0, None, 1, 2)
  assert time_to_accuracy.verdict({"fast": fast, "slow": slow}) == ("slow", None, None, False)
  assert time_to_accuracy.verdict({"fast": fast}).winner is None


@given(st.lists(st.integers(1, 6), min_size=3, max_size=3), positive, positive)
def test_the_winner_has_the_smaller_mean_and_a_lead_in_pairs(hits, rate, other):
  first = time_to_accuracy.reached([Hit(10.0 * n, 10.0 * n - 10) for n in hits], [linear(rate)] * 3)
  second = time_to_accuracy.reached([Hit(10.0 * n, 10.0 * n - 10) for n in hits], [linear(other)] * 3)
  found = time_to_accuracy.verdict({"first": first, "second": second})
  assert found.winner == ("second" if other < rate else "first")
  assert found.lead.mean == pytest.approx(abs(rate - other) * 10 * np.mean(hits))
  gap = 10 * max(rate, other)
  assert not found.certain or found.lead.mean - found.lead.half > gap * (1 - 1e-9)


def test_a_lead_is_certain_beyond_the_spread_and_the_gap_between_evaluations():
  def times(at, gap):
    return time_to_accuracy.reached([Hit(a, a - gap) for a in at], [linear(1.0)] * len(at))

  assert time_to_accuracy.verdict(
    {"a": times([100, 110, 120], 1), "b": times([120, 131, 140], 1)}
  ).certain  # paired: 20, 21, 20
  assert not time_to_accuracy.verdict({"a": times([100, 110, 120], 1), "b": times([140, 112, 121], 1)}).certain
  assert not time_to_accuracy.verdict({"a": times([100, 110, 120], 25), "b": times([120, 131, 140], 25)}).certain
  assert not time_to_accuracy.verdict({"a": times([100], 1), "b": times([200], 1)}).certain  # one seed has no spread


steps = st.floats(1e-4, 1.0)
payload = st.floats(1e3, 1e9)


def seconds(step, nbytes, period, hit_steps):
  """Seconds to the target of an algorithm that all-reduces every `period` steps, as a function of the bandwidth."""

  def at(bandwidth):
    message = all_reduce(nbytes, 8, Network(Link(1e-6, bandwidth)))
    return hit_steps / period * round_seconds(step=step, message=message, period=period)

  return at


@given(steps, payload, st.integers(1, 8), st.floats(1e3, 1e12), st.floats(1.0, 1e3))
def test_more_bandwidth_is_never_slower(step, nbytes, period, bandwidth, factor):
  at = seconds(step, nbytes, period, 100)
  assert at(bandwidth * factor) <= at(bandwidth) * (1 + 1e-12)


@settings(max_examples=60)
@given(steps, payload, st.integers(2, 8), st.integers(101, 150))
def test_at_the_break_even_both_take_the_same_and_either_side_has_another_winner(step, nbytes, period, more):
  often, seldom = seconds(step, nbytes, 1, 100), seconds(step, nbytes, period, more)  # fewer steps, more to send
  found = time_to_accuracy.break_even(often, seldom, 1e2, 1e15)
  if found is None:
    assert (often(1e2) - seldom(1e2)) * (often(1e15) - seldom(1e15)) >= 0
    return
  assert often(found) == pytest.approx(seldom(found), rel=2e-3)
  assert often(found / 2) > seldom(found / 2)
  assert often(found * 2) < seldom(found * 2)


def test_the_break_even_of_a_case_that_can_be_solved_by_hand():
  # 100 steps of 1 s + n / B against 110 of 1 s: 100 n / B = 10.
  assert time_to_accuracy.break_even(lambda b: 100 * (1 + 5e6 / b), lambda b: 110.0, 1e3, 1e12) == pytest.approx(
    5e7, rel=1e-3
  )


def test_there_is_no_break_even_where_one_is_always_ahead_or_never_arrives():
  assert time_to_accuracy.break_even(lambda b: 1 / b, lambda b: 2 / b, 1.0, 1e9) is None
  assert time_to_accuracy.break_even(lambda b: math.nan, lambda b: 2 / b, 1.0, 1e9) is None
  with pytest.raises(ValueError, match="0 < low < high"):
    time_to_accuracy.break_even(lambda b: b, lambda b: b, 0.0, 1.0)


def test_who_overtakes_first_on_the_way():
  """100 (1 + 5e6 / B), 110 (1 + 5e5 / B) and 120 s: they meet at 4.45e8 / 10 and 5.5e7 / 10 bytes per second."""
  times = {
    "often": lambda b: 100 * (1 + 5e6 / b),
    "seldom": lambda b: 110 * (1 + 5e5 / b),
    "never": lambda b: 120.0,
  }
  for start, end, other, at in (
    (1e12, 1e3, "seldom", 4.45e7), (1e7, 1e12, "often", 4.45e7), (1e7, 1e3, "never", 5.5e6),
    (1e3, 1e12, "seldom", 5.5e6),
  ):  # fmt: skip
    name, found = time_to_accuracy.overtaken(times, start, end)
    assert (name, found) == (other, pytest.approx(at, rel=2e-3))
  assert time_to_accuracy.overtaken(times, 1e9, 1e15) is None and time_to_accuracy.overtaken(times, 1e5, 1e3) is None
  for start, end in ((0.0, 1e9), (1e9, math.inf)):
    with pytest.raises(ValueError, match="both are above 0"):
      time_to_accuracy.overtaken(times, start, end)


def test_a_lead_between_two_crossings_is_found_from_either_side():
  """100 + 10 T against 105 + 11 max(0, T - 1), T = 1e9 / B: a delay pays from T = 0.5 to 6, and at neither end."""
  times = {"now": lambda b: 100 + 10 * 1e9 / b, "later": lambda b: 105 + 11 * max(0.0, 1e9 / b - 1)}
  assert time_to_accuracy.break_even(*times.values(), 1e3, 1e15) is None
  for start, end, at in ((1e15, 1e3, 1e9 / 0.5), (1e3, 1e15, 1e9 / 6)):
    assert time_to_accuracy.overtaken(times, start, end) == ("later", pytest.approx(at, rel=2e-3))
  assert time_to_accuracy.overtaken(times, 1e9, 1e3) == ("now", pytest.approx(1e9 / 6, rel=2e-3))


def test_bandwidths_are_averaged_as_ratios():
  mean, low, high = time_to_accuracy.interval([1e6, 1e8])
  assert mean == pytest.approx(1e7)
  assert low * high == pytest.approx(mean**2)
  assert low < 1e6 and high > 1e8
  assert time_to_accuracy.interval([1e6])[0] == pytest.approx(1e6)
  assert np.isnan(time_to_accuracy.interval([1e6])[1:]).all()
  with pytest.raises(ValueError, match="above 0"):
    time_to_accuracy.interval([])
