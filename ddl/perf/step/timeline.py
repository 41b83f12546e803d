"""The time of a round whose messages travel beside computation: means over the steady state of `event_model`."""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from ddl.perf import checks
from ddl.perf.step.event_model import ORDERS, Event, Exchange, Link, Pass, Workers


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


MOST = 2000  # steps of a round


def round_steps(exchanges: Sequence[Exchange]) -> int:
  """Steps after which all clocks repeat; the longest period where that takes more than MOST."""
  length = math.lcm(*(each.period for each in exchanges))
  return length if length <= MOST else max(each.period for each in exchanges)


def warm_up(exchanges: Sequence[Exchange]) -> int:
  """Rounds until the steady state; a queue of several messages takes several to fill."""
  several = len(exchanges) > 1 or any(each.delay > each.period for each in exchanges)
  steps = max((each.period + each.offset + (20 if several else 1) * each.delay for each in exchanges), default=0)
  return 1 + max(1, math.ceil(steps / round_steps(exchanges)))


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
  _check(step, exchanges, order)
  period = round_steps(exchanges)
  if paces is None:
    paces = np.ones((warm_up(exchanges) * 2 * period, 1))
  paces = _whole_rounds(np.asarray(paces, np.float64), period)
  link, groups, ends = Link(order), _groups(step.nbytes, bucket), list[np.ndarray]()
  workers = Workers(step, exchanges, paces, link, overlap)
  workers.exchange(-1)
  for number in range(len(paces)):
    workers.forward(number)
    workers.backward(number, groups, cost)
    workers.exchange(number)
    if number % period == period - 1:
      ends.append(workers.clock)
  link.until(None)
  return _measured(workers, period, ends)


def _measured(run: Workers, period: int, ends: Sequence[np.ndarray]) -> Timeline:
  """Return the means per round over the second half of the rounds. ends: of each round, [workers] seconds."""
  first, rounds = len(ends) // 2, len(ends)
  count, workers, sent = rounds - first, run.paces.shape[1], run.link.sent
  edges = np.array([t for _, start, end in sent for t in (start, end)] or [0.0])
  worked = np.concatenate([[0.0], np.cumsum(np.diff(edges) * (np.arange(len(edges) - 1) % 2 == 0))])

  def busy(since: np.ndarray, until: np.ndarray) -> float:
    """Seconds of a busy link in between: the mean over the workers (last axis) of the sums over the others."""
    return float(np.sum(np.interp(until, edges, worked) - np.interp(since, edges, worked))) / workers

  stalls, waits = np.zeros(len(run.step.forward)), [each for each in run.waits if each.step >= first * period]
  for wait in waits:
    stalls[wait.layer] += np.mean(wait.end - wait.start) / count
  exposed = busy(np.array([each.start for each in waits]), np.array([each.end for each in waits])) / count
  working = [each for each in run.events if each.step >= first * period]
  starts, stops = np.array([each.start for each in working]), np.array([each.end for each in working])
  messages = [Event("exchange", m.step, m.layers, np.full(workers, a), np.full(workers, b)) for m, a, b in sent]
  return Timeline(
    steps=period,
    seconds=float(np.mean(ends[-1] - ends[first - 1])) / count,
    computing=float(np.sum(stops - starts)) / (workers * count),
    exposed=exposed,
    hidden=busy(starts, stops) / count,
    straggling=float(stalls.sum()) - exposed,
    stalls=stalls,
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


def _whole_rounds(paces: np.ndarray, period: int) -> np.ndarray:
  """The paces without those of a last round that is not whole. ValueError for invalid ones."""
  if paces.ndim != 2 or len(paces) < 2 * period or not (np.isfinite(paces) & (paces > 0)).all():
    raise ValueError(f"invalid paces {list(paces.shape)}: must be [steps, workers], above 0, of at least two rounds")
  return paces[: len(paces) // period * period]


def _check(step: Pass, exchanges: Sequence[Exchange], order: str) -> None:
  for each in exchanges:
    checks.count("period", each.period)
    checks.count("delay", each.delay, 0)
  if len({len(each) for each in step}) != 1 or not len(step.forward):
    raise ValueError(f"invalid pass of {[len(each) for each in step]} layers: must have the same in each of its parts")
  figures = np.concatenate([np.asarray(each, np.float64) for each in step])
  if not (np.isfinite(figures) & (figures >= 0)).all() or not step.seconds > 0:
    raise ValueError("invalid pass: seconds and bytes must be finite and 0 or more, and a step above 0 s")
  if order not in ORDERS:
    raise ValueError(f"unknown order '{order}' of messages; known are {', '.join(ORDERS)}")
