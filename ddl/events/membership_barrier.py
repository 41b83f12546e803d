"""The state of a bounded barrier, in virtual and in real time, among workers that leave and join."""

import math
import random
import sys
from collections.abc import Iterator, Sequence

from ddl.events.barriers import Bounded

ABSENT = sys.maxsize  # the clock of a worker that is absent, so that no other waits for it


class MembershipBarrier:
  """The rounds that each worker has finished, and who may begin another. Callers with several threads hold a lock."""

  def __init__(self, barrier: Bounded, *, workers: int, seed: int, present: bool = True):
    """present: whether all workers are there at the start. ValueError where a sample is larger than the others."""
    if barrier.sample is not None and barrier.sample > workers - 1:
      raise ValueError(
        f"psp: a sample of {barrier.sample} workers of the {workers - 1} others; invalid: must be at most all of them"
      )
    self._barrier, self._random = barrier, random.Random(seed)
    self._clocks, self._there = [0] * workers, set(range(workers) if present else ())
    self._others = [[other for other in range(workers) if other != worker]
                    for worker in range(workers if barrier.sample is not None else 0)]  # fmt: skip
    self._kept = [list[int]() for _ in range(workers)]  # the last sample of each worker
    self.held = dict[int, int]()  # worker -> one that it waits for

  def join(self, worker: int) -> None:
    """Add a worker, at its own clock or at that of the slowest worker present, whichever is larger."""
    slowest = min((self._clocks[other] for other in self._there - {worker}), default=0)
    self._clocks[worker] = max(self._clocks[worker], slowest)
    self._there.add(worker)

  def leave(self, worker: int) -> list[int]:
    """Remove a worker that died or has no more rounds to make. Return those that may go on now."""
    self._there.discard(worker)
    self.held.pop(worker, None)
    return self._release(worker)

  def finish(self, worker: int) -> list[int]:
    """Count a finished round. Return the workers that may go on now, by rank; the worker is held if not among them."""
    self._clocks[worker] += 1
    return self._release(worker, worker)

  def _release(self, changed: int, *more: int) -> list[int]:
    waiting = [other for other, blocker in self.held.items() if self._barrier.redraw or blocker == changed]
    clocks = [clock if other in self._there else ABSENT for other, clock in enumerate(self._clocks)]
    free = []
    for worker in sorted([*waiting, *more]):
      own = [*clocks[:worker], self._clocks[worker], *clocks[worker + 1 :]]
      blocker = self._blocker(worker, own)
      if blocker is None:
        self.held.pop(worker, None)
        free.append(worker)
      else:
        self.held[worker] = blocker
    return free

  def _blocker(self, worker: int, clocks: Sequence[int]) -> int | None:
    """Return a worker that this one has to wait for, None where it may go on."""
    bound, sample, redraw = self._barrier
    if bound == math.inf:
      return None
    if sample is None:
      slowest = min(clocks)
      return None if clocks[worker] - slowest <= bound else clocks.index(slowest)
    if worker not in self.held and not redraw:
      self._kept[worker] = list(self._draw(worker, sample))
    compared = self._draw(worker, sample) if redraw else self._kept[worker]
    return next((other for other in compared if clocks[worker] - clocks[other] > bound), None)

  def _draw(self, worker: int, sample: int) -> Iterator[int]:
    others = self._others[worker]
    for k in range(sample):
      j = k + int(self._random.random() * (len(others) - k))
      others[k], others[j] = others[j], others[k]
      yield others[k]
