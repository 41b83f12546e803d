"""A bounded barrier at work, in virtual and in real time: who waits for whom, among workers that may leave and join."""

import sys

from ddl.events.barriers import Bounded, Gate

ABSENT = sys.maxsize  # worker rounds: nobody waits for a worker that is not there


class MembershipBarrier:
  """How many worker rounds each worker has finished, and who may begin another. Callers with several threads hold a lock."""

  def __init__(self, barrier: Bounded, *, workers: int, seed: int, present: bool = True):
    """present: whether all workers are there at the start. ValueError where a sample is larger than the others."""
    self._gate, self._redraw = Gate(barrier, workers=workers, seed=seed), barrier.redraw
    self._clocks, self._there = [0] * workers, set(range(workers) if present else ())
    self.held = dict[int, int]()  # worker -> one that it waits for

  def join(self, worker: int) -> None:
    """It is there, as far as it was, or as the slowest of the others are by now: nobody waits for what it missed."""
    slowest = min((self._clocks[other] for other in self._there - {worker}), default=0)
    self._clocks[worker] = max(self._clocks[worker], slowest)
    self._there.add(worker)

  def leave(self, worker: int) -> list[int]:
    """It is gone: dead, or without another worker round to make. Returns those who may go on now."""
    self._there.discard(worker)
    self.held.pop(worker, None)
    return self._ask(worker)

  def finish(self, worker: int) -> list[int]:
    """It is done with a worker round. Returns those who may go on now, by rank; it is held if it is not among them."""
    self._clocks[worker] += 1
    return self._ask(worker, worker)

  def _ask(self, changed: int, *more: int) -> list[int]:
    asking = [other for other, blocker in self.held.items() if self._redraw or blocker == changed]
    clocks = [clock if other in self._there else ABSENT for other, clock in enumerate(self._clocks)]
    free = []
    for worker in sorted([*asking, *more]):
      own = [*clocks[:worker], self._clocks[worker], *clocks[worker + 1 :]]
      blocker = self._gate.blocker(worker, own, waiting=worker in self.held)
      if blocker is None:
        self.held.pop(worker, None)
        free.append(worker)
      else:
        self.held[worker] = blocker
    return free
