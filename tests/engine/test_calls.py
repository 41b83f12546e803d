"""Clocks of exchanges, and the plan of a run as compiled calls."""

import pytest
from helpers.twins import events
from hypothesis import given, settings
from hypothesis import strategies as st

from ddl.api import Exchange
from ddl.engine.calls import plan
from ddl.schedule import Schedule


@st.composite
def exchanges(draw):
  period, delay = draw(st.integers(1, 7)), draw(st.integers(0, 12))
  if draw(st.booleans()) and draw(st.booleans()):  # post-local: 1, ..., 1, period, period, ...
    start = draw(st.integers(0, 9))
    return Exchange(None, None, lambda k: 1 if k < start else period, delay)  # type: ignore[arg-type]
  return Exchange(None, None, period, delay, draw(st.integers(-period + (not delay), 2 * period)))  # type: ignore[arg-type]


SCHEDULES = st.lists(exchanges(), max_size=3)


@settings(max_examples=150)
@given(SCHEDULES)
def test_due_follows_the_definition_of_an_exchange(exchanges):
  schedule = Schedule(exchanges)
  in_flight = [0] * len(exchanges)
  for t in range(60):
    due = schedule.due(t)
    assert schedule.in_flight(t) == tuple(in_flight)
    assert all(n <= clock.slots for n, clock in zip(in_flight, schedule.clocks, strict=True))
    for i, exchange in enumerate(exchanges):
      assert (i in due.launch) == bool(exchange.delay and events(exchange, t)[0])
      assert (i in due.merge) == bool(exchange.delay and events(exchange, t + 1)[1])
      assert (i in due.exchange) == bool(not exchange.delay and events(exchange, t + 1)[0])
      in_flight[i] += (i in due.launch) - (i in due.merge)


@pytest.mark.parametrize(
  "wrong", [{"period": 0}, {"delay": -1}, {"period": 3, "offset": -4}, {"period": 3, "delay": 1, "offset": -4},
            {"period": 3, "offset": -3}, {"period": lambda k: -k}],
)  # fmt: skip
def test_the_error_of_a_clock_names_the_field(wrong):
  name = "period" if callable(wrong.get("period")) else [*wrong][-1]
  with pytest.raises(ValueError, match=f"{name} (is|of an exchange) "):
    Schedule([Exchange(None, None, **wrong)]).cycle(0)  # type: ignore[arg-type]


def checked_plan(schedule, first, last, every, longest, flexible=None):
  calls = plan(schedule, first, last, every, longest, flexible or longest)
  assert [t for call in calls for t in range(call.first, call.end)] == list(range(first, last))
  assert [due for call in calls for due in call.due] == [schedule.due(t) for t in range(first, last)]
  for call in calls:
    assert 1 <= call.steps <= longest and call.in_flight == schedule.in_flight(call.first)
    assert call.kind.unit or call.steps <= call.kind.longest
    assert not call.kind.unit or (call.kind.unit * call.kind.repeat, call.kind.in_flight) == (call.due, call.in_flight)
  assert {call.end for call in calls} >= {t for t in range(first + 1, last + 1) if t % every == 0 or t == last}
  return calls


@settings(max_examples=200)
@given(SCHEDULES, st.integers(0, 60), st.integers(0, 90), st.integers(1, 25), st.integers(1, 20), st.booleans())
def test_calls_cover_the_steps_and_their_exchanges(exchanges, first, count, every, longest, single):
  checked_plan(Schedule(exchanges), first, first + count, every, longest, 1 if single else None)


@settings(max_examples=100)
@given(SCHEDULES, st.integers(1, 1000), st.integers(1, 60), st.integers(1, 64))
def test_at_most_four_kinds_are_compiled(exchanges, steps, every, longest):
  assert len({call.kind for call in checked_plan(Schedule(exchanges), 0, steps, every, longest)}) <= 4


@pytest.mark.parametrize("period, every", [(13, 20), (7, 50), (10, 1), (1000, 64), (64, 63)])
@pytest.mark.parametrize("delay", [0, 1, 5, 17])
def test_long_runs_have_few_kinds_and_calls(period, every, delay):
  calls = checked_plan(Schedule([Exchange(None, None, period, delay)]), 0, 2000, every, 64)  # type: ignore[arg-type]
  assert len({call.kind for call in calls}) <= 4
  assert len(calls) <= 2000 / min(every, 64) + 3 * 2000 / period + 2


@pytest.mark.parametrize("every, longest", [(100, 64), (20, 64), (1000, 64), (100, 10), (10, 1000)])
def test_calls_contain_whole_rounds(every, longest):
  """With period 10 and delay 2, only the first round has no merge."""
  calls = checked_plan(Schedule([Exchange(None, None, 10, 2)]), 0, 1000, every, longest)  # type: ignore[arg-type]
  assert all(call.first % 10 == 0 and len(call.kind.unit) == 10 for call in calls)
  assert len(calls) <= 1 + 1000 / min(every, longest // 10 * 10) * 1.25


def test_a_call_ends_at_each_boundary():
  schedule = Schedule([Exchange(None, None, 4, 3)])  # type: ignore[arg-type]
  for longest in (1, 3, 4, 9):
    assert any(call.end == 20 for call in checked_plan(schedule, 0, 50, 10, longest))


@pytest.mark.parametrize(("steps", "every", "longest"), [(2 * 10**9, 10, 64), (2 * 10**9, 10**9, 64), (10**8, 1, 64)])
def test_too_many_calls_are_rejected_at_once(steps, every, longest, at_once):
  with pytest.raises(ValueError, match=r"config.steps must be at most [\d,]+ \(10,000,000 calls of \d+ steps\)"):
    plan(Schedule([]), 0, steps, every, longest, 1)
