"""Barriers by name: when a worker that has finished a worker round may start its next one.

A *bounded* barrier lets a worker that has finished `clock` rounds continue if clock - min(clocks of those in question)
is at most its bound. A *quorum* barrier runs rounds of all workers: the first messages are served as one mean, the
others are dropped, and every worker starts its next round from the reply.

A dropped worker abandons its round, as in Chen et al. 2016 (arXiv 1604.00981): none of its steps counts. Its parameters
are those with which the round began, and its next round begins with the reply, like that of a served worker. Its inner
optimizer's state is that of its last served round, except that schedules follow its step numbers. Its model's `extra`
(batch-norm statistics) becomes the mean over the served workers, so that the mean over all workers is theirs. Its step
numbers continue: the next round has its own batches and keys, and the abandoned round's examples are not seen in that
epoch. A worker that is down is dropped until it is back.
"""

import math
import random
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from scipy.special import gammaln, log_ndtr, ndtri

from ddl.errors import OptionError
from ddl.ranges import NonNegativeInt, PositiveInt, checked

ESTIMATORS = ("window", "elfving")


def fit(logs: np.ndarray, seen: np.ndarray) -> tuple[float, float]:
  """Return mean m and standard deviation s of a normal by maximum likelihood, with censoring from the right.

  In a = m / s, b = 1 / s, r = b x - a the log-likelihood, sum_seen (log b - r^2 / 2) + sum_censored log Phi(-r), is
  concave (Olsen 1978): Newton's method finds its top.

  Args:
    logs: [k] x.
    seen: [k] bool, some True; False where the value is only known to be larger than x.
  """
  center, scale = np.mean(logs), np.std(logs[seen])
  if not scale > 0:
    return float(np.mean(logs[seen])), 0.0  # no spread to estimate
  x = (logs - center) / scale
  count, a, b, height = np.sum(seen), 0.0, 1.0, -np.inf
  step = np.zeros(2)
  for _ in range(100):
    r = b * x - a
    now = -np.inf if b <= 0 else np.sum(np.where(seen, np.log(b) - r**2 / 2, log_ndtr(-r)))
    if now < height:  # overshot
      step = step / 2
      a, b = a - step[0], b - step[1]
      continue
    height = now
    hazard = np.exp(-(r**2) / 2 - np.log(2 * np.pi) / 2 - log_ndtr(-r))  # phi(r) / (1 - Phi(r))
    slope = np.where(seen, r, hazard)
    curve = np.where(seen, 1.0, hazard * (hazard - r))
    gradient = np.array([slope.sum(), count / b - (slope * x).sum()])
    mixed = -(curve * x).sum()
    step = np.linalg.solve([[curve.sum(), mixed], [mixed, count / b**2 + (curve * x**2).sum()]], gradient)
    a, b = a + step[0], b + step[1]
    if np.abs(step).max() < 1e-9:
      break
  return float(center + scale * a / b), float(scale / b)


@lru_cache(maxsize=8)
def _order_weights(count: int) -> tuple[np.ndarray, np.ndarray]:
  """Return z [grid], weights [count, grid]: E[f(z_(c))] = sum_z weights[c - 1, z] f(z), z_(c) of `count` normals."""
  z = np.linspace(-10.0, 14.0, 1201)  # the trapezium rule on a smooth function that vanishes at both ends
  c = np.arange(1, count + 1)[:, None]
  density = gammaln(count + 1) - gammaln(c) - gammaln(count - c + 1) - np.log(2 * np.pi) / 2 - z**2 / 2
  density = density + (c - 1) * log_ndtr(z) + (count - c) * log_ndtr(-z)
  return z, np.exp(density) * (z[1] - z[0])


def order_statistics(mean: float, deviation: float, count: int) -> np.ndarray:
  """Return E[x_(c)], c = 1..count, of `count` independent x with log x ~ Normal(mean, deviation^2): [count] seconds."""
  z, weights = _order_weights(count)
  return weights @ np.exp(mean + deviation * z)


