"""The cutting of a run into compiled calls."""

import optax
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ddl.algorithms.collective.local_sgd import local_sgd
from ddl.algorithms.collective.sync_sgd import sync_sgd
from ddl.runtime.calls import plan
from ddl.schedule import due, in_flight


@st.composite
def algorithms(draw):
  period = draw(st.integers(1, 7))
  made = local_sgd(optax.sgd(0.1), period=period, axis_name="w")
  delay, start = draw(st.integers(0, period)), draw(st.sampled_from([0, 0, 1, 4, 30]))
  made = made._replace(delay=delay, start=start, primed=draw(st.booleans()))
  return draw(st.sampled_from([made, made, made, sync_sgd(optax.sgd(0.1), axis_name="w")]))


@settings(max_examples=400, deadline=None)
@given(algorithms(), st.integers(0, 60), st.integers(0, 60), st.integers(1, 25), st.integers(1, 20))
def test_calls_cover_the_steps_and_do_what_is_due(algorithm, first, count, every, longest):
  last = first + count
  calls = plan(algorithm, first, last, every, longest)
  assert [t for call in calls for t in range(call.first, call.end)] == list(range(first, last))
  assert [d for call in calls for d in call.unit * call.repeat] == [due(algorithm, t) for t in range(first, last)]
  assert all(1 <= call.steps == call.end - call.first <= longest for call in calls)
  ends = {call.end for call in calls}
  assert ends >= {t for t in range(first + 1, last + 1) if t % every == 0 or t == last}


@settings(max_examples=200, deadline=None)
@given(algorithms(), st.integers(1, 400), st.integers(1, 25), st.integers(1, 20))
def test_a_longer_run_needs_few_programs(algorithm, rounds, every, longest):
  """Each kind of call is compiled, so that their number must not grow with the length of the run."""
  steps = algorithm.start + 2 * algorithm.period * every  # from here on everything repeats
  kinds = {(call.unit, call.repeat) for call in plan(algorithm, 0, steps, every, longest)}
  more = {
    (call.unit, call.repeat) for call in plan(algorithm, 0, steps + algorithm.period * every * rounds, every, longest)
  }
  assert more == kinds


@pytest.mark.parametrize("every, longest", [(100, 64), (20, 64), (1000, 64), (100, 10), (10, 1000)])
def test_rounds_are_kept_together(every, longest):
  """Period 10, delay 2: the first round has no merge; the others are alike."""
  algorithm = local_sgd(optax.sgd(0.1), period=10, axis_name="w")._replace(delay=2)
  calls = plan(algorithm, 0, 1000, every, longest)
  assert all(call.first % 10 == 0 and len(call.unit) == 10 for call in calls)
  assert len({(call.unit, call.repeat) for call in calls}) <= 4
  assert len(calls) <= 1 + 1000 / min(every, longest // 10 * 10) * 1.25


def test_a_run_resumed_between_two_calls_goes_on_with_the_same_calls():
  algorithm = local_sgd(optax.sgd(0.1), period=4, axis_name="w")._replace(delay=3)
  for longest in (1, 3, 4, 9):
    calls = plan(algorithm, 0, 50, 10, longest)
    assert calls == [c for c in calls if c.first < 20] + [c for c in calls if c.first >= 20]
    assert any(c.end == 20 for c in calls)


@settings(max_examples=400, deadline=None)
@given(algorithms())
def test_in_flight_agrees_with_a_simulation(algorithm):
  flying = False
  for t in range(60):
    assert in_flight(algorithm, t) is flying, t
    now = due(algorithm, t)
    assert not (now.launch and flying) and not (now.merge and not (flying or now.launch))
    flying = (flying or bool(now.launch)) and not now.merge
