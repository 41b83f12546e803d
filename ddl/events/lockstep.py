"""Virtual time of a collective algorithm: workers wait at an exchange for all that are present, or for neighbours."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ddl import memory
from ddl.errors import OptionError
from ddl.events import arrays, presence
from ddl.events.presence import Presence
from ddl.events.times import Times, not_negative

NONE = (np.nan, np.nan)  # no message
Seconds = float | Callable[[int], float]  # of messages among the workers present, or a function of their number
Hops = tuple[tuple[int | None, ...], ...]  # messages, one after the other: whom each worker hears in each; None: nobody


class ExchangeSeconds(NamedTuple):
  """Messages among all workers."""

  launched: Callable[[int], bool]  # steps -> whether one leaves after them
  delay: int  # steps in flight
  seconds: Seconds  # of one
  hops: Hops = ()  # where each goes from worker to worker: nobody waits for others than those it hears


class StepTimes(NamedTuple):
  """One step of all workers: arrays [workers], seconds from 0; NaN of a worker that is absent.

  Of several steps, as `stack` has them: [steps, ...].
  """

  free: np.ndarray  # the step before ended
  begun: np.ndarray  # it begins, after the messages that it waits for without overlap
  lost: np.ndarray  # seconds lost to a death, before it computes
  done: np.ndarray  # its computing ends
  released: np.ndarray  # the worker goes on, after the messages that it waits for then
  launched: np.ndarray  # [delayed, 2] messages that leave before the step: when they leave and arrive; NaN for none
  met: np.ndarray  # [others, 2] messages that all wait for after the step, likewise; the local step's first


def finish(*, steps: int, **settings: Any) -> np.ndarray:
  """Return when the last worker has finished each step and the exchange that ends it: [steps] seconds; see `walk`."""
  finished = np.empty(max(steps, 0))
  with np.errstate(over="ignore"):  # checked below
    for number, step in enumerate(walk(steps=steps, **settings)):
      finished[number] = np.nanmax(step.released)
  if not np.isfinite(finished).all():
    raise ValueError("the seconds of steps and exchanges overflow a float: give smaller ones")
  return finished


def stack(steps: Iterable[StepTimes]) -> StepTimes:
  """Return one or more steps as one record."""
  return StepTimes(*(np.array(column, np.float64) for column in zip(*steps, strict=True)))


def save(path: str | Path, record: StepTimes) -> None:
  """Write the record as one npz file to exactly this path, atomically."""
  arrays.save(path, record._asdict())


def load(path: str | Path) -> StepTimes:
  """Read what `save` wrote; errors as of `arrays.load`."""
  return StepTimes(**arrays.load(path, dict.fromkeys(StepTimes._fields, np.float64), "steps"))


def walk(
  *,
  workers: int,
  steps: int,
  round_steps: int,
  times: Times,
  exchanges: Sequence[ExchangeSeconds] = (),
  local_seconds: Seconds | None = None,
  overlap: bool = True,
  present: bool | Presence = False,
) -> Iterator[StepTimes]:
  """Yield when each worker computes and waits, step by step.

  A message leaves when the last worker has reached it. Without a delay all wait for it. With a delay each continues and
  waits for it after that many steps; without `overlap` at once. The workers share one link, which carries one message
  at a time. Of an exchange with hops each worker's messages leave when it has reached them, on a link of its own, and
  it waits for those that it receives; while a worker is missing it is as one among all. After a step the collectives of
  `local` come first, then the delayed messages, then the exchanges without a delay, each in the given order.

  Args:
    round_steps: steps of a round, which a worker that dies repeats, and at whose begin workers leave and join.
    exchanges: those that send something.
    local_seconds: of the collectives of each local step; None where it has none.
    present: False: all wait for a worker that dies. True: the others continue, as `presence.elastic` has it; one that
      joins begins when the last of those that stayed has come to the round. A presence: it, without the deaths.

  Raises:
    ValueError: one line, for invalid values.
  """
  for name, value, least in (("workers", workers, 1), ("steps", steps, 0), ("round_steps", round_steps, 1)):
    if value < least:
      raise OptionError(name, f">= {least}", value)
  for each in exchanges:
    not_negative("exchange_seconds", _of(each.seconds, workers))
    if each.delay < 0:
      raise OptionError("delay", ">= 0 steps", each.delay)
  not_negative("local_seconds", _of(local_seconds or 0.0, workers))
  span = min(round_steps, steps)
  memory.require(8 * workers * span, f"a round of {span} steps of {workers} workers")
  late, prompt = [each for each in exchanges if each.delay], [each for each in exchanges if not each.delay]
  in_flight = [deque[tuple[int, np.ndarray]]() for _ in late]  # (the step before which it is waited for, its arrival)
  clock, link = np.zeros(workers), np.zeros(workers)  # when each worker has come so far; when its link is free
  present_now, lost = np.ones(workers, bool), np.zeros(workers)
  attend = presence.waiting(times)
  if present:
    attend = presence.given(present, round_steps) if isinstance(present, Presence) else presence.elastic(times)

  def send(seconds: Seconds, hops: Hops = ()) -> tuple[tuple[float, float], np.ndarray]:
    """((leaves, has arrived), when each worker has what it waits for)."""
    took = _of(seconds, int(present_now.sum()))
    if hops and present_now.all():
      return _pass_on(clock, link, took, hops)
    leaves = max(float(clock[present_now].max()), float(link.max()))
    link[:] = leaves + took
    return (leaves, leaves + took), link.copy()

  for step in range(steps):
    index = step % round_steps
    if index == 0:
      count = min(round_steps, steps - step)
      durations = np.stack([times.steps(worker, step, count) for worker in range(workers)])  # [workers, count]
      before = present_now
      present_now, lost = attend(step, before, clock, durations)
      if not present_now.all() or not before.all():
        begins = clock[present_now & before].max() if step else 0.0
        clock = np.where(present_now, np.where(before, clock, begins), np.nan)
      durations[:, 0] += lost
    free, launched, met = clock, [NONE] * len(late), []
    for i, each in enumerate(late):
      if each.launched(step):
        launched[i], arrived = send(each.seconds, each.hops)
        in_flight[i].append((step + each.delay, arrived))
        clock = clock if overlap else np.maximum(clock, arrived)
    begun = clock
    done = clock = clock + durations[:, index]
    if local_seconds is not None:
      message, arrived = send(local_seconds)
      met.append(message)
      clock = np.where(present_now, arrived, np.nan)
    for queue in in_flight:
      if queue and queue[0][0] == step + 1:
        clock = np.maximum(clock, queue.popleft()[1])
    for each in prompt:
      if each.launched(step + 1):
        message, arrived = send(each.seconds, each.hops)
        met.append(message)
        clock = np.where(present_now, np.maximum(clock, arrived), np.nan)
      else:
        met.append(NONE)
    spans = (np.array(message_spans, np.float64).reshape(-1, 2) for message_spans in (launched, met))
    stopped = np.where(present_now, lost if index == 0 else 0.0, np.nan)
    yield StepTimes(free, begun, stopped, done, clock, *spans)


def _pass_on(clock: np.ndarray, link: np.ndarray, seconds: float, hops: Hops) -> tuple[tuple[float, float], np.ndarray]:
  """`send` from worker to worker; the links, which are changed, are busy with a message of each hop."""
  first, arrived = np.maximum(clock, link), clock.copy()
  for hop in hops:
    sources = np.array([own if source is None else source for own, source in enumerate(hop)])
    heard = sources != np.arange(len(sources))
    link[:] = np.maximum(clock, link)
    link[sources[heard]] += seconds / len(hops)
    arrived = np.where(heard, np.maximum(arrived, link[sources]), arrived)
  return (float(first.min()), float(arrived.max())), arrived


def presence_of(workers: int, steps: Iterable[StepTimes]) -> Presence:
  """Return who is present by the steps of a walk."""
  changes: list[tuple[int, presence.Ids]] = []
  for number, step in enumerate(steps):
    ids = tuple(np.flatnonzero(np.isfinite(step.free)).tolist())
    if not changes or ids != changes[-1][1]:
      changes.append((number, ids))
  return Presence(workers, tuple(changes)) if changes else presence.everyone(workers)


def _of(seconds: Seconds, present: int) -> float:
  return seconds(present) if callable(seconds) else seconds
