"""The time of a round: the event model against a time-stepped one, the closed form, the clock of the experiments."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ddl.events import lockstep
from ddl.events.times import TIMES
from ddl.perf.hardware.network import Link
from ddl.perf.step.timeline import Pass, round_seconds, simulate

seconds = st.floats(1e-6, 1e3)


def ticked(layers, cost, period, delay, packed, priority, paces):
  """When each worker ends each round, in whole ticks: a machine that looks at every tick who can go on."""
  steps, workers, count = len(paces), len(paces[0]), len(layers)
  groups = [tuple(range(count))] if packed else [(i,) for i in reversed(range(count))]
  todo = []  # of each worker: (ticks, step, kind, layer)
  for w in range(workers):
    todo.append([])
    for s in range(steps):
      todo[w] += [(layers[i][0] * paces[s][w], s, "forward", i) for i in range(count)]
      for i in reversed(range(count)):
        todo[w] += [(layers[i][1] * paces[s][w], s, "weights", i), (layers[i][2] * paces[s][w], s, "inputs", i)]
  left, done, arrived, queue, link = [None] * workers, {}, set(), [], None
  ends = {}
  for tick in range(100_000):
    if link and link[0] == tick:
      arrived.add(link[1])
      link = None
    for w in range(workers):
      while todo[w] and (left[w] is None or left[w] == tick):
        if left[w] == tick:  # the first of its list has come to an end
          _, s, kind, i = todo[w].pop(0)
          left[w] = None
          if kind == "weights":
            done.setdefault((s, i), set()).add(w)
            for g in groups:
              if g[0] == i and s % period == period - 1 and len(done[s, i]) == workers:
                queue.append((s, g))
          if kind == "inputs" and i == 0 and s % period == period - 1:
            ends[s // period, w] = tick
          continue
        ticks, s, kind, i = todo[w][0]
        sent = s - 1 - delay
        if kind == "forward" and sent >= 0 and sent % period == period - 1:
          waited = [(sent, g) for g in groups if g[0] == i]
          if not arrived.issuperset(waited):
            break
        left[w] = tick + ticks
    if link is None and queue:
      chosen = min(queue) if priority else queue[0]
      queue.remove(chosen)
      link = (tick + sum(cost[i] for i in chosen[1]), chosen)
    if not any(todo):
      break
  return np.array([[ends[r, w] for w in range(workers)] for r in range(steps // period)])


@st.composite
def cases(draw):
  count = draw(st.integers(1, 4))
  layers = [(draw(st.integers(1, 4)), draw(st.integers(1, 4)), draw(st.integers(0, 4))) for _ in range(count)]
  cost = [draw(st.integers(1, 12)) for _ in range(count)]
  period = draw(st.integers(1, 3))
  delay = draw(st.integers(0, period))
  workers = draw(st.integers(1, 3))
  paces = [[draw(st.integers(1, 3)) for _ in range(workers)] for _ in range(4 * period)]
  return layers, cost, period, delay, draw(st.booleans()), draw(st.booleans()), paces


@settings(max_examples=150, deadline=None)
@given(cases())
def test_agrees_with_a_machine_that_looks_at_every_tick(case):
  layers, cost, period, delay, packed, priority, paces = case
  shown = simulate(
    Pass(*zip(*layers, strict=True), cost), float, period=period, delay=delay, bucket=math.inf if packed else 0,
    order="priority" if priority else "fifo", paces=np.array(paces),
  )  # fmt: skip
  last = [e.end for e in shown.events if e.kind == "inputs" and e.layers == (0,) and e.step % period == period - 1]
  np.testing.assert_allclose(np.array(last), ticked(*case))


@given(seconds, seconds, st.integers(1, 8), st.data())
def test_the_closed_form_is_the_event_model_with_one_message(step, message, period, data):
  delay = data.draw(st.integers(0, period))
  shown = simulate(Pass([step / 3], [2 * step / 3], [0], [1]), lambda _: message, period=period, delay=delay)
  closed = round_seconds(step=step, message=message, period=period, delay=delay)
  assert shown.seconds == pytest.approx(closed, rel=1e-9)
  assert shown.exposed == pytest.approx(max(0, message - delay * step), rel=1e-6, abs=1e-9 * closed)


@st.composite
def passes(draw):
  count = draw(st.integers(1, 6))
  draws = [[draw(st.floats(0.01, 2)) for _ in range(count)] for _ in range(3)]
  return Pass(*draws, [draw(st.floats(1, 1e7)) for _ in range(count)])


@settings(deadline=None)
@given(
  passes(), st.integers(1, 4), st.sampled_from(["fifo", "priority"]), st.sampled_from([0, 1e6, math.inf]), st.data()
)
def test_hidden_and_exposed_are_the_time_of_the_messages(step, period, order, bucket, data):
  delay = data.draw(st.integers(0, period - 1))
  link = Link(0.02, 5e6)
  shown = simulate(step, link.seconds, period=period, delay=delay, order=order, bucket=bucket)
  sent = [e for e in shown.events if e.kind == "exchange" and e.step == period - 1]
  messages = sum(link.seconds(sum(step.nbytes[i] for i in e.layers)) for e in sent)
  assert sorted(i for e in sent for i in e.layers) == list(range(len(step.nbytes)))
  assert shown.hidden + shown.exposed == pytest.approx(messages, rel=1e-9)
  assert shown.computing == pytest.approx(period * step.seconds, rel=1e-9)
  assert shown.seconds == pytest.approx(shown.computing + shown.exposed, rel=1e-9)
  assert shown.straggling == pytest.approx(0, abs=1e-9)
  assert shown.stalls.sum() == pytest.approx(shown.exposed, abs=1e-9)


@settings(deadline=None)
@given(passes(), st.floats(0.1, 10), st.sampled_from(["fifo", "priority"]))
def test_overlap_and_bandwidth_never_cost_time(step, factor, order):
  slow, fast = Link(0.01, 3e6), Link(0.01, 3e6 * (1 + factor))
  alone = simulate(step, slow.seconds, overlap=False)
  shown = simulate(step, slow.seconds, order=order)
  assert alone.seconds == pytest.approx(step.seconds + sum(map(slow.seconds, step.nbytes)))
  assert alone.hidden == pytest.approx(0, abs=1e-9)
  assert shown.seconds <= alone.seconds * (1 + 1e-9)
  if order == "fifo":
    assert simulate(step, fast.seconds).seconds <= shown.seconds * (1 + 1e-9)


def test_the_layer_needed_first_goes_first():
  """By hand. The link is taken by the last layer's message; what comes next is for the order to say."""
  step = Pass([1, 1, 1], [1, 1, 1], [1, 1, 0], [1, 1, 4])  # ready at 8, 6 and 4 s of a step of 8 s
  assert simulate(step, float).stalls == pytest.approx([2.0, 0, 0])  # sent in 4..8, 8..9 and 9..10
  assert simulate(step, float, order="priority").stalls == pytest.approx([1.0, 0, 0])  # the first in 8..9
  step = Pass([1] * 4, [1] * 4, [0] * 4, [1, 3, 3, 3])
  assert simulate(step, float).stalls == pytest.approx([7.0, 0, 0, 0])
  assert simulate(step, float, order="priority").stalls == pytest.approx([1.0, 2.0, 2.0, 0])


