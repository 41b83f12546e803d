"""When a worker that is done with a worker round may start its next: barriers by name.

A *bounded* barrier lets a worker that has finished `clock` worker rounds go on if clock - min(clocks of those in question) is
at most its bound. A *quorum* barrier runs rounds: all compute, the first messages to come are served as one mean, the
others are dropped, and everybody starts anew from that answer.

A dropped worker abandons its worker round, as in Chen et al. 2016 (arXiv 1604.00981): none of the worker round's steps counts, done or
half done. Its parameters are those with which the worker round began, and its next worker round begins with the round's answer, like
that of a served worker (whose parameters, too, are its own until then). Its inner optimizer's state is that of its last
served worker round. Its model's `extra` (batch-norm statistics) becomes the mean over the round's served workers, so that the
mean over all workers is theirs. Its step numbers go on: the next worker round has its own batches and keys, and the abandoned
worker round's examples are not seen in that epoch. A worker that is down is dropped until it is back.
"""

import math
import random
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from ddl.events.cutoff import ESTIMATORS, best


class Bounded(NamedTuple):
  """A worker may be `bound` worker rounds ahead of `sample` others, drawn without replacement; None: of all others."""

  bound: float
  sample: int | None = None
  redraw: bool = False


class Round(NamedTuple):
  """What the server saw of a quorum round: when each message came, or that it hadn't when the round was closed."""

  seconds: np.ndarray  # [workers] from the round's beginning
  seen: np.ndarray  # [workers] bool: False: dropped, it would have come after `seconds`


class Quorum(NamedTuple):
  """How many messages a round waits for: (workers, the rounds so far) -> 1..workers."""

  take: Callable[[int, Sequence[Round]], int]


Barrier = Bounded | Quorum


def asp() -> Barrier:
  """Asynchronous parallel: nobody waits."""
  return Bounded(math.inf)


def bsp() -> Barrier:
  """Bulk synchronous parallel: everybody waits for everybody."""
  return Bounded(0)


def ssp(*, bound: int) -> Barrier:
  """Stale synchronous parallel: clock - min(clocks) <= bound worker rounds (Ho et al. 2013); 0 is bsp."""
  return Bounded(_bound("ssp", bound))


def psp(*, sample: int, bound: int, redraw: bool = False) -> Barrier:
  """Probabilistic synchronous parallel (arXiv 1709.07772): ssp towards `sample` others only, not itself.

  The sample is drawn without replacement when the worker comes to the barrier, and kept while it waits; with `redraw`
  a waiting worker draws another one each time that anybody finishes a worker round. sample = workers - 1 is ssp.
  """
  if sample < 0:
    raise ValueError(f"psp: sample is {sample}; a worker looks at 0 others or more")
  return Bounded(_bound("psp", bound), sample, redraw)


def backup(*, spare: int) -> Barrier:
  """Synchronous with backup workers (arXiv 1604.00981): a round waits for the first workers - spare messages."""
  if spare < 0:
    raise ValueError(f"backup: spare is {spare}; give the number of workers that a round goes on without, 0 or more")

  def take(workers: int, rounds: Sequence[Round]) -> int:
    del rounds
    if spare >= workers:
      raise ValueError(f"backup: {spare} spare workers of {workers}; at least one message must be waited for")
    return workers - spare

  return Quorum(take)


def cutoff(*, window: int, estimator: str = "window") -> Barrier:
  """A round waits for the first c messages, the c that maximises c / E[x_(c)] (arXiv 1803.04209).

  window: how many of the last rounds the distribution of the times x is taken from, one for all workers; the first
    `window` rounds wait for all.
  estimator: "window", the order statistics of that fit, or "elfving", his normal approximation of them.
  """
  if window < 1:
    raise ValueError(f"cutoff: window is {window}; the times come from at least one round")
  if estimator not in ESTIMATORS:
    raise ValueError(f"cutoff: estimator is {estimator!r}; there are {', '.join(ESTIMATORS)}")

  def take(workers: int, rounds: Sequence[Round]) -> int:
    if len(rounds) < window:
      return workers
    seconds = np.concatenate([past.seconds for past in rounds[-window:]])
    seen = np.concatenate([past.seen for past in rounds[-window:]])
    return best(seconds, seen, workers=workers, estimator=estimator)

  return Quorum(take)


class Gate:
  """A bounded barrier at work: remembers who looks at whom."""

  def __init__(self, barrier: Bounded, *, workers: int, seed: int):
    """ValueError where a sample is larger than the number of others."""
    if barrier.sample is not None and barrier.sample > workers - 1:
      raise ValueError(
        f"psp: a sample of {barrier.sample} workers of the {workers - 1} others; take at most all of them"
      )
    self._barrier, self._random = barrier, random.Random(seed)
    everyone = range(workers)
    looking = [] if barrier.sample is None else everyone
    self._others = [[other for other in everyone if other != worker] for worker in looking]
    self._kept = [list[int]() for _ in everyone]

  def blocker(self, worker: int, clocks: Sequence[int], *, waiting: bool) -> int | None:
    """A worker that this one has to wait for, None where it may go on. waiting: it has been asked for this worker round."""
    bound, sample, redraw = self._barrier
    if bound == math.inf:
      return None
    if sample is None:
      slowest = min(clocks)
      return None if clocks[worker] - slowest <= bound else clocks.index(slowest)
    if not waiting and not redraw:
      self._kept[worker] = list(self._draw(worker, sample))
    looked_at = self._draw(worker, sample) if redraw else self._kept[worker]
    return next((other for other in looked_at if clocks[worker] - clocks[other] > bound), None)

  def _draw(self, worker: int, sample: int) -> Iterator[int]:
    others = self._others[worker]
    for k in range(sample):
      j = k + int(self._random.random() * (len(others) - k))
      others[k], others[j] = others[j], others[k]
      yield others[k]


def _bound(name: str, bound: int) -> int:
  if not (bound >= 0 and bound == int(bound)):
    raise ValueError(f"{name}: bound is {bound}; a worker may be 0, 1, 2, ... worker rounds ahead")
  return int(bound)


BARRIERS: dict[str, Callable[..., Barrier]] = {
  "asp": asp,
  "bsp": bsp,
  "ssp": ssp,
  "psp": psp,
  "backup": backup,
  "cutoff": cutoff,
}
