"""Barriers, which decide when a worker may start its next round, and their registry.

A *bounded* barrier compares each worker with others: a worker waits while it is more than `bound` rounds ahead of the
slowest of them. A *quorum* barrier synchronizes all workers: the server applies the mean of the first messages of a
round and drops the others, and every worker starts its next round from the reply.

A dropped worker abandons its round, as in Chen et al. 2016 (arXiv 1604.00981): none of its steps counts. Its parameters
are reset to those at the start of the round; like a served worker, it then merges the reply. Its inner optimizer state
is that of its last served round, except that schedules follow its step numbers. Its model's `extra` (batch-norm
statistics) becomes the mean over the served workers, which is then also the mean over all workers. Its step numbers
continue: the next round uses new batches and keys, and the abandoned round's examples are skipped in that epoch. A
worker that is down is dropped until it restarts.
"""

import math
import random
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import scipy  # imports its submodules at first use

from ddl.errors import OptionError
from ddl.ranges import NonNegativeInt, PositiveInt, checked

ESTIMATORS = ("window", "elfving")


def fit(logs: np.ndarray, seen: np.ndarray) -> tuple[float, float]:
  """Fit the mean m and standard deviation s of a normal distribution to right-censored data by maximum likelihood.

  Return (m, s). With a = m / s, b = 1 / s and r = b x - a, the log-likelihood, sum_seen (log b - r^2 / 2) +
  sum_censored log Phi(-r), is concave in (a, b) (Olsen 1978), so Newton's method converges to its maximum.

  Args:
    logs: the values x, [k].
    seen: [k] bool, at least one True; False for a censored value, of which only a lower bound x is known.
  """
  center, scale = np.mean(logs), np.std(logs[seen])
  if not scale > 0:
    return float(np.mean(logs[seen])), 0.0  # all uncensored values are equal
  x = (logs - center) / scale
  count, a, b, height = np.sum(seen), 0.0, 1.0, -np.inf
  step = np.zeros(2)
  for _ in range(100):
    r = b * x - a
    likelihood = -np.inf if b <= 0 else np.sum(np.where(seen, np.log(b) - r**2 / 2, scipy.special.log_ndtr(-r)))
    if likelihood < height:  # the step overshot
      step = step / 2
      a, b = a - step[0], b - step[1]
      continue
    height = likelihood
    hazard = np.exp(-(r**2) / 2 - np.log(2 * np.pi) / 2 - scipy.special.log_ndtr(-r))  # phi(r) / (1 - Phi(r))
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
  """Compute a quadrature rule for expectations of the order statistics of `count` standard normals.

  Returns z [grid] and weights [count, grid] with E[f(z_(c))] = sum_z weights[c - 1, z] f(z), where z_(c) is the c-th
  smallest.
  """
  z = np.linspace(-10.0, 14.0, 1201)  # trapezoidal rule; the integrand is smooth and vanishes at both ends
  c = np.arange(1, count + 1)[:, None]
  gammaln, log_ndtr = scipy.special.gammaln, scipy.special.log_ndtr
  density = gammaln(count + 1) - gammaln(c) - gammaln(count - c + 1) - np.log(2 * np.pi) / 2 - z**2 / 2
  density = density + (c - 1) * log_ndtr(z) + (count - c) * log_ndtr(-z)
  return z, np.exp(density) * (z[1] - z[0])


def order_statistics(mean: float, deviation: float, count: int) -> np.ndarray:
  """Return the expected c-th smallest time E[x_(c)], c = 1..count: seconds [count].

  The `count` times x are independent, with log x ~ Normal(mean, deviation^2).
  """
  z, weights = _order_weights(count)
  return weights @ np.exp(mean + deviation * z)


