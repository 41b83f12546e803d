"""Round times of the event model against a time-stepped simulation, the closed form, and the virtual clock."""

import math
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ddl.events import lockstep
from ddl.events.times import TIMES
from ddl.perf.bounds import round_seconds
from ddl.perf.cluster import LinkModel
from ddl.perf.timeline import Pass, TimelineExchange, round_steps, simulate

seconds = st.floats(1e-6, 1e3)
WORK = ("forward", "weights", "inputs")


class Shares(NamedTuple):
  """Seconds per round in the second half of the rounds, computed from the events: means over the workers."""

  computing: float
  hidden: float  # the link is busy and the worker computes
  stalls: np.ndarray  # [layers] waiting before each layer's forward pass


def shares(simulated, layers=1):
  rounds = (1 + max(e.step for e in simulated.events if e.kind in WORK)) // simulated.steps
  first = rounds // 2
  late = [e for e in simulated.events if e.step >= first * simulated.steps]
  messages = [(e.start[0], e.end[0]) for e in simulated.events if e.kind == "exchange"]
  computing, hidden, stalls = 0.0, 0.0, np.zeros(layers)
  for event in late:
    duration = np.mean(event.end - event.start) / (rounds - first)
    if event.kind == "wait":
      stalls[event.layers[0]] += duration
    elif event.kind in WORK:
      computing += duration
      for start, end in messages:
        both = np.clip(np.minimum(event.end, end) - np.maximum(event.start, start), 0, None)
        hidden += np.mean(both) / (rounds - first)
  return Shares(computing, hidden, stalls)


def ticked(layers, cost, exchanges, packed, priority, paces):
  """Simulate tick by tick; return the tick at which each worker ends each step: [steps, workers]."""
  steps, workers, count = len(paces), len(paces[0]), len(layers)
  groups = [tuple(range(count))] if packed else [(i,) for i in reversed(range(count))]
  todo = []  # [workers] lists of (ticks, step, kind, layer)
  for w in range(workers):
    todo.append([])
    for s in range(steps):
      todo[w] += [(layers[i][0] * paces[s][w], s, "forward", i) for i in range(count)]
      for i in reversed(range(count)):
        todo[w] += [(layers[i][1] * paces[s][w], s, "weights", i), (layers[i][2] * paces[s][w], s, "inputs", i)]
  left, done, arrived, queue, link, sent = [None] * workers, {}, set(), [], None, []
  ends = {}

  def launch(name, due, ticks):
    queue.append((due, len(sent), ticks, name))
    sent.append(name)

  def leave(after):
    for n, (ticks, _, delay, _) in sorted(enumerate(exchanges), key=lambda item: item[1][2] > 0):  # no delay first
      if launched(n, after):
        launch((n, after), (after + delay, 0), ticks)

  def launched(n, after):
    _, period, _, offset = exchanges[n]
    return after >= offset + period and (after - offset) % period == 0

  def waited(s, i):
    """Yield the names of the messages that a layer's forward pass waits for."""
    if i == 0:
      yield from (
        (n, s - exchange[2])
        for n, exchange in enumerate(exchanges)
        if s >= exchange[2] and launched(n, s - exchange[2])
      )
    if s and sum(cost):
      yield from (("gradients", s - 1, g) for g in groups if g[0] == i)

  leave(0)
  for tick in range(100_000):
    if link and link[0] == tick:
      arrived.add(link[1])
      link = None
    for w in range(workers):
      while todo[w] and (left[w] is None or left[w] == tick):
        if left[w] == tick:  # the worker's current task ends
          _, s, kind, i = todo[w].pop(0)
          left[w] = None
          done.setdefault((s, kind, i), set()).add(w)
          if len(done[s, kind, i]) == workers:
            for g in groups:
              if kind == "weights" and g[0] == i and sum(cost):
                launch(("gradients", s, g), (s + 1, i), sum(cost[j] for j in g))
            if (kind, i) == ("inputs", 0):
              leave(s + 1)
          if (kind, i) == ("inputs", 0):
            ends[s, w] = tick
          continue
        ticks, s, kind, i = todo[w][0]
        if kind == "forward" and not arrived.issuperset(waited(s, i)):
          break
        left[w] = tick + ticks
    if link is None and queue:
      options = min(queue) if priority else queue[0]
      queue.remove(options)
      link = (tick + options[2], options[3])
    if not any(todo):
      break
  return np.array([[ends[s, w] for w in range(workers)] for s in range(steps)])


