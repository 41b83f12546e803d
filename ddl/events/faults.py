"""Delays of a worker beyond jitter: unequal hardware, stragglers that persist, deaths."""

from typing import NamedTuple

import numpy as np

from ddl.events.rng import BLOCK, Stream


class Death(NamedTuple):
  """A death in a round, which the worker repeats as a whole, without dying at that step again."""

  work_seconds: float  # from the begin of the round, which are lost
  down_seconds: float


class Trouble:
  """Per worker and step: by how much it is slower, and whether it dies. A pure function of (seed, worker, step).

  A worker that is not a straggler becomes one at a step with probability `rate`, and stops being one at each later
  step with probability 1 / straggler_steps: a geometric number of steps with that mean.
  """

  def __init__(
    self,
    workers: int,
    seed: int,
    slow: tuple[float, ...],
    straggler_rate: float,
    straggler_factor: float,
    straggler_steps: float,
    death_rate: float,
    down_seconds: float,
  ):
    """Take values that `ddl.events.times` has checked. ValueError for multipliers of another number of workers."""
    if slow and len(slow) != workers:
      raise ValueError(f"times.slow must have a multiplier for each of {workers} workers, or none, got {len(slow)}.")
    self.workers = workers
    self._slow = tuple(map(float, slow)) or (1.0,) * workers
    self._rate, self._factor, self._stop = straggler_rate, straggler_factor, 1 / straggler_steps
    self._death_rate, self._down = death_rate, float(down_seconds)
    self._chance = Stream(lambda rng, count: rng.random((count, 3)), seed=seed, purpose=1)  # straggles, dies, when
    self._straggles = [np.zeros(0, bool) for _ in range(workers)]  # a Markov chain, filled from step 0 on

  def factor(self, worker: int, first: int, count: int) -> np.ndarray | float:
    """Return the factors on the seconds of steps first, ..., first + count - 1 of this worker: [count], or one."""
    if not self._rate:
      return self._slow[worker]
    chain = self._straggles[worker]
    if len(chain) < first + count:
      chance = self._chance.take(worker, len(chain), max(first + count - len(chain), len(chain), BLOCK))[:, 0]
      more = markov_chain(chance < self._rate, chance < self._stop, bool(chain[-1]) if len(chain) else False)
      chain = self._straggles[worker] = np.concatenate([chain, more])
    return np.where(chain[first : first + count], self._slow[worker] * self._factor, self._slow[worker])

  def deaths(self, worker: int, first: int, seconds: np.ndarray) -> list[Death]:
    """Return the deaths in a round that begins with step `first`, in order. seconds: [steps] of the round's steps."""
    if not self._death_rate:
      return []
    _, dies, share = self._chance.take(worker, first, len(seconds)).T
    work = np.cumsum(seconds) - (1 - share) * seconds
    return [Death(lost, self._down) for lost in work[dies < self._death_rate].tolist()]


def markov_chain(starts: np.ndarray, stops: np.ndarray, state: bool) -> np.ndarray:
  """Return a chain of two states after each step: [steps] bool.

  Args:
    starts: [steps] bool: a step turns False into True.
    stops: [steps] bool: a step turns True into False.
    state: before the first step.
  """
  fixed = np.maximum.accumulate(
    np.where(starts != stops, np.arange(len(starts)), -1)
  )  # last step whose result is known
  flips = np.cumsum(starts & stops)
  known = fixed >= 0
  odd = (flips - np.where(known, flips[fixed], 0)) % 2 == 1
  return np.where(known, starts[fixed], state) ^ odd


def not_negative(name: str, value: float) -> float:
  """The value. ValueError unless it is a finite number >= 0."""
  if not (np.isfinite(value) and value >= 0):
    raise ValueError(f"{name} is {value:g}; invalid: must be a finite number >= 0")
  return value
