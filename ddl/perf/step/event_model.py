"""Workers that compute layer by layer, and a link that carries their messages one at a time.

After arXiv 1602.06709: done_i = max(link free, t_dW_i) + cost_i; forward_i starts at max(t, done_i). The gradient of a
layer's weights comes before that of its inputs, so that its exchange starts early.
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


class Wait(NamedTuple):
  """The wait of a layer's forward pass for a message."""

  step: int
  layer: int
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


class Link:
  """One message at a time, chosen when a worker waits: later messages never overtake the one in service."""

  def __init__(self, order: str):
    """order: of ORDERS."""
    self.order, self.free, self.pending = ORDERS[order], 0.0, list[Message]()
    self.sent: list[tuple[Message, float, float]] = []  # message, start, end
    self.arrived: dict[Message, float] = {}

  def until(self, message: Message | None) -> float:
    """Return the arrival time of a message, in seconds; None: of all."""
    while self.pending and message not in self.arrived:
      now = max(self.free, min(each.ready for each in self.pending))
      chosen = min((each for each in self.pending if each.ready <= now), key=self.order)
      self.pending.remove(chosen)
      self.free = now + chosen.seconds
      self.sent.append((chosen, now, self.free))
      self.arrived[chosen] = self.free
    return self.arrived[message] if message else self.free


class Workers:
  """All workers, step by step: `forward`, `backward` and `exchange` of each."""

  def __init__(self, step: Pass, exchanges: Sequence[Exchange], paces: np.ndarray, link: Link, overlap: bool):
    """paces: [steps, workers] multiples of the step's seconds; overlap: messages travel beside computation."""
    self.step, self.exchanges, self.paces, self.link, self.overlap = step, exchanges, paces, link, overlap
    self.clock = np.zeros(paces.shape[1])  # [workers] seconds
    self.events, self.waits = list[Event](), list[Wait]()
    self._needed: dict[tuple[int, int], list[Message]] = defaultdict(list)  # by (step, layer): `Message.due`

  def forward(self, number: int) -> None:
    """Compute each layer when its messages have arrived."""
    for layer, seconds in enumerate(self.step.forward):
      for message in self._needed.pop((number, layer), ()):
        arrived = np.maximum(self.clock, self.link.until(message))
        self.waits.append(Wait(number, layer, self.clock, arrived))
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
    self.events.append(Event(kind, number, (layer,), before, self.clock))

  def _send(self, number: int, layers: tuple[int, ...], seconds: float, due: tuple[int, int]) -> None:
    due = due if self.overlap else (number + 1, 0)
    launched = len(self.link.sent) + len(self.link.pending)
    message = Message(launched, number, layers, seconds, float(self.clock.max()), due)
    self.link.pending.append(message)
    self._needed[due].append(message)
