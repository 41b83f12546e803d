"""Delays of a worker beyond jitter: unequal hardware, stragglers that persist, deaths."""

from typing import NamedTuple

import numpy as np

from ddl.events.rng import Stream


class Death(NamedTuple):
  """A worker dies in a round, comes back, and repeats the whole round."""

  share: float  # of the round's steps done when it died, in [0, 1)
  down_seconds: float


class Trouble:
  """Per worker and round: by how much it is slower, and whether it dies. A pure function of (seed, worker, round).

  A worker that is not a straggler becomes one at a round with probability `rate`, and stops being one at each later
  round with probability 1 / straggler_rounds: a geometric number of rounds with that mean.
  """

  def __init__(
    self,
    workers: int,
    seed: int,
    slow: tuple[float, ...],
    straggler_rate: float,
    straggler_factor: float,
    straggler_rounds: float,
    death_rate: float,
    down_seconds: float,
  ):
    """ValueError, one line, for an invalid value; see `ddl.events.times` for what each one means."""
    if workers < 1:
      raise ValueError(f"workers is {workers}; invalid: must be at least 1")
    if slow and len(slow) != workers:
      raise ValueError(f"slow has {len(slow)} multipliers for {workers} workers; invalid: must be one each, or none")
    for index, value in enumerate(slow):
      positive(f"slow[{index}]", value)
    positive("straggler_factor", straggler_factor)
    if positive("straggler_rounds", straggler_rounds) < 1:
      raise ValueError(f"straggler_rounds is {straggler_rounds:g}; invalid: must be at least 1")
    if not 0 <= straggler_rate <= 1:
      raise ValueError(f"straggler_rate is {straggler_rate:g}; invalid: must be a probability per round, from 0 to 1")
    if not 0 <= death_rate < 1:
      raise ValueError(f"death_rate is {death_rate:g}; invalid: must be a probability per round, from 0 to below 1")
    not_negative("down_seconds", down_seconds)
    self.workers = workers
    self._slow = tuple(map(float, slow)) or (1.0,) * workers
    self._rate, self._factor, self._stop = straggler_rate, straggler_factor, 1 / straggler_rounds
    self._death_rate, self._down = death_rate, float(down_seconds)
    self._chance = Stream(lambda rng, count: rng.random((count, 3)), seed=seed, purpose=1)  # straggles, dies, when
    self._straggles: list[list[bool]] = [[] for _ in range(workers)]  # a Markov chain, filled from round 0 on

  def factor(self, worker: int, round_: int) -> float:
    """Return the factor on the seconds of this worker's steps in this round."""
    if not self._rate:
      return self._slow[worker]
    chain = self._straggles[worker]
    while len(chain) <= round_:
      draws = self._chance.take(worker, len(chain), 256)[:, 0]
      for draw in draws.tolist():
        chain.append(draw >= self._stop if chain and chain[-1] else draw < self._rate)
    return self._slow[worker] * (self._factor if chain[round_] else 1.0)

  def death(self, worker: int, round_: int) -> Death | None:
    """Return the death in this round, None for none."""
    if not self._death_rate:
      return None
    _, dies, share = self._chance.take(worker, round_, 1)[0].tolist()
    return Death(share, self._down) if dies < self._death_rate else None


def positive(name: str, value: float) -> float:
  """The value. ValueError unless it is a finite number > 0."""
  if not (np.isfinite(value) and value > 0):
    raise ValueError(f"{name} is {value:g}; invalid: must be a finite number > 0")
  return value


def not_negative(name: str, value: float) -> float:
  """The value. ValueError unless it is a finite number >= 0."""
  if not (np.isfinite(value) and value >= 0):
    raise ValueError(f"{name} is {value:g}; invalid: must be a finite number >= 0")
  return value
