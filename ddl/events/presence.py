"""Elastic membership: which workers of a collective algorithm take part in each step."""

import json
from bisect import bisect_right
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np

from ddl import files
from ddl.errors import OptionError
from ddl.events.times import Times

Ids = tuple[int, ...]  # worker ids in increasing order
# (first step of a round, presence in the previous round [workers] bool, time of each worker [workers], seconds of the
# round's steps [workers, steps]) -> (presence in this round [workers] bool, seconds that each worker loses [workers])
Attendance = Callable[[int, np.ndarray, np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]


class Segment(NamedTuple):
  """A range of steps in which the same workers are present."""

  first: int
  last: int  # exclusive
  ids: Ids


class Presence(NamedTuple):
  """The workers that are present at each step.

  If workers are lost and replaced at the same step, `changes` contains this step twice: first with only the remaining
  workers, then with the replacements as well.
  """

  workers: int  # total number of workers
  changes: tuple[tuple[int, Ids], ...]  # (step, workers present from this step); the first change is at step 0

  def count(self, step: int) -> int:
    """Return the number of changes whose step is not later than `step`."""
    return bisect_right(self.changes, step, key=lambda change: change[0])

  def at(self, step: int) -> Ids:
    """Return the ids of the workers that take part in this step."""
    return self.changes[self.count(step) - 1][1]

  def segments(self, first: int, last: int) -> list[Segment]:
    """Split the steps first..last-1 at the steps at which the membership changes."""
    cuts = [first, *(step for step, _ in self.changes if first < step < last), last]
    return [Segment(a, b, self.at(a)) for a, b in pairwise(cuts) if a < b]

  def worker_steps(self, step: int) -> int:
    """Return the total number of steps that all workers have taken after `step` steps of the run."""
    return sum((segment.last - segment.first) * len(segment.ids) for segment in self.segments(0, step))

  def describe(self, steps: int) -> str:
    """Describe the first `steps` steps in one line: losses, returns and the lowest number of present workers."""
    present = [{*ids} for step, ids in self.changes if step < steps]
    losses = sum(len(a - b) for a, b in pairwise(present))
    returns = sum(len(b - a) for a, b in pairwise(present))
    lowest = min(map(len, present), default=self.workers)
    return (
      f"elastic: {losses} loss{'es' * (losses != 1)}, {returns} return{'s' * (returns != 1)}, "
      f"at least {lowest} of {self.workers} present"
    )


def everyone(workers: int) -> Presence:
  """Return a membership that never changes."""
  return Presence(workers, ((0, tuple(range(workers))),))


def check(presence: Presence, round_steps: int = 1) -> None:
  """Raise a one-line ValueError if a membership is invalid or changes within a round of `round_steps` steps."""
  first = [step for step, _ in presence.changes]
  replaced = [a[0] == b[0] > 0 and {*a[1]} < {*b[1]} for a, b in pairwise(presence.changes)]
  rises = [a < b or both for a, b, both in zip(first, first[1:], replaced, strict=False)]
  if not first or first[0] or not all(rises):
    raise OptionError("the steps at which workers join or leave", "increasing, starting at 0", first[:9])
  for step, ids in presence.changes:
    if not ids or [*ids] != sorted({*ids}) or not {*ids} <= {*range(presence.workers)}:
      condition = f"one or more increasing ids in 0..{presence.workers - 1}"
      raise OptionError(f"the workers present from step {step}", condition, list(ids))
    if step % round_steps:
      condition = f"multiples of {round_steps} (the number of steps in a round)"
      raise OptionError("the steps at which workers join or leave", condition, step)
  for (_, before), (step, after) in pairwise(presence.changes):
    if not {*before} & {*after}:
      condition = f"a set that includes at least one of the workers present before ({list(before)})"
      advice = "Only those workers have the model."
      raise OptionError(f"the workers present from step {step}", condition, list(after), advice)


def save(path: Path, presence: Presence) -> None:
  """Atomically write the changes as JSON: [[step, [ids]], ...]."""
  temporary = path.with_name(f"{path.name}.tmp")
  temporary.write_text(json.dumps(presence.changes) + "\n")
  temporary.replace(path)


def load(path: Path, workers: int) -> Presence:
  """Load a membership written by `save`.

  Raises FileNotFoundError for a missing file, and a one-line ValueError if it is malformed or fails `check`.
  """
  try:
    changes = json.loads(files.regular(path).read_text(encoding="utf-8"))
    whole = [x for step, ids in changes for x in (step, *ids)]
    if not all(type(x) is int and x >= 0 for x in whole):
      raise ValueError("steps and ids must be integers >= 0")
    presence = Presence(workers, tuple((step, tuple(ids)) for step, ids in changes))
  except (ValueError, TypeError, RecursionError) as error:
    raise ValueError(f"{path} is not a record of membership changes ([[step, [ids]], ...]): {error}") from error
  try:
    check(presence)
  except ValueError as error:
    raise ValueError(f"{path}: {error}") from error
  return presence


def waiting(times: Times) -> Attendance:
  """Return the policy in which all workers wait until a worker that died has repeated its round."""

  def attend(first: int, present: np.ndarray, clock: np.ndarray, seconds: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    del clock
    return present, np.array(
      [sum(map(sum, times.deaths(worker, first, row))) for worker, row in enumerate(seconds)], float
    )

  return attend


def elastic(times: Times) -> Attendance:
  """Return the policy in which the other workers continue without a worker that dies.

  The dead worker loses its round. It rejoins at the first round that the slowest remaining worker starts after the dead
  worker has restarted. If all present workers die, the run waits until the first one to restart has repeated its round.
  """
  restart = np.zeros(times.workers)  # when each absent worker restarts

  def attend(first: int, present: np.ndarray, clock: np.ndarray, seconds: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    deaths = [times.deaths(worker, first, row) for worker, row in enumerate(seconds)]
    dies = np.array([bool(hits) for hits in deaths])
    lost = np.array([sum(map(sum, hits)) for hits in deaths], float)
    stays = present & ~dies
    if not stays.any():
      up = np.where(present, clock + lost, np.inf)
      stays = np.arange(len(present)) == up.argmin()
      dies = dies & ~stays
    now = clock[stays].max()
    returns = ~present & (restart <= now)
    for worker in np.flatnonzero((present | returns) & dies):
      restart[worker] = (clock[worker] if present[worker] else now) + sum(deaths[worker][0])
    attending = stays | (returns & ~dies)
    return attending, np.where(attending, lost, 0.0)

  return attend


def replayed(presence: Presence, round_steps: int) -> Attendance:
  """Return the policy that replays a recorded membership and draws no deaths. Raises the errors of `check`."""
  check(presence, round_steps)

  def attend(first: int, present: np.ndarray, clock: np.ndarray, seconds: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    del clock, seconds
    return np.isin(np.arange(len(present)), presence.at(first)), np.zeros(len(present))

  return attend
