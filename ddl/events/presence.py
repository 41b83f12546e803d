"""Presence: which workers of a collective algorithm take part in each of its steps, where workers come and go."""

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

Ids = tuple[int, ...]  # of workers, rising
# (first step of a round, who was there in the round before, when each has come so far, seconds of the round's steps
# [workers, steps]) -> (who is there in this round, seconds that each loses in it); arrays [workers]
Attendance = Callable[[int, np.ndarray, np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]


class Segment(NamedTuple):
  """Steps in which the same workers are present."""

  first: int
  last: int  # the step after the last
  ids: Ids


class Presence(NamedTuple):
  """The workers that are present at each step.

  Workers that are lost and replaced before the same step are two changes at this step: without them, and with them.
  """

  workers: int  # in total
  changes: tuple[tuple[int, Ids], ...]  # (first step, workers present from it on); the first change is at step 0

  def count(self, step: int) -> int:
    """Return the number of changes up to the start of a step."""
    return bisect_right(self.changes, step, key=lambda change: change[0])

  def at(self, step: int) -> Ids:
    """Return the ids of the workers that take part in this step."""
    return self.changes[self.count(step) - 1][1]

  def segments(self, first: int, last: int) -> list[Segment]:
    """Return the steps first..last-1, cut where the presence changes."""
    cuts = [first, *(step for step, _ in self.changes if first < step < last), last]
    return [Segment(a, b, self.at(a)) for a, b in pairwise(cuts) if a < b]

  def made(self, step: int) -> int:
    """Return the steps that all workers together have made after `step` steps of the run."""
    return sum((each.last - each.first) * len(each.ids) for each in self.segments(0, step))

  def describe(self, steps: int) -> str:
    """Describe the losses and returns in so many steps in words."""
    present = [{*ids} for step, ids in self.changes if step < steps]
    losses = sum(len(a - b) for a, b in pairwise(present))
    returns = sum(len(b - a) for a, b in pairwise(present))
    lowest = min(map(len, present), default=self.workers)
    return (
      f"elastic: {losses} loss{'es' * (losses != 1)}, {returns} return{'s' * (returns != 1)}, "
      f"lowest {lowest} of {self.workers} present"
    )


def everyone(workers: int) -> Presence:
  """Return the presence of workers that never leave."""
  return Presence(workers, ((0, tuple(range(workers))),))


def check(presence: Presence, round_steps: int = 1) -> None:
  """Check a presence. ValueError, one line, for what is none, or changes within a round of so many steps."""
  first = [step for step, _ in presence.changes]
  replaced = [a[0] == b[0] > 0 and {*a[1]} < {*b[1]} for a, b in pairwise(presence.changes)]
  rises = [a < b or both for a, b, both in zip(first, first[1:], replaced, strict=False)]
  if not first or first[0] or not all(rises):
    raise OptionError("the steps at which presence changes", "rising from 0", first[:9])
  for step, ids in presence.changes:
    if not ids or [*ids] != sorted({*ids}) or not {*ids} <= {*range(presence.workers)}:
      condition = f"one or more rising ids from 0 to {presence.workers - 1}"
      raise OptionError(f"the workers present from step {step}", condition, list(ids))
    if step % round_steps:
      raise OptionError("the steps at which presence changes", f"multiples of a round of {round_steps}", step)
  for (_, before), (step, now) in pairwise(presence.changes):
    if not {*before} & {*now}:
      condition = "one or more that were present before, which have the model"
      raise OptionError(f"the workers present from step {step}", condition, list(now))


def save(path: Path, presence: Presence) -> None:
  """Write the changes as JSON: [[first step, [ids]], ...]; a crash leaves the old file or the new one."""
  temporary = path.with_name(f"{path.name}.tmp")
  temporary.write_text(json.dumps(presence.changes) + "\n")
  temporary.replace(path)


def load(path: Path, workers: int) -> Presence:
  """Read what `save` wrote. ValueError, one line, for another file, or what `check` refuses."""
  try:
    changes = json.loads(files.regular(path).read_text(encoding="utf-8"))
    whole = [x for step, ids in changes for x in (step, *ids)]
    if not all(type(x) is int and x >= 0 for x in whole):
      raise ValueError("it has other values than integers from 0 on")
    presence = Presence(workers, tuple((step, tuple(ids)) for step, ids in changes))
  except (ValueError, TypeError, RecursionError) as error:
    raise ValueError(f"{path} is no record of presence ([[first step, [ids]], ...]): {error}") from error
  try:
    check(presence)
  except ValueError as error:
    raise ValueError(f"{path}: {error}") from error
  return presence


def waiting(times: Times) -> Attendance:
  """Return the attendance where all wait for a worker that died, which repeats its round."""

  def attend(first: int, present: np.ndarray, clock: np.ndarray, seconds: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    del clock
    return present, np.array(
      [sum(map(sum, times.deaths(worker, first, row))) for worker, row in enumerate(seconds)], float
    )

  return attend


def elastic(times: Times) -> Attendance:
  """Return the attendance where the others go on without a worker that dies.

  It is absent from the begin of the round in which it dies, whose work is lost, to the first round that begins when it
  is up again: when the last of those that stay has come to it. Where none of those present would stay, the one that is
  up first repeats its round, and all wait for it.
  """
  back = np.zeros(times.workers)  # when each one that is absent is up again

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
    returns = ~present & (back <= now)
    for worker in np.flatnonzero((present | returns) & dies):
      back[worker] = (clock[worker] if present[worker] else now) + sum(deaths[worker][0])
    attending = stays | (returns & ~dies)
    return attending, np.where(attending, lost, 0.0)

  return attend


def given(presence: Presence, round_steps: int) -> Attendance:
  """Return the attendance of a record, in which nobody dies beside. ValueError as of `check`."""
  check(presence, round_steps)

  def attend(first: int, present: np.ndarray, clock: np.ndarray, seconds: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    del clock, seconds
    return np.isin(np.arange(len(present)), presence.at(first)), np.zeros(len(present))

  return attend