def elfving(mean: float, deviation: float, count: int) -> np.ndarray:
  """Approximate `order_statistics` by m + s PhiInv((c - pi/8) / (n - pi/4 + 1)), where n is `count`.

  m and s are the mean and the standard deviation of x; `mean` and `deviation` are those of log x.
  """
  average = np.exp(mean + deviation**2 / 2)
  c = np.arange(1, count + 1)
  quantiles = scipy.special.ndtri((c - np.pi / 8) / (count - np.pi / 4 + 1))
  return average * (1 + np.sqrt(np.expm1(deviation**2)) * quantiles)


def best(seconds: np.ndarray, seen: np.ndarray, *, workers: int, estimator: str) -> int:
  """Return how many workers a round should wait for: argmax_c c / E[x_(c)] (Teng, Wood 2018, arXiv 1803.04209).

  x_(c) is the c-th smallest of the arrival times of `workers` workers, modeled as independent and lognormal.

  Args:
    seconds: [k] arrival times in past rounds, >= 0.
    seen: [k] bool; False if the time is censored because the round closed first. A fit to only the uncensored times
      would underestimate the arrival times.
    estimator: one of ESTIMATORS.
  """
  seconds = np.maximum(seconds, np.finfo(float).tiny)  # a step can be too short to change the float64 clock
  mean, deviation = fit(np.log(seconds), seen)
  if estimator == "elfving":  # its normal approximation can be negative
    expected = np.maximum(elfving(mean, deviation, workers), seconds.min())
  else:
    expected = order_statistics(mean, deviation, workers)
  return int(np.argmax(np.arange(1, workers + 1) / expected)) + 1


class Bounded(NamedTuple):
  """A barrier at which a worker may be at most `bound` rounds ahead of `sample` random others (None: of all others)."""

  bound: float
  sample: int | None = None
  redraw: bool = False  # whether a waiting worker draws new samples, as in `psp`


class Round(NamedTuple):
  """Arrival times of a quorum round, censored at the arrival of the last message that the round waited for."""

  seconds: np.ndarray  # [workers] since the start of the round
  seen: np.ndarray  # [workers] bool; False: the message is dropped, so `seconds` is only a lower bound


class Quorum(NamedTuple):
  """A barrier that waits for `take(workers, past rounds)` messages in each round."""

  take: Callable[[int, Sequence[Round]], int]  # returns 1..workers


Barrier = Bounded | Quorum


def describe(barrier: Barrier) -> str:
  """Describe the kind of a barrier, for errors."""
  return "a quorum (backup or cutoff)" if isinstance(barrier, Quorum) else f"a barrier with bound {barrier.bound:g}"


def check_round_robin(barrier: Bounded) -> None:
  """Raise OptionError if workers may wait at a barrier, because round-robin arrivals determine who is next."""
  if barrier.bound != math.inf:
    raise OptionError("config.barrier.name", "asp if workers arrive in round-robin order", describe(barrier))


def asp() -> Barrier:
  """Asynchronous parallel: no worker waits."""
  return Bounded(math.inf)


def bsp() -> Barrier:
  """Bulk synchronous parallel: all workers wait for each other."""
  return Bounded(0)


@checked
def ssp(*, bound: NonNegativeInt) -> Barrier:
  """Stale synchronous parallel (Ho et al. 2013): no worker may be more than `bound` rounds ahead of the slowest."""
  return Bounded(bound)


@checked
def psp(*, sample: NonNegativeInt, bound: NonNegativeInt, redraw: bool = False) -> Barrier:
  """Probabilistic synchronous parallel (arXiv 1709.07772): ssp that compares a worker with a sample of the others.

  The sample is drawn without replacement when a worker reaches the barrier, and is fixed while it waits. With `redraw`
  a waiting worker draws a new sample whenever any worker finishes a round. With sample = workers - 1, psp equals ssp.
  """
  return Bounded(bound, sample, redraw)


@checked
def backup(*, spare: NonNegativeInt) -> Barrier:
  """Synchronous SGD with backup workers (arXiv 1604.00981): a round waits for the first (workers - spare) messages."""

  def take(workers: int, rounds: Sequence[Round]) -> int:
    del rounds
    if spare >= workers:
      raise OptionError("backup.spare", f"below the number of workers ({workers})", spare)
    return workers - spare

  return Quorum(take)


