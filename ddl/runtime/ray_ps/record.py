"""The record of a run on Ray: the visits as the first shard of the master saw them."""

import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from ddl.api import Tree
from ddl.events.record import TYPES, Events
from ddl.runtime.rounds.consensus import Progress


class Snapshot(NamedTuple):
  """The run at some visit: a shard's part of the parameters, or all. The rest is the first shard's to know."""

  params: Any  # to test
  extra: Tree
  progress: Progress
  losses: list[np.ndarray]  # of the steps since the last snapshot


class Record:
  """Rows of `Events`, and their clock."""

  def __init__(self, workers: int):
    """The clock stands at 0."""
    self._rows: list[list[Any]] = []  # columns of Events
    self._last = np.full(workers, -1)  # each worker's latest row
    self._learnt = np.zeros(workers, int)  # visits that the center held which it was told
    self._came_back = dict[int, float]()  # worker -> when, before its next visit
    self._origin: float | None = None
    self._exchanges = 0

  def start(self) -> None:
    """The clock goes on from the last visit, unless it goes already."""
    if self._origin is None:
      self._origin = time.time() - self._seconds()

  def now(self) -> float:
    """Seconds of the run."""
    return self._seconds() if self._origin is None else max(time.time() - self._origin, 0.0)

  def came_back(self, worker: int) -> None:
    """It begins anew, from the center of now."""
    self._learnt[worker], self._came_back[worker] = len(self._rows), self.now()

  def add(self, asked: Any, arrival: float, exchanged: bool) -> None:
    """A visit is served. Workers' clocks are other hosts': what they say is moved to where it can be."""
    worker, start, released = int(asked["worker"]), float(asked["start"]), float(asked["released"])
    before = self._rows[self._last[worker]] if self._last[worker] >= 0 else None
    restarted = worker in self._came_back
    origin = self._origin or 0.0
    if restarted:
      start = self._came_back.pop(worker)
    elif before:
      arrival = max(arrival, before[RELEASED])
      before[RELEASED] = min(max(released - origin, before[RELEASED]), arrival)
      start = max(start - origin, before[RELEASED])
    else:
      start = max(start - origin, 0.0)
    start = min(start, arrival)
    served, index = max(self.now(), self._seconds()), len(self._rows)
    stale = index - int(self._learnt[worker])
    row = (worker, int(asked["round"]), start, arrival, served, index + 1, served, stale, int(asked["peer"]))
    self._last[worker], self._learnt[worker] = index, index + 1
    self._rows.append([*row, False, restarted])
    self._exchanges += exchanged

  def behind(self, worker: int) -> bool:
    """Whether others were served since its visit."""
    return len(self._rows) > self._last[worker] + 1

  def told(self, worker: int) -> None:
    """A worker is told anew what the center is."""
    row = self._rows[self._last[worker]]
    row[ANSWERED] = self._learnt[worker] = len(self._rows)
    row[RELEASED] = max(self.now(), self._seconds())

  def progress(self) -> Progress:
    """How far it is; the seconds are those of the last visit."""
    return Progress(len(self._rows), self._exchanges, self._seconds())

  def events(self) -> Events:
    """The visits so far."""
    columns: Sequence[Any] = list(zip(*self._rows, strict=True)) or [()] * len(Events._fields)
    named = dict(zip(Events._fields, columns, strict=True))
    return Events(**{name: np.array(named[name], kind) for name, kind in TYPES.items()})

  def restore(self, events: Events, exchanges: int) -> None:
    """Goes on from what `events` gave."""
    self._rows = [list(row) for row in zip(*(column.tolist() for column in events), strict=True)]
    self._exchanges = exchanges
    for i, row in enumerate(self._rows):
      self._last[row[0]] = i

  def _seconds(self) -> float:
    return self._rows[-1][SERVED] if self._rows else 0.0


ANSWERED, RELEASED, SERVED = (Events._fields.index(name) for name in ("answered", "released", "served"))