@st.composite
def cases(draw):
  count = draw(st.integers(1, 4))
  layers = [(draw(st.integers(1, 4)), draw(st.integers(1, 4)), draw(st.integers(0, 4))) for _ in range(count)]
  cost = [draw(st.integers(1, 12)) for _ in range(count)] if draw(st.booleans()) else [0] * count
  exchanges = []
  for _ in range(draw(st.integers(0, 2))):
    period, delay = draw(st.integers(1, 3)), draw(st.integers(0, 5))
    exchanges.append((draw(st.integers(1, 12)), period, delay, draw(st.integers(-period if delay else 0, 3))))
  workers = draw(st.integers(1, 3))
  paces = [[draw(st.integers(1, 3)) for _ in range(workers)] for _ in range(12)]
  return layers, cost, exchanges, draw(st.booleans()), draw(st.booleans()), paces


@settings(max_examples=100)
@given(cases())
def test_event_model_equals_a_tick_by_tick_simulation(case):
  layers, cost, exchanges, packed, priority, paces = case
  simulated = simulate(
    Pass(*zip(*layers, strict=True), cost), float, [TimelineExchange(*exchange) for exchange in exchanges],
    bucket=math.inf if packed else 0, order="priority" if priority else "fifo", paces=np.array(paces),
  )  # fmt: skip
  last = [e.end for e in simulated.events if e.kind == "inputs" and e.layers == (0,)]
  np.testing.assert_allclose(np.array(last), ticked(*case))


@settings(max_examples=60)
@given(seconds, seconds, st.integers(1, 8), st.data())
def test_closed_form_equals_the_event_model_with_one_exchange(step, message, period, data):
  delay = data.draw(st.integers(0, period))
  one = Pass([step / 3], [2 * step / 3], [0], [0])
  simulated = simulate(one, float, [TimelineExchange(message, period, delay)])
  closed = round_seconds(step=step, message=message, period=period, delay=delay)
  assert simulated.steps == period and simulated.seconds == pytest.approx(closed, rel=1e-9)
  assert simulated.exposed == pytest.approx(max(0, message - delay * step), rel=1e-6, abs=1e-9 * closed)


def test_a_delay_beyond_the_period_hides_no_more():
  for message, delay in ((0.5, 3), (1.0, 5), (1.5, 12), (4.0, 7), (9.0, 2)):
    simulated = simulate(Pass([0.4], [0.6], [0], [0]), float, [TimelineExchange(message, 1, delay)])
    assert simulated.seconds == pytest.approx(round_seconds(step=1, message=message, delay=delay)) == max(1.0, message)


def test_two_exchanges_by_hand():
  """Steps of 1 s; one exchange of 3 s with period 2 and delay 1, one of 1 s with period 3; a round has six steps."""
  one = Pass([0.5], [0.5], [0], [0])
  exchanges = [TimelineExchange(3.0, 2, 1), TimelineExchange(1.0, 3)]
  # After steps 2 and 4 the first occupies the link for 3 s, of which a step hides 1 s; the second, after step 3, waits
  # for it and adds 1 s. After step 6 the second goes first, then the first overlaps the next step.
  simulated = simulate(one, float, exchanges)
  assert simulated.steps == 6 and shares(simulated).computing == pytest.approx(6)
  assert simulated.seconds == pytest.approx(6 + (2 + 1) + 2 + (1 + 2))
  assert round_steps([TimelineExchange(1.0, 997), TimelineExchange(1.0, 1009)]) == 1009  # not a million steps


