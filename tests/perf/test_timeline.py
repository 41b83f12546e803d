"""The step of the layer model against a time-stepped simulation, closed forms and cases by hand."""

import math
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ddl.perf.bounds import round_seconds
from ddl.perf.cluster import LinkModel
from ddl.perf.timeline import STEPS, Pass, simulate


def stalls(simulated, layers):
  """Return the seconds per step of waiting before each layer's forward pass, in the second half of the steps."""
  half = STEPS // 2
  late = [e for e in simulated.events if e.kind == "wait" and e.step >= half]
  return [sum(e.end - e.start for e in late if e.layers == (layer,)) / half for layer in range(layers)]


def ticked(layers, cost, packed):
  """Simulate tick by tick; return the tick at which each step ends."""
  count = len(layers)
  groups = [tuple(range(count))] if packed else [(i,) for i in reversed(range(count))]
  todo = []  # (ticks, step, kind, layer)
  for step in range(STEPS):
    todo += [(layers[i][0], step, "forward", i) for i in range(count)]
    for i in reversed(range(count)):
      todo += [(layers[i][1], step, "weights", i), (layers[i][2], step, "inputs", i)]
  left, arrived, queue, link, ends = None, set(), [], None, []
  for tick in range(100_000):
    if link and link[0] == tick:
      arrived.add(link[1])
      link = None
    while todo and (left is None or left == tick):
      ticks, step, kind, i = todo[0]
      if left is None:
        needed = {(step - 1, g) for g in groups if g[0] == i} if kind == "forward" and step else set()
        if not arrived.issuperset(needed):
          break
        left = tick + ticks
        continue
      todo.pop(0)
      left = None
      for g in groups:
        if kind == "weights" and g[0] == i:
          queue.append((sum(cost[j] for j in g), (step, g)))
      if (kind, i) == ("inputs", 0):
        ends.append(tick)
    if link is None and queue:
      ticks, message = queue.pop(0)
      link = (tick + ticks, message)
    if not todo:
      break
  return ends


@st.composite
def cases(draw):
  count = draw(st.integers(1, 4))
  layers = [(draw(st.integers(1, 4)), draw(st.integers(1, 4)), draw(st.integers(0, 4))) for _ in range(count)]
  cost = [draw(st.integers(1, 12)) for _ in range(count)]
  return layers, cost, draw(st.booleans())


@settings(max_examples=100)
@given(cases())
def test_a_step_equals_a_tick_by_tick_simulation(case):
  layers, cost, packed = case
  simulated = simulate(Pass(*zip(*layers, strict=True), cost), float, bucket=math.inf if packed else 0)
  np.testing.assert_allclose(
    [e.end for e in simulated.events if e.kind == "inputs" and e.layers == (0,)], ticked(*case)
  )


@st.composite
def passes(draw):
  count = draw(st.integers(1, 6))
  draws = [[draw(st.floats(0.01, 2)) for _ in range(count)] for _ in range(3)]
  return Pass(*draws, [draw(st.floats(1, 1e7)) for _ in range(count)])


@settings(max_examples=50)
@given(passes(), st.sampled_from([0, 1e6, math.inf]))
def test_hidden_and_exposed_seconds_sum_to_the_messages(step, bucket):
  link = LinkModel(0.02, 5e6)
  simulated = simulate(step, link.seconds, bucket=bucket)
  sent = [e for e in simulated.events if e.kind == "message" and e.step == 0]
  messages = sum(link.seconds(sum(step.nbytes[i] for i in e.layers)) for e in sent)
  assert sorted(i for e in sent for i in e.layers) == list(range(len(step.nbytes)))
  assert sum(e.end - e.start for e in sent) == pytest.approx(messages, rel=1e-9)
  assert simulated.hidden + simulated.exposed == pytest.approx(messages, rel=1e-9) and simulated.hidden >= -1e-9
  assert simulated.seconds == pytest.approx(step.seconds + simulated.exposed, rel=1e-9)
  assert sum(stalls(simulated, len(step.nbytes))) == pytest.approx(simulated.exposed, abs=1e-9)
  spans = sorted((e.start, e.end) for e in simulated.events if e.kind == "message")
  assert all(a[1] <= b[0] + 1e-9 for a, b in pairwise(spans))  # one message at a time


@settings(max_examples=50)
@given(passes(), st.floats(0.1, 10))
def test_overlap_and_bandwidth_never_increase_the_time(step, factor):
  slow, fast = LinkModel(0.01, 3e6), LinkModel(0.01, 3e6 * (1 + factor))
  sequential = simulate(step, slow.seconds, overlap=False)
  simulated = simulate(step, slow.seconds)
  assert sequential.seconds == pytest.approx(step.seconds + sum(map(slow.seconds, step.nbytes)))
  assert sequential.hidden == pytest.approx(0, abs=1e-9)
  assert simulated.seconds <= sequential.seconds * (1 + 1e-9)
  assert simulate(step, fast.seconds).seconds <= simulated.seconds * (1 + 1e-9)


def test_messages_are_sent_in_the_order_of_the_backward_pass():
  step = Pass([1, 1, 1], [1, 1, 1], [1, 1, 0], [1, 1, 4])  # ready at 8, 6 and 4 s of a step of 8 s
  assert stalls(simulate(step, float), 3) == pytest.approx([2.0, 0, 0])  # sent in 4..8, 8..9 and 9..10
  step = Pass([1] * 4, [1] * 4, [0] * 4, [1, 3, 3, 3])
  assert stalls(simulate(step, float), 4) == pytest.approx([7.0, 0, 0, 0])


@pytest.mark.parametrize("bucket, groups", [(0, [(3,), (2,), (0,)]), (5, [(2, 3), (0,)]), (math.inf, [(0, 2, 3)])])
def test_a_bucket_is_sent_when_it_is_full(bucket, groups):
  simulated = simulate(Pass([1] * 4, [1] * 4, [1] * 4, [7, 0, 2, 3]), float, bucket=bucket)
  sent = [e for e in simulated.events if e.kind == "message" and e.step == 0]
  assert [e.layers for e in sent] == groups
  ready = {e.layers[0]: e.end for e in simulated.events if e.kind == "weights" and e.step == 0}
  assert all(e.start >= ready[e.layers[0]] for e in sent)


def test_speed_ups_of_delayed_averaging():
  """arXiv 2006.00441: with hidden messages the speed-up over exchanges at every step is 1 + T_comm / T_step."""
  step, message, period = 0.1, 0.08, 4
  delayed = round_seconds(step=step, message=message, period=period, delay=1)
  assert period * round_seconds(step=step, message=message) / delayed == pytest.approx(1.8)
  assert round_seconds(step=step, message=message, period=period) / delayed == pytest.approx(0.48 / 0.4)
