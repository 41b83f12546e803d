"""Barriers by name: when a worker that has finished a worker round may start its next one.

A *bounded* barrier lets a worker that has finished `clock` rounds go on if clock - min(clocks of those in question) is
at most its bound. A *quorum* barrier runs rounds of all workers: the first messages are served as one mean, the others
are dropped, and every worker starts its next round from the reply.

A dropped worker abandons its round, as in Chen et al. 2016 (arXiv 1604.00981): none of its steps counts, done or half
done. Its parameters are those with which the round began, and its next round begins with the reply, like that of a
served worker (whose parameters, too, are its own until then). Its inner optimizer's state is that of its last served
round, except that schedules go by its step numbers. Its model's `extra` (batch-norm statistics) becomes the mean over
the served workers, so that the mean over all workers is theirs. Its step numbers go on: the next round has its own
batches and keys, and the abandoned round's examples are not seen in that epoch. A worker that is down is dropped until
it is back.
"""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from ddl.events.cutoff import ESTIMATORS, best
from ddl.ranges import NonNegativeInt, PositiveInt, checked


class Bounded(NamedTuple):
  """A worker may be `bound` rounds ahead of `sample` others, drawn without replacement; None: of all others."""

  bound: float
  sample: int | None = None
  redraw: bool = False


class Round(NamedTuple):
  """A quorum round as the server sees it: arrival times, censored where the round was closed before."""

  seconds: np.ndarray  # [workers] from the round's beginning
  seen: np.ndarray  # [workers] bool: False: dropped, as it would have arrived after `seconds`


class Quorum(NamedTuple):
  """How many messages a round waits for: (workers, the rounds so far) -> 1..workers."""

  take: Callable[[int, Sequence[Round]], int]


Barrier = Bounded | Quorum


def asp() -> Barrier:
  """Asynchronous parallel: no worker waits."""
  return Bounded(math.inf)


def bsp() -> Barrier:
  """Bulk synchronous parallel: all workers wait for each other."""
  return Bounded(0)


@checked
def ssp(*, bound: NonNegativeInt) -> Barrier:
  """Stale synchronous parallel: clock - min(clocks) <= bound rounds (Ho et al. 2013); 0 is bsp."""
  return Bounded(bound)


@checked
def psp(*, sample: NonNegativeInt, bound: NonNegativeInt, redraw: bool = False) -> Barrier:
  """Probabilistic synchronous parallel (arXiv 1709.07772): ssp towards `sample` others only, not itself.

  The sample is drawn without replacement when the worker comes to the barrier, and kept while it waits; with `redraw`
  a waiting worker draws another one each time that any worker finishes a round. sample = workers - 1 is ssp.
  """
  return Bounded(bound, sample, redraw)


@checked
def backup(*, spare: NonNegativeInt) -> Barrier:
  """Synchronous with backup workers (arXiv 1604.00981): a round waits for the first workers - spare messages."""

  def take(workers: int, rounds: Sequence[Round]) -> int:
    del rounds
    if spare >= workers:
      raise ValueError(f"backup: {spare} spare workers of {workers}; invalid: must be below the number of workers")
    return workers - spare

  return Quorum(take)


@checked
def cutoff(*, window: PositiveInt, estimator: str = "window") -> Barrier:
  """A round waits for the first c messages, the c that maximises c / E[x_(c)] (arXiv 1803.04209).

  window: number of past rounds from which the distribution of the times x is estimated, one for all workers; the first
    `window` rounds wait for all.
  estimator: "window", the order statistics of that fit, or "elfving", his normal approximation of them.
  """
  if estimator not in ESTIMATORS:
    raise ValueError(f"cutoff: estimator is {estimator!r}; invalid: must be one of {', '.join(ESTIMATORS)}")

  def take(workers: int, rounds: Sequence[Round]) -> int:
    if len(rounds) < window:
      return workers
    seconds, seen = (np.concatenate(column) for column in zip(*rounds[-window:], strict=True))
    return best(seconds, seen, workers=workers, estimator=estimator)

  return Quorum(take)


BARRIERS: dict[str, Callable[..., Barrier]] = {
  "asp": asp,
  "bsp": bsp,
  "ssp": ssp,
  "psp": psp,
  "backup": backup,
  "cutoff": cutoff,
}