def elfving(mean: float, deviation: float, count: int) -> np.ndarray:
  """Return the same by E[x_(c)] = m + s PhiInv((c - pi/8) / (n - pi/4 + 1)), m and s of x: its normal approximation."""
  average = np.exp(mean + deviation**2 / 2)
  c = np.arange(1, count + 1)
  return average * (1 + np.sqrt(np.expm1(deviation**2)) * ndtri((c - np.pi / 8) / (count - np.pi / 4 + 1)))


def best(seconds: np.ndarray, seen: np.ndarray, *, workers: int, estimator: str) -> int:
  """Return how many of `workers` a round should wait for: argmax_c c / E[x_(c)] (Teng, Wood 2018, arXiv 1803.04209).

  The times are taken as independent and lognormal. seconds, seen: [k] times >= 0, and False where they are censored, as
  the round was closed before: leaving them out would bias the fit towards fast workers.
  """
  seconds = np.maximum(seconds, np.finfo(float).tiny)  # a step can be too short to move the clock
  mean, deviation = fit(np.log(seconds), seen)
  if estimator == "elfving":  # a normal can be negative, unlike the times
    expected = np.maximum(elfving(mean, deviation, workers), seconds.min())
  else:
    expected = order_statistics(mean, deviation, workers)
  return int(np.argmax(np.arange(1, workers + 1) / expected)) + 1


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
      raise OptionError("backup.spare", f"below the {workers} workers", spare)
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
    raise OptionError("cutoff.estimator", f"one of {', '.join(ESTIMATORS)}", repr(estimator))

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


ABSENT = sys.maxsize  # the clock of a worker that is absent, so that no other waits for it


class LiveBarrier:
  """The rounds that each worker has finished, and who may begin another. Callers on several threads hold a lock."""

  def __init__(self, barrier: Bounded, *, workers: int, seed: int, present: bool = True):
    """present: whether all workers are present at the start. OptionError for a sample larger than the others."""
    if barrier.sample is not None and barrier.sample > workers - 1:
      raise OptionError("psp.sample", f"at most {workers - 1}, the other workers", barrier.sample)
    self._barrier, self._random = barrier, random.Random(seed)
    self._clocks, self._present = [0] * workers, set(range(workers) if present else ())
    self._others = [[other for other in range(workers) if other != worker]
                    for worker in range(workers if barrier.sample is not None else 0)]  # fmt: skip
    self._samples = [list[int]() for _ in range(workers)]  # the last sample of each worker
    self.held = dict[int, int]()  # worker -> one that it waits for

  def join(self, worker: int) -> None:
    """Add a worker, at its own clock or at that of the slowest worker present, whichever is larger."""
    slowest = min((self._clocks[other] for other in self._present - {worker}), default=0)
    self._clocks[worker] = max(self._clocks[worker], slowest)
    self._present.add(worker)

  def leave(self, worker: int) -> list[int]:
    """Remove a worker that died or has no more rounds to make. Return those that may continue."""
    self._present.discard(worker)
    self.held.pop(worker, None)
    return self._release(worker)

  def finish(self, worker: int) -> list[int]:
    """Count a finished round. Return the workers that may continue, by rank; the worker is held if not among them."""
    self._clocks[worker] += 1
    return self._release(worker, worker)

  def _release(self, changed: int, *more: int) -> list[int]:
    waiting = [other for other, blocker in self.held.items() if self._barrier.redraw or blocker == changed]
    clocks = [clock if other in self._present else ABSENT for other, clock in enumerate(self._clocks)]
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
    """Return a worker that this one has to wait for, None where it may continue."""
    bound, sample, redraw = self._barrier
    if bound == math.inf:
      return None
    if sample is None:
      slowest = min(clocks)
      return None if clocks[worker] - slowest <= bound else clocks.index(slowest)
    if worker not in self.held and not redraw:
      self._samples[worker] = list(self._draw(worker, sample))
    compared = self._draw(worker, sample) if redraw else self._samples[worker]
    return next((other for other in compared if clocks[worker] - clocks[other] > bound), None)

  def _draw(self, worker: int, sample: int) -> Iterator[int]:
    others = self._others[worker]
    for k in range(sample):
      j = k + int(self._random.random() * (len(others) - k))
      others[k], others[j] = others[j], others[k]
      yield others[k]
