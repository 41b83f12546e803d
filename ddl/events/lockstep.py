"""The clock of a synchronous algorithm on the same step times: all workers wait for each other at every exchange."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ddl import memory
from ddl.events import arrays
from ddl.events.faults import not_negative
from ddl.events.times import Times


class Step(NamedTuple):
  """One step of all workers: arrays [workers], seconds from 0. Of several steps, as `stack` has them: [steps, ...]."""

  free: np.ndarray  # each has come so far
  begun: np.ndarray  # and begins, after the message that it waits for without overlap
  lost: np.ndarray  # for so long with what a death costs; then it computes
  done: np.ndarray  # its computing ends
  released: np.ndarray  # and it goes on, after what it waits for then
  leaves: np.ndarray  # [] the message that is launched at this step: before its computing or after; NaN for none
  arrives: np.ndarray  # []


def finish(*, steps: int, **settings: Any) -> np.ndarray:
  """When the last worker has finished each step, with the exchange that ends it: [steps] seconds; see `walk`."""
  finished = np.empty(max(steps, 0))
  with np.errstate(over="ignore"):  # told below
    for number, step in enumerate(walk(steps=steps, **settings)):
      finished[number] = step.released.max()
  if not np.isfinite(finished).all():
    raise ValueError("the seconds of steps and exchanges add up to more than a float holds: give smaller ones")
  return finished


def stack(steps: Iterable[Step]) -> Step:
  """Many steps as one record; at least one."""
  return Step(*(np.array(column, np.float64) for column in zip(*steps, strict=True)))


def save(path: str | Path, record: Step) -> None:
  """Writes the record as one npz file, at exactly this path, which never holds half of it."""
  arrays.save(path, record._asdict())


def load(path: str | Path) -> Step:
  """Reads what `save` wrote. ValueError, one line, for another kind of file; FileNotFoundError where there is none."""
  return Step(**arrays.load(path, dict.fromkeys(Step._fields, np.float64), "steps"))


def walk(
  *,
  workers: int,
  steps: int,
  period: int,
  delay: int,
  start: int,
  times: Times,
  exchange_seconds: float | None,
  overlap: bool = True,
  primed: bool = False,
) -> Iterator[Step]:
  """When each worker computes and waits, step by step.

  delay 0: a round of `period` steps ends with an exchange. delay d: a message leaves when all have come to the start
  of a round, and each worker waits for it after d steps; without `overlap`, at once. For constant step times a round
  takes period * step + max(0, exchange - delay * step) seconds.

  Args:
    period, delay, start, primed: steps and what they mean as in `ddl.api.Algorithm`; the first round exchanges nothing
      with a delay, unless primed.
    times: `period` steps are a turn; a death keeps everybody waiting.
    exchange_seconds: of one exchange, from when the last worker has come to it; None where there is never any.

  Raises:
    ValueError: one line, for values that can't be.
  """
  if workers < 1 or steps < 0 or start < 0:
    raise ValueError(f"{workers} workers, {steps} steps, start {start}; at least one worker, and no negative steps")
  if period < 1 or not 0 <= delay <= period:
    raise ValueError(f"period is {period} and delay {delay}; a period is at least 1 step, a delay lies in 0..period")
  together = exchange_seconds is not None
  span = min(period, steps)  # of a turn that is longer, no more is made
  memory.require(8 * workers * span, f"a turn of {span} steps of {workers} workers")
  takes = exchange_seconds if together else 0.0
  not_negative("exchange_seconds", takes)
  clock = np.zeros(workers)  # when each worker has come so far
  arrives = None  # the message under way
  for step in range(steps):
    turn, index = divmod(step, period)
    if index == 0:
      durations = np.stack([times.steps(worker, turn, span) for worker in range(workers)])  # [workers, span]
      lost = np.array([_lost(times, worker, turn, own.sum()) for worker, own in enumerate(durations)])
      durations[:, 0] += lost
    round_, position = divmod(step - start, period)
    early, free, leaves, lands = step < start, clock, np.nan, np.nan
    if together and delay and position == 0 and not early and (round_ or primed):
      leaves = clock.max()
      lands = arrives = leaves + takes
      if not overlap:
        clock = np.maximum(clock, arrives)
    begun = clock
    done = clock = clock + durations[:, index]
    if together and (early or (not delay and position == period - 1)):
      leaves = clock.max()
      lands = leaves + takes
      clock = np.full(workers, lands)
    elif arrives is not None and position == delay - 1:
      clock, arrives = np.maximum(clock, arrives), None
    yield Step(free, begun, lost if index == 0 else np.zeros(workers), done, clock, np.array(leaves), np.array(lands))


def _lost(times: Times, worker: int, turn: int, seconds: float) -> float:
  """What a death in this turn of so many seconds costs."""
  death = times.deaths(worker, turn)
  return 0.0 if death is None else death.share * seconds + death.down_seconds
