"""Virtual time of collective algorithms: at an exchange, a worker waits for all others or only for its neighbors."""

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
Seconds = float | Callable[[int], float]  # a number, or a function of the number of present workers
Hops = tuple[tuple[int | None, ...], ...]  # per permute and worker: the rank from which it receives (None: none)


class ExchangeSeconds(NamedTuple):
  """Timing of one exchange of a collective algorithm (`ddl.api.Exchange`)."""

  launched: Callable[[int], bool]  # number of finished steps -> whether a message is launched
  delay: int  # steps for which a message is in flight
  seconds: Seconds  # per message
  hops: Hops = ()  # for peer-to-peer exchanges: a worker waits only for the workers that it receives from


class StepTimes(NamedTuple):
  """Times of one step, in seconds since the start of the run (except `lost`); `stack` adds a leading axis [steps].

  Arrays have the shape [workers], with NaN for absent workers, unless stated otherwise.
  """

  free: np.ndarray  # end of the previous step
  begun: np.ndarray  # start of the step, after waiting for delayed messages that do not overlap computation
  lost: np.ndarray  # duration: seconds lost to deaths before the step computes
  done: np.ndarray  # end of the step's computation
  released: np.ndarray  # end of the step, after the messages that it waits for
  launched: np.ndarray  # [delayed exchanges, 2]: (launch, arrival) of messages launched before the step; NaN: none
  met: np.ndarray  # [other messages, 2]: (launch, arrival); the local step's collectives come first; NaN: none


def finish(*, steps: int, **settings: Any) -> np.ndarray:
  """Return the time at which the slowest worker finishes each step: seconds [steps]. Takes the arguments of `walk`.

  Raises OptionError if a time overflows a float, and the errors of `walk`.
  """
  finished = np.empty(max(steps, 0))
  with np.errstate(over="ignore"):  # checked below
    for number, step in enumerate(walk(steps=steps, **settings)):
      finished[number] = np.nanmax(step.released)
  if not np.isfinite(finished).all():
    raise OptionError(
      "the total time of steps and exchanges", "a finite float", "an overflow",
      "Decrease the seconds of a step or of an exchange.",
    )  # fmt: skip
  return finished


def stack(steps: Iterable[StepTimes]) -> StepTimes:
  """Stack one or more steps along a leading axis."""
  return StepTimes(*(np.array(column, np.float64) for column in zip(*steps, strict=True)))


def save(path: str | Path, record: StepTimes) -> None:
  """Atomically write the stacked steps as an .npz file to this path, without adding a suffix."""
  arrays.save(path, record._asdict())


def load(path: str | Path) -> StepTimes:
  """Load steps written by `save`. Raises the errors of `arrays.load`."""
  return StepTimes(**arrays.load(path, dict.fromkeys(StepTimes._fields, np.float64), "steps"))


