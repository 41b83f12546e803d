"""The time of a round whose messages travel beside computation: an event model of layers and a link, and its mean.

Workers compute layer by layer, and a link carries their messages one at a time. After arXiv 1602.06709:
done_i = max(link free, t_dW_i) + cost_i; forward_i starts at max(t, done_i). The gradient of a layer's weights comes
before that of its inputs, so that its exchange starts early.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from ddl.errors import OptionError
from ddl.perf import units


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


class TimelineExchange(NamedTuple):
  """A message of all parameters, launched after offset + period, offset + 2 period, ... steps."""

  seconds: float
  period: int = 1  # steps
  delay: int = 0  # steps in flight
  offset: int = 0

  def launched(self, step: int) -> bool:
    """Whether it is launched after so many steps."""
    return step >= self.offset + self.period and (step - self.offset) % self.period == 0


class TimelineEvent(NamedTuple):
  """Work on a layer (forward, weights, inputs), its wait, or an exchange of some layers."""

  kind: str
  step: int  # for an exchange the one whose gradients it carries
  layers: tuple[int, ...]
  start: np.ndarray  # [workers] seconds
  end: np.ndarray


class Message(NamedTuple):
  """Gradients of some layers, or all parameters."""

  number: int  # in the order in which they are launched
  step: int
  layers: tuple[int, ...]
  seconds: float
  ready: float
  due: tuple[int, int]  # step and layer whose forward pass waits for it


ORDERS: dict[str, Callable[[Message], Any]] = {
  "fifo": lambda message: (message.ready, message.number),
  "priority": lambda message: (message.due, message.number),
}


class MessageQueue:
  """A link with one message at a time, chosen when a worker waits: none overtakes the one in service."""

  def __init__(self, order: str):
    self.order, self.free, self.pending = ORDERS[order], 0.0, list[Message]()
    self.sent: list[tuple[Message, float, float]] = []  # message, start, end
    self.arrived: dict[Message, float] = {}

  def until(self, message: Message | None) -> float:
    """Return the arrival time of a message, in seconds; None: of all."""
    while self.pending and message not in self.arrived:
      now = max(self.free, min(each.ready for each in self.pending))
      first = min((each for each in self.pending if each.ready <= now), key=self.order)
      self.pending.remove(first)
      self.free = now + first.seconds
      self.sent.append((first, now, self.free))
      self.arrived[first] = self.free
    return self.arrived[message] if message else self.free


class SimulatedWorkers:
  """All workers, step by step: `forward`, `backward` and `exchange` of each."""

  def __init__(
    self, step: Pass, exchanges: Sequence[TimelineExchange], paces: np.ndarray, link: MessageQueue, overlap: bool
  ):
    """paces: [steps, workers] multiples of the step's seconds; overlap: messages travel beside computation."""
    self.step, self.exchanges, self.paces, self.link, self.overlap = step, exchanges, paces, link, overlap
    self.clock = np.zeros(paces.shape[1])  # [workers] seconds
    self.events = list[TimelineEvent]()
    self._needed: dict[tuple[int, int], list[Message]] = defaultdict(list)  # by (step, layer): `Message.due`

  def forward(self, number: int) -> None:
    """Compute each layer when its messages have arrived."""
    for layer, seconds in enumerate(self.step.forward):
      for message in self._needed.pop((number, layer), ()):
        arrived = np.maximum(self.clock, self.link.until(message))
        self.events.append(TimelineEvent("wait", number, (layer,), self.clock, arrived))
        self.clock = arrived
      self._compute("forward", number, layer, seconds)

  def backward(self, number: int, groups: Sequence[tuple[int, ...]], cost: Callable[[float], float]) -> None:
    """Compute the gradients and send those of each group of layers: with its first one's, or after the pass."""
    step = self.step

    def send(group: tuple[int, ...]) -> None:
      self._send(number, group, cost(sum(step.nbytes[i] for i in group)), (number + 1, group[0]))

    for layer in reversed(range(len(step.forward))):
      self._compute("weights", number, layer, step.weights[layer])
      for group in (g for g in groups if self.overlap and g[0] == layer):
        send(group)
      self._compute("inputs", number, layer, step.inputs[layer])
    for group in groups if not self.overlap else ():
      send(group)

  def exchange(self, number: int) -> None:
    """Send what is launched after `number` + 1 steps, first that which the workers wait for."""
    for each in sorted(self.exchanges, key=lambda each: each.delay > 0):
      if each.launched(number + 1):
        self._send(number, tuple(range(len(self.step.forward))), each.seconds, (number + 1 + each.delay, 0))

  def _compute(self, kind: str, number: int, layer: int, seconds: float) -> None:
    before, self.clock = self.clock, self.clock + seconds * self.paces[number]
    self.events.append(TimelineEvent(kind, number, (layer,), before, self.clock))

  def _send(self, number: int, layers: tuple[int, ...], seconds: float, due: tuple[int, int]) -> None:
    due = due if self.overlap else (number + 1, 0)
    launched = len(self.link.sent) + len(self.link.pending)
    message = Message(launched, number, layers, seconds, float(self.clock.max()), due)
    self.link.pending.append(message)
    self._needed[due].append(message)


