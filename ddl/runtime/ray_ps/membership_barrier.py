"""A bounded barrier among processes that die, leave and join: one that is gone holds nobody up."""

import sys

from ddl.events.barriers import Bounded, Gate

GONE = sys.maxsize  # turns


class MembershipBarrier:
  """Who is there, how many turns each has finished, and who may begin another. Under the master's lock."""

  def __init__(self, barrier: Bounded, *, workers: int, seed: int):
    """Nobody is there. ValueError where a sample is larger than the number of others."""
    self._gate, self._clocks, self._there = Gate(barrier, workers=workers, seed=seed), [0] * workers, set[int]()

  def join(self, worker: int) -> None:
    """It is there, as far as it was, or as the slowest of the others are by now: nobody waits for what it missed."""
    slowest = min((self._clocks[other] for other in self._there - {worker}), default=0)
    self._clocks[worker] = max(self._clocks[worker], slowest)
    self._there.add(worker)

  def leave(self, worker: int) -> None:
    """It is gone: dead, or without another turn to make."""
    self._there.discard(worker)

  def finish(self, worker: int) -> None:
    """It is done with a turn."""
    self._clocks[worker] += 1

  def holds(self, worker: int, *, waiting: bool) -> bool:
    """Whether it has to wait. waiting: it has been asked for this turn."""
    clocks = [clock if other in self._there else GONE for other, clock in enumerate(self._clocks)]
    clocks[worker] = self._clocks[worker]
    return self._gate.blocker(worker, clocks, waiting=waiting) is not None