def walk(
  *,
  workers: int,
  steps: int,
  round_steps: int,
  times: Times,
  exchanges: Sequence[ExchangeSeconds] = (),
  local_seconds: Seconds | None = None,
  local_lead: float = 0.0,
  overlap: bool = True,
  present: bool | Presence = False,
  takes_step: Callable[[Any, Any], Any] | None = None,
) -> Iterator[StepTimes]:
  """Yield, for each step, the times at which the workers compute and wait.

  A message is launched when the last worker reaches the exchange. Without a delay all workers wait for it. With a delay
  they continue and wait for it that many steps later; without `overlap` they wait immediately. The workers share one
  link, which carries one message at a time. In an exchange with `hops` (peer-to-peer) each worker has its own link,
  sends when it reaches the exchange, and waits only for the messages that it receives; while any worker is absent, such
  an exchange is timed like one without `hops`. After a step the collectives of the local step come first, then the
  delayed messages, then the exchanges without a delay, each in the order of `exchanges`.

  Args:
    round_steps: steps of a round. A worker that dies repeats its round; workers leave and join between rounds.
    times: step times and deaths.
    exchanges: the exchanges that send something.
    local_seconds: seconds of the collectives in each local step; None: a local step has none.
    local_lead: seconds by which these collectives start before the last worker ends its step, because gradients are
      sent layer by layer during the backward pass.
    overlap: whether delayed messages overlap computation.
    present: False: all workers wait for a worker that dies. True: the others continue, as in `presence.elastic`; a
      worker that joins starts when the last remaining worker reaches the round. A `Presence`: a recorded membership,
      which replaces the deaths.
    takes_step: (worker, step) -> whether the worker takes the step; a step that it does not take lasts no time. None:
      all workers take all steps.

  Raises:
    ValueError: with a one-line message, if a value is invalid or a round does not fit into memory.
  """
  for name, value, least in (("workers", workers, 1), ("steps", steps, 0), ("round_steps", round_steps, 1)):
    if value < least:
      raise OptionError(name, f">= {least}", value)
  for exchange in exchanges:
    not_negative("exchange_seconds", _evaluate(exchange.seconds, workers))
    if exchange.delay < 0:
      raise OptionError("delay", ">= 0 steps", exchange.delay)
  not_negative("local_seconds", _evaluate(local_seconds or 0.0, workers))
  not_negative("local_lead", local_lead)
  span = min(round_steps, steps)
  memory.require(8 * workers * span, f"a round of {span} steps of {workers} workers")
  late, prompt = [x for x in exchanges if x.delay], [x for x in exchanges if not x.delay]
  in_flight = [deque[tuple[int, np.ndarray]]() for _ in late]  # (step that waits for a message, arrival)
  clock, link = np.zeros(workers), np.zeros(workers)  # the time of each worker; when its link is free
  present_now, lost = np.ones(workers, bool), np.zeros(workers)
  attend = presence.waiting(times)
  if present:
    attend = presence.replayed(present, round_steps) if isinstance(present, Presence) else presence.elastic(times)

  def send(seconds: Seconds, hops: Hops = (), lead: float = 0.0) -> tuple[tuple[float, float], np.ndarray]:
    """Send a message to all or along `hops`; return ((launch, arrival), last arrival at each worker [workers])."""
    duration = _evaluate(seconds, int(present_now.sum()))
    if hops and present_now.all():
      return _pass_on(clock, link, duration, hops)
    leaves = max(float(clock[present_now].max()) - lead, float(link.max()))
    link[:] = leaves + duration
    return (leaves, leaves + duration), link.copy()

  for step in range(steps):
    index = step % round_steps
    if index == 0:
      count = min(round_steps, steps - step)
      durations = np.stack([times.steps(worker, step, count) for worker in range(workers)])  # [workers, count]
      if takes_step:
        durations *= takes_step(np.arange(workers)[:, None], np.arange(step, step + count))
      before = present_now
      present_now, lost = attend(step, before, clock, durations)
      if not present_now.all() or not before.all():
        begins = clock[present_now & before].max() if step else 0.0
        clock = np.where(present_now, np.where(before, clock, begins), np.nan)
      durations[:, 0] += lost
    free, launched, met = clock, [NONE] * len(late), []
    for i, exchange in enumerate(late):
      if exchange.launched(step):
        launched[i], arrived = send(exchange.seconds, exchange.hops)
        in_flight[i].append((step + exchange.delay, arrived))
        clock = clock if overlap else np.maximum(clock, arrived)
    begun = clock
    done = clock = clock + durations[:, index]
    if local_seconds is not None:
      message, arrived = send(local_seconds, lead=local_lead)
      met.append(message)
      clock = np.where(present_now, np.maximum(arrived, np.nanmax(clock)), np.nan)
    for queue in in_flight:
      if queue and queue[0][0] == step + 1:
        clock = np.maximum(clock, queue.popleft()[1])
    for exchange in prompt:
      if exchange.launched(step + 1):
        message, arrived = send(exchange.seconds, exchange.hops)
        met.append(message)
        clock = np.where(present_now, np.maximum(clock, arrived), np.nan)
      else:
        met.append(NONE)
    spans = (np.array(message_spans, np.float64).reshape(-1, 2) for message_spans in (launched, met))
    stopped = np.where(present_now, lost if index == 0 else 0.0, np.nan)
    yield StepTimes(free, begun, stopped, done, clock, *spans)


def _pass_on(clock: np.ndarray, link: np.ndarray, seconds: float, hops: Hops) -> tuple[tuple[float, float], np.ndarray]:
  """Send messages along `hops`; update `link` in place. Return ((first launch, last arrival), arrivals [workers])."""
  first, arrived = np.maximum(clock, link), clock.copy()
  for hop in hops:
    sources = np.array([rank if source is None else source for rank, source in enumerate(hop)])
    receives = sources != np.arange(len(sources))
    link[:] = np.maximum(clock, link)
    link[sources[receives]] += seconds / len(hops)
    arrived = np.where(receives, np.maximum(arrived, link[sources]), arrived)
  return (float(first.min()), float(arrived.max())), arrived


def presence_of(workers: int, steps: Iterable[StepTimes]) -> Presence:
  """Return the membership during the steps of `walk`; workers with NaN times are absent."""
  changes: list[tuple[int, presence.Ids]] = []
  for number, step in enumerate(steps):
    ids = tuple(np.flatnonzero(np.isfinite(step.free)).tolist())
    if not changes or ids != changes[-1][1]:
      changes.append((number, ids))
  return Presence(workers, tuple(changes)) if changes else presence.everyone(workers)


def _evaluate(seconds: Seconds, present: int) -> float:
  return seconds(present) if callable(seconds) else seconds