@pytest.mark.parametrize("bucket, groups", [(0, [(3,), (2,), (0,)]), (5, [(2, 3), (0,)]), (math.inf, [(0, 2, 3)])])
def test_a_message_leaves_when_it_is_full(bucket, groups):
  shown = simulate(Pass([1] * 4, [1] * 4, [1] * 4, [7, 0, 2, 3]), float, bucket=bucket, rounds=2)
  sent = [e for e in shown.events if e.kind == "exchange" and e.step == 0]
  assert [e.layers for e in sent] == groups
  ready = {e.layers[0]: e.end[0] for e in shown.events if e.kind == "weights" and e.step == 0}
  assert all(e.start[0] >= ready[e.layers[0]] for e in sent)


@pytest.mark.parametrize("name", ["lognormal", "gamma"])
@pytest.mark.parametrize(
  "period, delay, overlap", [(1, 0, True), (4, 0, True), (4, 2, True), (3, 3, True), (4, 2, False)]
)
def test_agrees_with_the_clock_of_the_experiments(name, period, delay, overlap):
  workers, steps, message = 5, 12 * period, 0.03
  times = TIMES[name](workers=workers, seed=3, seconds=0.01, jitter=0.4)
  clock = lockstep.finish(
    workers=workers, steps=steps, period=period, delay=delay, start=0, times=times, exchange_seconds=message,
    overlap=overlap,
  )  # fmt: skip
  paces = np.stack(
    [np.concatenate([times.steps(w, turn, period) for turn in range(steps // period)]) for w in range(workers)], axis=1
  )
  shown = simulate(
    Pass([0.5], [0.5], [0], [1]), lambda _: message, period=period, delay=delay, overlap=overlap, paces=paces
  )
  starts = np.array([e.start.max() for e in shown.events if e.kind == "forward"])
  if overlap:  # a step has ended, with what is waited for after it, when the next begins
    np.testing.assert_allclose(starts[1:], clock[:-1], rtol=1e-12)
  else:  # there the wait belongs to the step that follows
    np.testing.assert_allclose([e.end.max() for e in shown.events if e.kind == "weights"], clock, rtol=1e-12)
  assert shown.seconds == pytest.approx(shown.computing + shown.exposed + shown.straggling)
  assert shown.straggling > 0 or (delay and overlap)  # a message that is late for all hides who came last


def test_a_round_ends_when_the_last_worker_has_arrived():
  """With an exchange at every step the mean step is the mean of the maxima, whatever the distribution."""
  paces = np.random.default_rng(0).lognormal(sigma=0.3, size=(400, 16))
  shown = simulate(Pass([0.5], [0.5], [0], [1]), lambda _: 0.25, paces=paces)
  waited = np.mean(paces[200:-1].max(axis=1)) + 0.25
  assert shown.seconds == pytest.approx(waited, rel=5e-3)  # edges of the half that is measured


def test_speed_ups_of_delayed_averaging():
  """arXiv 2006.00441: hidden, a step costs T_step; (T_step + T_comm) / T_step over an exchange at every step."""
  step, message, period = 0.1, 0.08, 4
  delayed = round_seconds(step=step, message=message, period=period, delay=1)
  assert period * round_seconds(step=step, message=message) / delayed == pytest.approx(1.8)
  assert round_seconds(step=step, message=message, period=period) / delayed == pytest.approx(0.48 / 0.4)


@pytest.mark.parametrize(
  "call, says",
  [
    (lambda: round_seconds(step=1, message=1, period=2, delay=3), "delay"),
    (lambda: round_seconds(step=1, message=1, period=0), "period"),
    (lambda: round_seconds(step=0, message=1), "a step takes time"),
    (lambda: round_seconds(step=math.nan, message=1), "a step takes time"),
    (lambda: simulate(Pass([1], [1, 2], [0], [1]), float), "the same layers"),
    (lambda: simulate(Pass([], [], [], []), float), "the same layers"),
    (lambda: simulate(Pass([math.nan], [1], [0], [1]), float), "finite"),
    (lambda: simulate(Pass([1], [1], [0], [1]), float, order="lifo"), "fifo, priority"),
    (lambda: simulate(Pass([1], [1], [0], [1]), float, paces=np.ones(3)), "paces"),
  ],
)
def test_what_cannot_be_is_one_line(call, says):
  with pytest.raises(ValueError, match=says) as error:
    call()
  assert "\n" not in str(error.value)
