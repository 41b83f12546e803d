"""The time of a round: a closed form for one message, and an event model for messages that leave as gradients appear.

Event model, after arXiv 1602.06709: done_i = max(link free, t_dW_i) + cost_i; forward_i starts at max(t, done_i). The
gradient of a layer's weights comes before that of its inputs, so that its exchange starts early.
"""

from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np


class Pass(NamedTuple):
  """One step of one worker, by layers in the order of the forward pass."""

  forward: Sequence[float]  # seconds
  weights: Sequence[float]  # seconds of the gradient of the weights
  inputs: Sequence[float]  # seconds of the gradient of the inputs
  nbytes: Sequence[float]  # bytes of its message; 0: none

  @property
  def seconds(self) -> float:
    """Of the step, without any exchange."""
    return float(sum(self.forward) + sum(self.weights) + sum(self.inputs))


class Event(NamedTuple):
  """What a worker or the link did: forward, weights or inputs of a layer, or exchange of some layers."""

  kind: str
  step: int  # for an exchange the one whose gradients it carries
  layers: tuple[int, ...]
  start: np.ndarray  # [workers] seconds
  end: np.ndarray


class Timeline(NamedTuple):
  """Seconds per round in the steady state, means over the workers; seconds == computing + exposed + straggling."""

  seconds: float
  computing: float
  exposed: float  # the link works and the worker waits; hidden + exposed is the time of the messages
  hidden: float  # the link works and so does the worker
  straggling: float  # the worker waits for others while the link has nothing to do
  stalls: np.ndarray  # [layers] waited before the forward pass of each
  events: list[Event]


def round_seconds(*, step: float, message: float, period: int = 1, delay: int = 0) -> float:
  """period * step + max(0, message - delay * step): `period` steps, with a message that has `delay` steps to arrive.

  Raises:
    ValueError: for negative seconds, a period below 1, or a delay outside 0..period.
  """
  _check_round(period, delay)
  if not (step > 0 and message >= 0):
    raise ValueError(
      f"a step of {step:g} s and a message of {message:g} s; a step takes time, a message not less than 0"
    )
  return period * step + max(0.0, message - delay * step)


def simulate(
  step: Pass,
  cost: Callable[[float], float],
  *,
  period: int = 1,
  delay: int = 0,
  bucket: float = 0.0,
  order: str = "fifo",
  overlap: bool = True,
  paces: np.ndarray | None = None,
  rounds: int = 12,
) -> Timeline:
  """Rounds of `period` steps; the exchange of a round's last step is merged before the forward pass `delay` steps on.

  All workers share one link, which carries one message at a time to its end. A message leaves when the last worker
  has what it carries, and each worker waits for it before the forward pass of its first layer.

  Args:
    cost: seconds that a message of so many bytes takes.
    bucket: bytes with which a message is full; 0 makes one of each layer, infinity one of all (packed).
    order: "fifo", or "priority": the message that is needed first goes first.
    overlap: without it the exchange begins after the backward pass, and everybody waits for it, whatever the delay.
    paces: [steps, workers] multiples of the step's seconds; without, one worker of constant pace.
    rounds: to simulate, without paces; the second half is measured.

  Raises:
    ValueError: one line, for values that can't be.
  """
  _check_round(period, delay)
  _check_pass(step)
  if order not in ORDERS:
    raise ValueError(f"no order '{order}' of messages; known are {', '.join(ORDERS)}")
  paces = np.ones((rounds * period, 1)) if paces is None else np.asarray(paces, np.float64)
  if paces.ndim != 2 or len(paces) < 2 * period or not (np.isfinite(paces) & (paces > 0)).all():
    raise ValueError(f"paces are [steps, workers], above 0, of at least two rounds; got {list(paces.shape)}")
  rounds = len(paces) // period
  clock, link, events = np.zeros(paces.shape[1]), _Link(ORDERS[order]), []
  needed: dict[tuple[int, int], list[_Message]] = defaultdict(list)  # (step, layer): what its forward pass waits for
  waits, ends = [], []  # (step, layer, from, until); at the end of each round

  def compute(kind: str, number: int, layer: int, seconds: float) -> None:
    nonlocal clock
    before, clock = clock, clock + seconds * paces[number]
    events.append(Event(kind, number, (layer,), before, clock))

  groups = _groups(step.nbytes, bucket)
  for number in range(rounds * period):
    for layer, seconds in enumerate(step.forward):
      for message in needed.pop((number, layer), ()):
        arrived = np.maximum(clock, link.until(message))
        waits.append((number, layer, clock, arrived))
        clock = arrived
      compute("forward", number, layer, seconds)
    last = number % period == period - 1
    for layer in reversed(range(len(step.forward))):
      compute("weights", number, layer, step.weights[layer])
      for group in (g for g in groups if last and overlap and g[0] == layer):
        message = _Message(number, group, cost(sum(step.nbytes[i] for i in group)), clock.max())
        link.pending.append(message)
        needed[number + 1 + delay, layer].append(message)
      compute("inputs", number, layer, step.inputs[layer])
    if last:
      ends.append(clock)
      if not overlap:
        found = [_Message(number, g, cost(sum(step.nbytes[i] for i in g)), clock.max()) for g in groups]
        link.pending += found
        needed[number + 1, 0] += found
  link.until(None)
  return _measured(step, paces, period, waits, ends, link, events)


