"""Simulate rounds with messages that overlap computation, as an event model of layers and one link.

Workers compute layer by layer, and the link carries one message at a time. After arXiv 1602.06709:
done_i = max(link free, t_dW_i) + cost_i; forward_i starts at max(t, done_i). A layer's weight gradient is computed
before its input gradient, so that its exchange starts early.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from ddl.errors import OptionError
from ddl.perf import units


class Pass(NamedTuple):
  """One step of one worker; sequences are over the layers in the order of the forward pass."""

  forward: Sequence[float]  # seconds of the forward pass
  weights: Sequence[float]  # seconds of the weight gradient
  inputs: Sequence[float]  # seconds of the input gradient
  nbytes: Sequence[float]  # bytes of the layer's message; 0: none

  @property
  def seconds(self) -> float:
    """Seconds of the step without any exchange."""
    return float(sum(self.forward) + sum(self.weights) + sum(self.inputs))


class TimelineExchange(NamedTuple):
  """An exchange of all parameters, launched after offset + period, offset + 2 period, ... steps."""

  seconds: float
  period: int = 1  # steps
  delay: int = 0  # steps in flight
  offset: int = 0

  def launched(self, step: int) -> bool:
    """Return whether the exchange is launched after `step` steps."""
    return step >= self.offset + self.period and (step - self.offset) % self.period == 0


class TimelineEvent(NamedTuple):
  """A layer's computation, a wait for its message, or an exchange of some layers."""

  kind: str  # "forward", "weights", "inputs", "wait" or "exchange"
  step: int  # for an exchange, the step of its gradients
  layers: tuple[int, ...]
  start: np.ndarray  # [workers] seconds
  end: np.ndarray


class Message(NamedTuple):
  """A message with the gradients of some layers or with all parameters."""

  number: int  # in launch order
  step: int
  layers: tuple[int, ...]
  seconds: float
  ready: float  # when it can be sent, in seconds
  due: tuple[int, int]  # (step, layer) of the forward pass that waits for it


ORDERS: dict[str, Callable[[Message], Any]] = {
  "fifo": lambda message: (message.ready, message.number),
  "priority": lambda message: (message.due, message.number),
}


class MessageQueue:
  """A link that carries one message at a time; the next message is chosen lazily, when a worker waits."""

  def __init__(self, order: str):
    self.order, self.free, self.pending = ORDERS[order], 0.0, list[Message]()
    self.sent: list[tuple[Message, float, float]] = []  # message, start, end
    self.arrived: dict[Message, float] = {}

  def arrival(self, message: Message | None) -> float:
    """Return the arrival time in seconds of a message, or of the last message for None."""
    while self.pending and message not in self.arrived:
      now = max(self.free, min(x.ready for x in self.pending))
      first = min((x for x in self.pending if x.ready <= now), key=self.order)
      self.pending.remove(first)
      self.free = now + first.seconds
      self.sent.append((first, now, self.free))
      self.arrived[first] = self.free
    return self.arrived[message] if message else self.free


class SimulatedWorkers:
  """The workers of a simulation, driven by calls of `forward`, `backward` and `exchange` in each step."""

  def __init__(
    self, step: Pass, exchanges: Sequence[TimelineExchange], paces: np.ndarray, link: MessageQueue, overlap: bool
  ):
    """Start all workers at 0 seconds.

    Args:
      step: one step of one worker.
      exchanges: exchanges of all parameters.
      paces: multiples of the step's seconds, [steps, workers].
      link: the link that all workers share.
      overlap: whether messages overlap computation.
    """
    self.step, self.exchanges, self.paces, self.link, self.overlap = step, exchanges, paces, link, overlap
    self.clock = np.zeros(paces.shape[1])  # [workers] seconds
    self.events = list[TimelineEvent]()
    self._needed: dict[tuple[int, int], list[Message]] = defaultdict(list)  # by (step, layer): `Message.due`

  def forward(self, number: int) -> None:
    """Compute the forward pass; each layer waits for its messages."""
    for layer, seconds in enumerate(self.step.forward):
      for message in self._needed.pop((number, layer), ()):
        arrived = np.maximum(self.clock, self.link.arrival(message))
        self.events.append(TimelineEvent("wait", number, (layer,), self.clock, arrived))
        self.clock = arrived
      self._compute("forward", number, layer, seconds)

  def backward(self, number: int, groups: Sequence[tuple[int, ...]], cost: Callable[[float], float]) -> None:
    """Compute the gradients; send each group when its first layer is done, or at the end without overlap."""
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
    """Launch the exchanges that are due after `number` + 1 steps, those without a delay first."""
    for exchange in sorted(self.exchanges, key=lambda x: x.delay > 0):
      if exchange.launched(number + 1):
        self._send(number, tuple(range(len(self.step.forward))), exchange.seconds, (number + 1 + exchange.delay, 0))

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
  """The result of a simulation: mean seconds per round over the workers in the steady state, and all events."""

  steps: int  # per round
  seconds: float  # per round
  exposed: float  # seconds in which the link is busy and the worker waits
  hidden: float  # seconds in which the link is busy and the worker computes
  events: list[TimelineEvent]