@st.composite
def passes(draw):
  count = draw(st.integers(1, 6))
  draws = [[draw(st.floats(0.01, 2)) for _ in range(count)] for _ in range(3)]
  return Pass(*draws, [draw(st.floats(1, 1e7)) for _ in range(count)])


@settings(max_examples=50)
@given(passes(), st.sampled_from(["fifo", "priority"]), st.sampled_from([0, 1e6, math.inf]))
def test_hidden_and_exposed_seconds_sum_to_the_messages(step, order, bucket):
  link = LinkModel(0.02, 5e6)
  simulated = simulate(step, link.seconds, order=order, bucket=bucket)
  sent = [e for e in simulated.events if e.kind == "exchange" and e.step == 0]
  messages = sum(link.seconds(sum(step.nbytes[i] for i in e.layers)) for e in sent)
  assert sorted(i for e in sent for i in e.layers) == list(range(len(step.nbytes)))
  computing, hidden, stalls = shares(simulated, len(step.nbytes))
  assert simulated.hidden + simulated.exposed == pytest.approx(messages, rel=1e-9)
  assert simulated.hidden == pytest.approx(hidden, abs=1e-9)
  assert computing == pytest.approx(step.seconds, rel=1e-9)
  assert simulated.seconds == pytest.approx(computing + simulated.exposed, rel=1e-9)
  assert stalls.sum() == pytest.approx(simulated.exposed, abs=1e-9)


@settings(max_examples=50)
@given(passes(), st.floats(0.1, 10), st.sampled_from(["fifo", "priority"]))
def test_overlap_and_bandwidth_never_increase_the_time(step, factor, order):
  slow, fast = LinkModel(0.01, 3e6), LinkModel(0.01, 3e6 * (1 + factor))
  sequential = simulate(step, slow.seconds, overlap=False)
  simulated = simulate(step, slow.seconds, order=order)
  assert sequential.seconds == pytest.approx(step.seconds + sum(map(slow.seconds, step.nbytes)))
  assert sequential.hidden == pytest.approx(0, abs=1e-9)
  assert simulated.seconds <= sequential.seconds * (1 + 1e-9)
  if order == "fifo":
    assert simulate(step, fast.seconds).seconds <= simulated.seconds * (1 + 1e-9)


def test_priority_sends_the_first_layers_gradients_first():
  """By hand: while the last layer's message occupies the link, the order decides which message is next."""
  step = Pass([1, 1, 1], [1, 1, 1], [1, 1, 0], [1, 1, 4])  # ready at 8, 6 and 4 s of a step of 8 s
  assert shares(simulate(step, float), 3).stalls == pytest.approx([2.0, 0, 0])  # sent in 4..8, 8..9 and 9..10
  assert shares(simulate(step, float, order="priority"), 3).stalls == pytest.approx(
    [1.0, 0, 0]
  )  # the first layer's in 8..9
  step = Pass([1] * 4, [1] * 4, [0] * 4, [1, 3, 3, 3])
  assert shares(simulate(step, float), 4).stalls == pytest.approx([7.0, 0, 0, 0])
  assert shares(simulate(step, float, order="priority"), 4).stalls == pytest.approx([1.0, 2.0, 2.0, 0])


@pytest.mark.parametrize("bucket, groups", [(0, [(3,), (2,), (0,)]), (5, [(2, 3), (0,)]), (math.inf, [(0, 2, 3)])])
def test_a_bucket_is_sent_when_it_is_full(bucket, groups):
  simulated = simulate(Pass([1] * 4, [1] * 4, [1] * 4, [7, 0, 2, 3]), float, bucket=bucket)
  sent = [e for e in simulated.events if e.kind == "exchange" and e.step == 0]
  assert [e.layers for e in sent] == groups
  ready = {e.layers[0]: e.end[0] for e in simulated.events if e.kind == "weights" and e.step == 0}
  assert all(e.start[0] >= ready[e.layers[0]] for e in sent)