class Timeline(NamedTuple):
  """Seconds per round in the steady state, means over the workers, and all events."""

  steps: int  # of a round
  seconds: float
  exposed: float  # the link works and the worker waits; hidden + exposed is the time of the messages
  hidden: float  # the link works and so does the worker
  events: list[TimelineEvent]


MOST = 2000  # steps of a round


def round_steps(exchanges: Sequence[TimelineExchange]) -> int:
  """Steps after which all clocks repeat; the longest period where that takes more than MOST."""
  length = math.lcm(*(each.period for each in exchanges))
  return length if length <= MOST else max(each.period for each in exchanges)


def warm_up(exchanges: Sequence[TimelineExchange]) -> int:
  """Rounds until the steady state; a queue of several messages takes several to fill."""
  several = len(exchanges) > 1 or any(each.delay > each.period for each in exchanges)
  steps = max((each.period + each.offset + (20 if several else 1) * each.delay for each in exchanges), default=0)
  return 1 + max(1, math.ceil(steps / round_steps(exchanges)))


def simulate(
  step: Pass, cost: Callable[[float], float], exchanges: Sequence[TimelineExchange] = (), *, bucket: float = 0.0,
  order: str = "fifo", overlap: bool = True, paces: np.ndarray | None = None,
) -> Timeline:  # fmt: skip
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
  """
  _check(step, exchanges, order)
  period = round_steps(exchanges)
  if paces is None:
    paces = np.ones((warm_up(exchanges) * 2 * period, 1))
  if paces.ndim != 2 or len(paces) < 2 * period or not (np.isfinite(paces) & (paces > 0)).all():
    raise OptionError("paces", "[steps, workers], above 0, of at least two rounds", list(paces.shape))
  paces = np.asarray(paces[: len(paces) // period * period], np.float64)  # whole rounds
  link, groups, ends = MessageQueue(order), _groups(step.nbytes, bucket), list[np.ndarray]()
  workers = SimulatedWorkers(step, exchanges, paces, link, overlap)
  workers.exchange(-1)
  for number in range(len(paces)):
    workers.forward(number)
    workers.backward(number, groups, cost)
    workers.exchange(number)
    if number % period == period - 1:
      ends.append(workers.clock)
  link.until(None)
  return _measured(workers, period, ends)


def _measured(run: SimulatedWorkers, period: int, ends: Sequence[np.ndarray]) -> Timeline:
  """Return the means per round over the second half of the rounds. ends: of each round, [workers] seconds."""
  first, workers, sent = len(ends) // 2, run.paces.shape[1], run.link.sent
  count = len(ends) - first
  edges = np.array([t for _, start, end in sent for t in (start, end)] or [0.0])
  worked = np.concatenate([[0.0], np.cumsum(np.diff(edges) * (np.arange(len(edges) - 1) % 2 == 0))])

  def busy(events: Sequence[TimelineEvent]) -> float:
    """Return the seconds of a round in which the link is busy during these events of the measured rounds."""
    late = [event for event in events if event.step >= first * period]
    start, end = np.array([event.start for event in late]), np.array([event.end for event in late])
    return float(np.sum(np.interp(end, edges, worked) - np.interp(start, edges, worked))) / workers / count

  messages = [TimelineEvent("exchange", m.step, m.layers, np.full(workers, a), np.full(workers, b)) for m, a, b in sent]
  return Timeline(
    steps=period,
    seconds=float(np.mean(ends[-1] - ends[first - 1])) / count,
    exposed=busy([event for event in run.events if event.kind == "wait"]),
    hidden=busy([event for event in run.events if event.kind != "wait"]),
    events=[*run.events, *messages],
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


def _check(step: Pass, exchanges: Sequence[TimelineExchange], order: str) -> None:
  for each in exchanges:
    units.count("period", each.period)
    units.count("delay", each.delay, 0)
  if len({len(each) for each in step}) != 1 or not len(step.forward):
    raise OptionError("numbers of layers of a pass", "equal and above 0", [len(each) for each in step])
  figures = np.concatenate([np.asarray(each, np.float64) for each in step])
  if not (np.isfinite(figures) & (figures >= 0)).all() or not step.seconds > 0:
    raise OptionError("seconds and bytes of a pass", "finite and 0 or more, and those of a step above 0 s")
  units.choice("order", order, ORDERS)