MOST = 2000  # largest number of steps of a round


def round_steps(exchanges: Sequence[TimelineExchange]) -> int:
  """Return the number of steps after which all exchanges repeat, or the longest period if that exceeds MOST."""
  length = math.lcm(*(exchange.period for exchange in exchanges))
  return length if length <= MOST else max(exchange.period for exchange in exchanges)


def warm_up(exchanges: Sequence[TimelineExchange]) -> int:
  """Return the number of rounds until the steady state; queues of several messages take longer to fill."""
  several = len(exchanges) > 1 or any(x.delay > x.period for x in exchanges)
  steps = max((x.period + x.offset + (20 if several else 1) * x.delay for x in exchanges), default=0)
  return 1 + max(1, math.ceil(steps / round_steps(exchanges)))


def simulate(
  step: Pass, cost: Callable[[float], float], exchanges: Sequence[TimelineExchange] = (), *, bucket: float = 0.0,
  order: str = "fifo", overlap: bool = True, paces: np.ndarray | None = None,
) -> Timeline:  # fmt: skip
  """Simulate steps that send gradients layer by layer during the backward pass, and the exchanges between them.

  All workers share one link, which carries one message at a time without preemption. A message is sent when the last
  worker has its content. Each worker waits for gradients before the forward pass of their first layer in the next step,
  and for an exchange before the step that follows `delay` steps later.

  Args:
    step: one step of one worker.
    cost: bytes of gradients -> seconds of their message.
    exchanges: exchanges of all parameters.
    bucket: bytes at which a message is sent; 0: one message per layer, infinity: one message for all layers.
    order: "fifo", or "priority": the message that is needed first is sent first.
    overlap: False: messages are sent after the backward pass, and all workers wait for them, regardless of the delay.
    paces: [steps, workers] multiples of the step's seconds, of which the second half is measured; None: one worker
      with constant pace 1.
  """
  _check(step, exchanges, order)
  period = round_steps(exchanges)
  if paces is None:
    paces = np.ones((warm_up(exchanges) * 2 * period, 1))
  if paces.ndim != 2 or len(paces) < 2 * period or not (np.isfinite(paces) & (paces > 0)).all():
    raise OptionError(
      "paces", f"an array [steps, workers] with at least {2 * period} steps, all > 0", f"shape {list(paces.shape)}"
    )
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
  link.arrival(None)
  return _measured(workers, period, ends)


def _measured(run: SimulatedWorkers, period: int, ends: Sequence[np.ndarray]) -> Timeline:
  """Compute the means over the second half of the rounds; `ends` are the ends of all rounds, [workers] seconds."""
  first, workers, sent = len(ends) // 2, run.paces.shape[1], run.link.sent
  count = len(ends) - first
  edges = np.array([t for _, start, end in sent for t in (start, end)] or [0.0])
  worked = np.concatenate([[0.0], np.cumsum(np.diff(edges) * (np.arange(len(edges) - 1) % 2 == 0))])

  def busy(events: Sequence[TimelineEvent]) -> float:
    """Return the seconds per round in which the link is busy during these events."""
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
  """Group layers into messages of >= `bucket` bytes from the last layer to the first; a group is in forward order."""
  groups, gathered = [], []
  for layer in reversed([i for i, n in enumerate(nbytes) if n > 0]):
    gathered.insert(0, layer)
    if sum(nbytes[i] for i in gathered) >= bucket:
      groups.append(tuple(gathered))
      gathered = []
  return [*groups, tuple(gathered)] if gathered else groups


def _check(step: Pass, exchanges: Sequence[TimelineExchange], order: str) -> None:
  for exchange in exchanges:
    units.count("period", exchange.period)
    units.count("delay", exchange.delay, 0)
  if len({len(values) for values in step}) != 1 or not len(step.forward):
    raise OptionError("numbers of layers in the sequences of a pass", "equal and > 0", [len(values) for values in step])
  figures = np.concatenate([np.asarray(values, np.float64) for values in step])
  if not (np.isfinite(figures) & (figures >= 0)).all() or not step.seconds > 0:
    raise OptionError("seconds and bytes of a pass", "finite and >= 0, with a total above 0 seconds")
  units.choice("order", order, ORDERS)