@pytest.mark.parametrize(
  "clocks, overlap",
  [
    ([(4, 0)], True),
    ([(4, 2)], True),
    ([(2, 5)], True),
    ([(4, 2)], False),
    ([(2, 0), (3, 1), (3, 4, -3)], True),
    ([(3, 1), (3, 4, -3)], False),
  ],
)
def test_event_model_equals_the_virtual_clock(clocks, overlap):
  exchanges = [TimelineExchange(0.03 - 0.01 * n, *clock) for n, clock in enumerate(clocks)]
  period = round_steps(exchanges)
  workers, steps = 5, 12 * period
  times = TIMES["lognormal"](workers=workers, seed=3, seconds=0.01, jitter=0.4)
  clock = lockstep.finish(
    workers=workers, steps=steps, round_steps=period, times=times, overlap=overlap,
    exchanges=[lockstep.ExchangeSeconds(x.launched, x.delay, x.seconds) for x in exchanges],
  )  # fmt: skip
  paces = np.stack([times.steps(w, 0, steps) for w in range(workers)], axis=1)
  simulated = simulate(Pass([0.5], [0.5], [0], [0]), float, exchanges, overlap=overlap, paces=paces)
  starts = np.array([e.start.max() for e in simulated.events if e.kind == "forward"])
  delayed = any(exchange.delay for exchange in exchanges)
  if overlap:  # the next step begins after the waiting that follows a step
    np.testing.assert_allclose(starts[1:], clock[:-1], rtol=1e-12)
  else:  # the virtual clock counts the waiting in the following step
    np.testing.assert_allclose([e.end.max() for e in simulated.events if e.kind == "weights"], clock, rtol=1e-12)
  computing, _, stalls = shares(simulated)
  straggling = stalls.sum() - simulated.exposed  # waiting for other workers while the link is idle
  assert simulated.seconds == pytest.approx(computing + stalls.sum())
  assert straggling > 0 or (delayed and overlap)  # a late message hides the differences between workers


def test_a_round_ends_with_the_slowest_worker():
  """With an exchange at every step, the mean step time is the mean of the maxima over the workers."""
  paces = np.random.default_rng(0).lognormal(sigma=0.3, size=(400, 16))
  simulated = simulate(Pass([0.5], [0.5], [0], [1]), lambda _: 0.25, paces=paces)
  waited = np.mean(paces[200:-1].max(axis=1)) + 0.25
  assert simulated.seconds == pytest.approx(waited, rel=5e-3)  # because of the edges of the measured half


def test_speed_ups_of_delayed_averaging():
  """arXiv 2006.00441: with hidden messages the speed-up over exchanges at every step is 1 + T_comm / T_step."""
  step, message, period = 0.1, 0.08, 4
  delayed = round_seconds(step=step, message=message, period=period, delay=1)
  assert period * round_seconds(step=step, message=message) / delayed == pytest.approx(1.8)
  assert round_seconds(step=step, message=message, period=period) / delayed == pytest.approx(0.48 / 0.4)


def test_invalid_arguments_are_rejected_in_one_line():
  for call, text in (
    (lambda: round_seconds(step=1, message=1, period=2, delay=-1), "delay"),
    (lambda: simulate(Pass([1], [1], [0], [0]), float, [TimelineExchange(1.0, 0)]), "period"),
    (lambda: round_seconds(step=1, message=1, period=0), "period"),
    (lambda: round_seconds(step=0, message=1), "step"),
    (lambda: round_seconds(step=math.nan, message=1), "step"),
    (lambda: simulate(Pass([1], [1, 2], [0], [1]), float), "layers"),
    (lambda: simulate(Pass([], [], [], []), float), "layers"),
    (lambda: simulate(Pass([math.nan], [1], [0], [1]), float), "finite"),
    (lambda: simulate(Pass([1], [1], [0], [1]), float, order="lifo"), "fifo, priority"),
    (lambda: simulate(Pass([1], [1], [0], [1]), float, paces=np.ones(3)), "paces"),
  ):
    with pytest.raises(ValueError, match=text) as error:
      call()
    assert "\n" not in str(error.value)