class _Message(NamedTuple):
  step: int
  layers: tuple[int, ...]
  seconds: float
  ready: float


ORDERS: dict[str, Callable[[_Message], Any]] = {
  "fifo": lambda message: (message.ready, message.step, -message.layers[0]),
  "priority": lambda message: (message.step, message.layers[0]),
}


class _Link:
  """Serves messages when asked for one: what becomes ready later than a wait begins can't overtake it."""

  def __init__(self, order: Callable[[_Message], Any]):
    self.order, self.free, self.pending = order, 0.0, []
    self.sent: list[tuple[_Message, float, float]] = []  # message, start, end
    self.arrived: dict[_Message, float] = {}

  def until(self, message: _Message | None) -> float:
    """When it has arrived; None: all."""
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
  """What the second half of the rounds holds, per round."""
  first, rounds = len(ends) // 2, len(ends)
  count, workers = rounds - first, paces.shape[1]
  edges = np.array([t for _, start, end in link.sent for t in (start, end)] or [0.0])
  worked = np.concatenate([[0.0], np.cumsum(np.diff(edges) * (np.arange(len(edges) - 1) % 2 == 0))])

  def busy(since: np.ndarray, until: np.ndarray) -> float:
    """How long the link worked in between: the mean over the workers, the last axis, of the sums over the others."""
    return float(np.sum(np.interp(until, edges, worked) - np.interp(since, edges, worked))) / workers

  stalls, waited = np.zeros(len(step.forward)), [each for each in waits if each[0] >= first * period]
  for _, layer, since, until in waited:
    stalls[layer] += np.mean(until - since) / count
  exposed = busy(*(np.array([each[i] for each in waited]) for i in (2, 3))) / count
  working = [e for e in events if e.step >= first * period]
  starts, stops = np.array([e.start for e in working]), np.array([e.end for e in working])
  events += [Event("exchange", m.step, m.layers, np.full(workers, a), np.full(workers, b)) for m, a, b in link.sent]
  return Timeline(
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


def _check_round(period: int, delay: int) -> None:
  if period < 1 or not 0 <= delay <= period:
    raise ValueError(f"period is {period} and delay {delay}; a period is at least 1 step, a delay lies in 0..period")


def _check_pass(step: Pass) -> None:
  if len({len(each) for each in step}) != 1 or not len(step.forward):
    raise ValueError(f"a pass needs the same layers in each of its parts; got {[len(each) for each in step]}")
  figures = np.concatenate([np.asarray(each, np.float64) for each in step])
  if not (np.isfinite(figures) & (figures >= 0)).all() or not step.seconds > 0:
    raise ValueError("the seconds and bytes of a pass are finite and not negative, and a step takes time")