@checked
def cutoff(*, window: PositiveInt, estimator: str = "window") -> Barrier:
  """Dynamic cutoff (arXiv 1803.04209): a round waits for the first c messages, where c maximizes c / E[x_(c)].

  x_(c) is the c-th smallest of the workers' arrival times x in a round, modeled as independent and lognormal.

  window: number of past rounds; one distribution is fitted to the arrival times of all workers in these rounds. The
    first `window` rounds wait for all workers.
  estimator: "window" uses the order statistics of the fitted lognormal, "elfving" Elfving's normal approximation.
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


ABSENT = sys.maxsize  # clock of an absent worker, for which no other worker waits


class LiveBarrier:
  """The state of a bounded barrier: the rounds finished by each worker. Not thread-safe; callers must hold a lock."""

  def __init__(self, barrier: Bounded, *, workers: int, seed: int, present: bool = True):
    """Start with all workers if `present`, else with none. Raises OptionError for a sample above `workers` - 1."""
    if barrier.sample is not None and barrier.sample > workers - 1:
      raise OptionError("psp.sample", f"at most the number of other workers ({workers - 1})", barrier.sample)
    self._barrier, self._random = barrier, random.Random(seed)
    self._clocks, self._present = [0] * workers, set(range(workers) if present else ())
    self._others = [[other for other in range(workers) if other != worker]
                    for worker in range(workers if barrier.sample is not None else 0)]  # fmt: skip
    self._samples = [list[int]() for _ in range(workers)]  # the last sample of each worker
    self.waiting_for = dict[int, int]()  # waiting worker -> a worker that it waits for

  def join(self, worker: int) -> None:
    """Add a worker, and set its number of finished rounds to at least that of the slowest worker present."""
    slowest = min((self._clocks[other] for other in self._present - {worker}), default=0)
    self._clocks[worker] = max(self._clocks[worker], slowest)
    self._present.add(worker)

  def leave(self, worker: int) -> list[int]:
    """Remove a worker that died or has finished all its rounds. Return the workers that may continue."""
    self._present.discard(worker)
    self.waiting_for.pop(worker, None)
    return self._release(worker)

  def finish(self, worker: int) -> list[int]:
    """Record that a worker finished a round. Return the workers that may continue, ordered by rank.

    The worker itself must wait if it is not among them.
    """
    self._clocks[worker] += 1
    return self._release(worker, worker)

  def _release(self, changed: int, *finished: int) -> list[int]:
    waiting = [other for other, blocker in self.waiting_for.items() if self._barrier.redraw or blocker == changed]
    clocks = [clock if other in self._present else ABSENT for other, clock in enumerate(self._clocks)]
    free = []
    for worker in sorted([*waiting, *finished]):
      blocker = self._blocker(worker, [*clocks[:worker], self._clocks[worker], *clocks[worker + 1 :]])
      if blocker is None:
        self.waiting_for.pop(worker, None)
        free.append(worker)
      else:
        self.waiting_for[worker] = blocker
    return free

  def _blocker(self, worker: int, clocks: Sequence[int]) -> int | None:
    """Return a worker that this one must wait for, or None if it may continue."""
    bound, sample, redraw = self._barrier
    if bound == math.inf:
      return None
    if sample is None:
      slowest = min(clocks)
      return None if clocks[worker] - slowest <= bound else clocks.index(slowest)
    if worker not in self.waiting_for and not redraw:
      self._samples[worker] = list(self._draw(worker, sample))
    compared = self._draw(worker, sample) if redraw else self._samples[worker]
    return next((other for other in compared if clocks[worker] - clocks[other] > bound), None)

  def _draw(self, worker: int, sample: int) -> Iterator[int]:
    others = self._others[worker]
    for k in range(sample):
      j = k + int(self._random.random() * (len(others) - k))
      others[k], others[j] = others[j], others[k]
      yield others[k]
