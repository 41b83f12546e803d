"""Time to accuracy: break-even bandwidths, and the first algorithm that overtakes the fastest."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ddl.perf import bounds
from ddl.perf.bounds import round_seconds
from ddl.perf.cluster import LinkModel, NetworkModel
from ddl.perf.collectives import all_reduce

steps = st.floats(1e-4, 1.0)
payload = st.floats(1e3, 1e9)


def seconds(step, nbytes, period, hit_steps):
  """Return a function from bandwidth to the seconds until an algorithm with this period has made `hit_steps` steps."""

  def at(bandwidth):
    message = all_reduce(nbytes, 8, NetworkModel(LinkModel(1e-6, bandwidth)))
    return hit_steps / period * round_seconds(step=step, message=message, period=period)

  return at


@settings(max_examples=60)
@given(steps, payload, st.integers(2, 8), st.integers(101, 150))
def test_the_faster_algorithm_changes_at_the_break_even(step, nbytes, period, more):
  often, seldom = (
    seconds(step, nbytes, 1, 100),
    seconds(step, nbytes, period, more),
  )  # `often` needs fewer steps and sends more
  result = bounds.break_even(often, seldom, 1e2, 1e15)
  if result is None:
    assert (often(1e2) - seldom(1e2)) * (often(1e15) - seldom(1e15)) >= 0
    return
  assert often(result) == pytest.approx(seldom(result), rel=2e-3)
  assert often(result / 2) > seldom(result / 2)
  assert often(result * 2) < seldom(result * 2)


def test_break_even_by_hand():
  # 100 steps of 1 s + n / B against 110 steps of 1 s: 100 n / B = 10.
  assert bounds.break_even(lambda b: 100 * (1 + 5e6 / b), lambda b: 110.0, 1e3, 1e12) == pytest.approx(5e7, rel=1e-3)


def test_no_break_even_if_one_is_always_faster_or_never_reaches_the_target():
  assert bounds.break_even(lambda b: 1 / b, lambda b: 2 / b, 1.0, 1e9) is None
  assert bounds.break_even(lambda b: math.nan, lambda b: 2 / b, 1.0, 1e9) is None


def test_the_first_algorithm_that_overtakes_the_fastest():
  """100 (1 + 5e6 / B), 110 (1 + 5e5 / B) and 120 s cross at B = 4.45e8 / 10 and 5.5e7 / 10 bytes per second."""
  times = {
    "often": lambda b: 100 * (1 + 5e6 / b),
    "seldom": lambda b: 110 * (1 + 5e5 / b),
    "never": lambda b: 120.0,
  }
  for start, end, other, at in (
    (1e12, 1e3, "seldom", 4.45e7), (1e7, 1e12, "often", 4.45e7), (1e7, 1e3, "never", 5.5e6),
    (1e3, 1e12, "seldom", 5.5e6),
  ):  # fmt: skip
    name, result = bounds.overtaken(times, start, end)
    assert (name, result) == (other, pytest.approx(at, rel=2e-3))
  assert bounds.overtaken(times, 1e9, 1e15) is None and bounds.overtaken(times, 1e5, 1e3) is None


def test_two_crossings_are_found_from_both_sides():
  """100 + 10 T against 105 + 11 max(0, T - 1), T = 1e9 / B: the delayed algorithm is faster only from T = 0.5 to 6."""
  times = {"now": lambda b: 100 + 10 * 1e9 / b, "later": lambda b: 105 + 11 * max(0.0, 1e9 / b - 1)}
  assert bounds.break_even(*times.values(), 1e3, 1e15) is None
  for start, end, at in ((1e15, 1e3, 1e9 / 0.5), (1e3, 1e15, 1e9 / 6)):
    assert bounds.overtaken(times, start, end) == ("later", pytest.approx(at, rel=2e-3))
  assert bounds.overtaken(times, 1e9, 1e3) == ("now", pytest.approx(1e9 / 6, rel=2e-3))
