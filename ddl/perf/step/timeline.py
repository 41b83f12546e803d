"""The time of a round: a closed form for one message, and an event model of gradients' and exchanges' messages.

Event model, after arXiv 1602.06709: done_i = max(link free, t_dW_i) + cost_i; forward_i starts at max(t, done_i). The
gradient of a layer's weights comes before that of its inputs, so that its exchange starts early.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from ddl.perf import checks


class Pass(NamedTuple):
  """One step of one worker, by layers in the order of the forward pass."""

  forward: Sequence[float]  # seconds
  weights: Sequence[float]  # seconds of the gradient of the weights
  inputs: Sequence[float]  # seconds of the gradient of the inputs
  nbytes: Sequence[float]  # bytes of its message; 0: none

  @property
  def seconds(self) -> float:
    """Seconds of the step, without any exchange."""
    return float(sum(self.forward) + sum(self.weights) + sum(self.inputs))


class Exchange(NamedTuple):
  """A message of all parameters, launched after offset + period, offset + 2 period, ... steps."""

  seconds: float
  period: int = 1  # steps
  delay: int = 0  # steps in flight
  offset: int = 0

  def launched(self, step: int) -> bool:
    """Whether it is launched after so many steps."""
    return step >= self.offset + self.period and (step - self.offset) % self.period == 0


class Event(NamedTuple):
  """Work of the workers or the link: forward, weights or inputs of a layer, or exchange of some layers."""

  kind: str
  step: int  # for an exchange the one whose gradients it carries
  layers: tuple[int, ...]
  start: np.ndarray  # [workers] seconds
  end: np.ndarray


class Timeline(NamedTuple):
  """Seconds per round in the steady state, means over the workers; seconds == computing + exposed + straggling."""

  steps: int  # of a round
  seconds: float
  computing: float
  exposed: float  # the link works and the worker waits; hidden + exposed is the time of the messages
  hidden: float  # the link works and so does the worker
  straggling: float  # the worker waits for others while the link is idle
  stalls: np.ndarray  # [layers] waited before the forward pass of each
  events: list[Event]


def round_seconds(*, step: float, message: float, period: int = 1, delay: int = 0) -> float:
  """period * step + max(0, message - min(delay, period) * step): a message that has `delay` steps to arrive.

  With a delay above the period several are in flight on one link: a longer delay then hides no more. ValueError for
  negative seconds, a period below 1 or a negative delay.
  """
  _check_clock(period, delay)
  checks.positive("step (s)", step)
  checks.amount("message (s)", message)
  return period * step + max(0.0, message - min(delay, period) * step)


MOST = 2000  # steps of a round


def round_steps(exchanges: Sequence[Exchange]) -> int:
  """Steps after which all clocks repeat; the longest period where that takes more than MOST."""
  length = math.lcm(*(each.period for each in exchanges))
  return length if length <= MOST else max(each.period for each in exchanges)


def simulate(
  step: Pass,
  cost: Callable[[float], float],
  exchanges: Sequence[Exchange] = (),
  *,
  bucket: float = 0.0,
  order: str = "fifo",
  overlap: bool = True,
  paces: np.ndarray | None = None,
) -> Timeline:
  """Simulate steps whose gradients are sent layer by layer as they appear, and the exchanges between them.

  All workers share one link, which carries one message at a time to its end. A message leaves when the last worker
  has what it carries, and each worker waits for a gradient before the forward pass of its first layer in the next step,
  for an exchange before the step that comes `delay` steps later.

  Args:
    cost: seconds that a message of so many bytes of gradients takes.
    bucket: bytes with which a message is full; 0 makes one of each layer, infinity one of all (packed).
    order: "fifo", or "priority": the message that is needed first is sent first.
    overlap: False: messages leave after the backward pass, and all workers wait for them, whatever the delay.
    paces: [steps, workers] multiples of the step's seconds, whose second half is measured; None: one worker with
      multiples of 1.

  Raises:
    ValueError: one line, for invalid values.
  """
  for each in exchanges:
    _check_clock(each.period, each.delay)
  _check_pass(step)
  if order not in ORDERS:
    raise ValueError(f"unknown order '{order}' of messages; known are {', '.join(ORDERS)}")
  period = round_steps(exchanges)
  paces = np.ones((warm_up(exchanges) * 2 * period, 1)) if paces is None else np.asarray(paces, np.float64)
  if paces.ndim != 2 or len(paces) < 2 * period or not (np.isfinite(paces) & (paces > 0)).all():
    raise ValueError(f"invalid paces {list(paces.shape)}: must be [steps, workers], above 0, of at least two rounds")
  paces = paces[: len(paces) // period * period]
  clock, link, events = np.zeros(paces.shape[1]), _Link(ORDERS[order]), []
  needed: dict[tuple[int, int], list[_Message]] = defaultdict(list)  # (step, layer): what its forward pass waits for
  waits, ends = [], []  # (step, layer, from, until); at the end of each round

  def compute(kind: str, number: int, layer: int, seconds: float) -> None:
    nonlocal clock
    before, clock = clock, clock + seconds * paces[number]
    events.append(Event(kind, number, (layer,), before, clock))

  def send(number: int, layers: tuple[int, ...], seconds: float, due: tuple[int, int]) -> None:
    due = due if overlap else (number + 1, 0)
    message = _Message(len(link.sent) + len(link.pending), number, layers, seconds, float(clock.max()), due)
    link.pending.append(message)
    needed[due].append(message)

  def exchange(number: int) -> None:
    """Send what is launched after `number` + 1 steps, first that which the workers wait for."""
    for each in sorted(exchanges, key=lambda each: each.delay > 0):
      if each.launched(number + 1):
        send(number, tuple(range(len(step.forward))), each.seconds, (number + 1 + each.delay, 0))

  groups = _groups(step.nbytes, bucket)
  exchange(-1)
  for number in range(len(paces)):
    for layer, seconds in enumerate(step.forward):
      for message in needed.pop((number, layer), ()):
        arrived = np.maximum(clock, link.until(message))
        waits.append((number, layer, clock, arrived))
        clock = arrived
      compute("forward", number, layer, seconds)
    for layer in reversed(range(len(step.forward))):
      compute("weights", number, layer, step.weights[layer])
      for group in (g for g in groups if overlap and g[0] == layer):
        send(number, group, cost(sum(step.nbytes[i] for i in group)), (number + 1, layer))
      compute("inputs", number, layer, step.inputs[layer])
    for group in groups if not overlap else ():
      send(number, group, cost(sum(step.nbytes[i] for i in group)), (number + 1, 0))
    exchange(number)
    if number % period == period - 1:
      ends.append(clock)
  link.until(None)
  return _measured(step, paces, period, waits, ends, link, events)


def warm_up(exchanges: Sequence[Exchange]) -> int:
  """Rounds until the steady state; a queue of several messages takes several to fill."""
  several = len(exchanges) > 1 or any(each.delay > each.period for each in exchanges)
  steps = max((each.period + each.offset + (20 if several else 1) * each.delay for each in exchanges), default=0)
  return 1 + max(1, math.ceil(steps / round_steps(exchanges)))


class _Message(NamedTuple):
  number: int  # in the order in which they are launched
  step: int
  layers: tuple[int, ...]
  seconds: float
  ready: float
  due: tuple[int, int]  # step and layer whose forward pass waits for it


ORDERS: dict[str, Callable[[_Message], Any]] = {
  "fifo": lambda message: (message.ready, message.number),
  "priority": lambda message: (message.due, message.number),
}


class _Link:
  """One message at a time, chosen when a worker waits: later messages never overtake the one in service."""

  def __init__(self, order: Callable[[_Message], Any]):
    self.order, self.free, self.pending = order, 0.0, []
    self.sent: list[tuple[_Message, float, float]] = []  # message, start, end
    self.arrived: dict[_Message, float] = {}

  def until(self, message: _Message | None) -> float:
    """Return the arrival time of a message, in seconds; None: of all."""
    while self.pending and message not in self.arrived:
      now = max(self.free, min(each.ready for each in self.pending))
      chosen = min((each for each in self.pending if each.ready <= now), key=self.order)
      self.pending.remove(chosen)
      self.free = now + chosen.seconds
      self.sent.append((chosen, now, self.free))
      self.arrived[chosen] = self.free
    return self.arrived[message] if message else self.free


def _measured(
  step: Pass, paces: np.ndarray, period: int, waits: list, ends: list[np.ndarray], link: _Link, events: list[Event]
) -> Timeline:
  """Return the means per round over the second half of the rounds."""
  first, rounds = len(ends) // 2, len(ends)
  count, workers = rounds - first, paces.shape[1]
  edges = np.array([t for _, start, end in link.sent for t in (start, end)] or [0.0])
  worked = np.concatenate([[0.0], np.cumsum(np.diff(edges) * (np.arange(len(edges) - 1) % 2 == 0))])

  def busy(since: np.ndarray, until: np.ndarray) -> float:
    """Seconds of a busy link in between: the mean over the workers (last axis) of the sums over the others."""
    return float(np.sum(np.interp(until, edges, worked) - np.interp(since, edges, worked))) / workers

  stalls, waited = np.zeros(len(step.forward)), [each for each in waits if each[0] >= first * period]
  for _, layer, since, until in waited:
    stalls[layer] += np.mean(until - since) / count
  exposed = busy(*(np.array([each[i] for each in waited]) for i in (2, 3))) / count
  working = [e for e in events if e.step >= first * period]
  starts, stops = np.array([e.start for e in working]), np.array([e.end for e in working])
  events += [Event("exchange", m.step, m.layers, np.full(workers, a), np.full(workers, b)) for m, a, b in link.sent]
  return Timeline(
    steps=period,
    seconds=float(np.mean(ends[-1] - ends[first - 1])) / count,
    computing=float(np.sum(stops - starts)) / (workers * count),
    exposed=exposed,
    hidden=busy(starts, stops) / count,
    straggling=float(stalls.sum()) - exposed,
    stalls=stalls,
    events=events,
  )


def _groups(nbytes: Sequence[float], bucket: float) -> list[tuple[int, ...]]:
  """Layers that share a message, gathered in the order of the backward pass; each in the order of the forward pass."""
  groups, gathered = [], []
  for layer in reversed([i for i, n in enumerate(nbytes) if n > 0]):
    gathered.insert(0, layer)
    if sum(nbytes[i] for i in gathered) >= bucket:
      groups.append(tuple(gathered))
      gathered = []
  return [*groups, tuple(gathered)] if gathered else groups


def _check_clock(period: int, delay: int) -> None:
  checks.count("period", period)
  checks.count("delay", delay, 0)


def _check_pass(step: Pass) -> None:
  if len({len(each) for each in step}) != 1 or not len(step.forward):
    raise ValueError(f"invalid pass of {[len(each) for each in step]} layers: must have the same in each of its parts")
  figures = np.concatenate([np.asarray(each, np.float64) for each in step])
  if not (np.isfinite(figures) & (figures >= 0)).all() or not step.seconds > 0:
    raise ValueError("invalid pass: seconds and bytes must be finite and 0 or more, and a step above 0 s")
