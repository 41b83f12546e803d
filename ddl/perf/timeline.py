"""Simulate a step layer by layer, with gradients that are sent during the backward pass on one link.

The link carries one message at a time. As in arXiv 1602.06709, the gradients of layer i take cost_i seconds to send and
arrive at done_i = max(link free, weight gradient i computed) + cost_i, and the layer's next forward pass starts at
max(worker free, done_i). A layer's weight gradient is computed before its input gradient, so its message starts early.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

STEPS = 4  # simulated steps; the means are over the second half


class Pass(NamedTuple):
  """Seconds and message bytes of each layer in a worker's step, in the order of the forward pass."""

  forward: Sequence[float]  # seconds of the forward pass
  weights: Sequence[float]  # seconds of the weight gradient
  inputs: Sequence[float]  # seconds of the input gradient
  nbytes: Sequence[float]  # bytes of the layer's message; 0: none

  @property
  def seconds(self) -> float:
    """Seconds of the step without any message."""
    return float(sum(self.forward) + sum(self.weights) + sum(self.inputs))


class TimelineEvent(NamedTuple):
  """A layer's computation, a wait for its message, or the message with the gradients of some layers."""

  kind: str  # "forward", "weights", "inputs", "wait" or "message"
  step: int  # for a message, the step of its gradients
  layers: tuple[int, ...]
  start: float  # seconds
  end: float


class Timeline(NamedTuple):
  """The result of `simulate`: mean seconds per step in the steady state, and the events of all simulated steps."""

  seconds: float
  exposed: float  # part of `seconds` in which the worker waits for messages
  hidden: float  # seconds per step for which messages are sent while the worker computes
  events: list[TimelineEvent]

  @property
  def sent(self) -> float:
    """Seconds for which the link sends the messages of a step."""
    return self.exposed + self.hidden


def simulate(step: Pass, cost: Callable[[float], float], *, bucket: float = 0.0, overlap: bool = True) -> Timeline:
  """Simulate steps that send gradients layer by layer during the backward pass.

  A message can be sent as soon as the weight gradient of its first layer is computed. The forward pass of this layer in
  the next step waits for the message.

  Args:
    step: seconds and bytes of the layers.
    cost: bytes of gradients -> seconds of their message.
    bucket: bytes at which a message is sent; 0: one message per layer, infinity: one message for all layers.
    overlap: whether messages overlap the backward pass; False: send them after it, and wait for all of them.
  """
  events, messages, now, free = list[TimelineEvent](), list[TimelineEvent](), 0.0, 0.0
  groups = _groups(step.nbytes, bucket)
  seconds = {group: cost(sum(step.nbytes[i] for i in group)) for group in groups}
  arrivals = dict[int, list[float]]()  # layer whose forward pass waits -> arrivals of messages of the previous step
  waits, ends = [0.0] * STEPS, list[float]()

  def send(number: int, group: tuple[int, ...]) -> float:
    nonlocal free
    start = max(free, now)
    free = start + seconds[group]
    messages.append(TimelineEvent("message", number, group, start, free))
    return free

  def compute(kind: str, number: int, layer: int, duration: float) -> None:
    nonlocal now
    events.append(TimelineEvent(kind, number, (layer,), now, now + duration))
    now += duration

  for number in range(STEPS):
    for layer, duration in enumerate(step.forward):
      for arrival in arrivals.get(layer, ()):
        arrived = max(now, arrival)
        events.append(TimelineEvent("wait", number, (layer,), now, arrived))
        waits[number] += arrived - now
        now = arrived
      compute("forward", number, layer, duration)
    arrivals = {}
    waiting = list(groups)
    for layer in reversed(range(len(step.forward))):
      compute("weights", number, layer, step.weights[layer])
      if overlap and waiting and waiting[0][0] == layer:
        arrivals[layer] = [send(number, waiting.pop(0))]
      compute("inputs", number, layer, step.inputs[layer])
    if waiting:
      arrivals[0] = [send(number, group) for group in waiting]
    ends.append(now)
  sent, half = sum(seconds.values()), STEPS // 2
  exposed = sum(waits[half:]) / half
  mean = (ends[-1] - ends[half - 1]) / half
  return Timeline(mean, exposed, max(0.0, sent - exposed), [*events, *messages])


def _groups(nbytes: Sequence[float], bucket: float) -> list[tuple[int, ...]]:
  """Group layers, from last to first, into messages of at least `bucket` bytes; each group is in forward order."""
  groups, gathered = [], []
  for layer in reversed([i for i, n in enumerate(nbytes) if n > 0]):
    gathered.insert(0, layer)
    if sum(nbytes[i] for i in gathered) >= bucket:
      groups.append(tuple(gathered))
      gathered = []
  return [*groups, tuple(gathered)] if gathered else groups
