"""Seconds of a worker's steps: distributions by name. A new one is a function here and a registry line.

The keyword-only arguments of a factory are its settings. All but the first two are of one kind:
  slow: a multiplier per worker, () for none
  straggler_rate, straggler_factor, straggler_steps: a worker becomes that many times slower with that probability per
    step, for a geometric number of steps with that mean
  death_rate, down_seconds: a worker dies with that probability per step, comes back that many seconds later, and
    repeats its round from the last exchange on, without dying at that step again
All of them are drawn by worker and step, so that algorithms of all periods meet the same slow spells and deaths.
"""

import sys
from collections.abc import Callable
from typing import Annotated

import numpy as np

from ddl import files, memory
from ddl.events.faults import Death, Trouble
from ddl.events.rng import Stream
from ddl.ranges import LARGEST_SECONDS, Fraction, PositiveInt, Range, Seconds, UnitInterval, checked

StepSeconds = Annotated[float, Range(0, LARGEST_SECONDS, open_low=True)]
Jitter = Annotated[float, Range(0, 10)]  # above, a mean over a run's steps is that of its few longest ones
Factor = Annotated[float, Range(0, 1e6, open_low=True)]
Slowdown = Annotated[float, Range(1, 1e6)]
Steps = Annotated[float, Range(1, 1e9)]


class Times:
  """Step times and deaths as a pure function of (seed, worker, step)."""

  def __init__(self, plain: Callable[[int, int, int], np.ndarray], trouble: Trouble):
    """plain: (worker, first step, count) -> [count] seconds without stragglers and deaths."""
    self._plain, self._trouble = plain, trouble
    self.workers = trouble.workers

  def steps(self, worker: int, first: int, count: int) -> np.ndarray:
    """Return the seconds of steps first, ..., first + count - 1: [count]."""
    return self._plain(worker, first, count) * self._trouble.factor(worker, first, count)

  def deaths(self, worker: int, first: int, seconds: np.ndarray) -> list[Death]:
    """See `Trouble.deaths`."""
    return self._trouble.deaths(worker, first, seconds)


@checked
def constant(
  *,
  workers: PositiveInt,
  seed: int,
  seconds: StepSeconds = 0.01,
  slow: tuple[Factor, ...] = (),
  straggler_rate: UnitInterval = 0.0,
  straggler_factor: Slowdown = 1.0,
  straggler_steps: Steps = 1.0,
  death_rate: Fraction = 0.0,
  down_seconds: Seconds = 0.0,
) -> Times:
  """Every step takes the same time. ValueError, one line, for invalid values."""
  trouble = Trouble(workers, seed, slow, straggler_rate, straggler_factor, straggler_steps, death_rate, down_seconds)
  return Times(lambda worker, first, count: np.full(count, float(seconds)), trouble)


@checked
def lognormal(
  *,
  workers: PositiveInt,
  seed: int,
  seconds: StepSeconds = 0.01,
  jitter: Jitter = 0.1,
  slow: tuple[Factor, ...] = (),
  straggler_rate: UnitInterval = 0.0,
  straggler_factor: Slowdown = 1.0,
  straggler_steps: Steps = 1.0,
  death_rate: Fraction = 0.0,
  down_seconds: Seconds = 0.0,
) -> Times:
  """log x ~ Normal(log seconds - s^2 / 2, s^2), s^2 = log(1 + jitter^2): mean seconds, std jitter * seconds."""
  variance = np.log1p(_square(jitter))
  center, spread = np.log(seconds) - variance / 2, np.sqrt(variance)
  stream = Stream(lambda rng, count: rng.lognormal(center, spread, count), seed=seed, purpose=0)
  trouble = Trouble(workers, seed, slow, straggler_rate, straggler_factor, straggler_steps, death_rate, down_seconds)
  return Times(stream.take, trouble)


@checked
def gamma(
  *,
  workers: PositiveInt,
  seed: int,
  seconds: StepSeconds = 0.01,
  jitter: Jitter = 0.1,
  slow: tuple[Factor, ...] = (),
  straggler_rate: UnitInterval = 0.0,
  straggler_factor: Slowdown = 1.0,
  straggler_steps: Steps = 1.0,
  death_rate: Fraction = 0.0,
  down_seconds: Seconds = 0.0,
) -> Times:
  """x ~ Gamma(shape 1 / jitter^2, scale seconds * jitter^2): mean seconds, std jitter * seconds."""
  trouble = Trouble(workers, seed, slow, straggler_rate, straggler_factor, straggler_steps, death_rate, down_seconds)
  variance = _square(jitter)
  if not variance:  # the limit, for which there is no shape
    return Times(lambda worker, first, count: np.full(count, float(seconds)), trouble)
  stream = Stream(lambda rng, count: rng.gamma(1 / variance, seconds * variance, count), seed=seed, purpose=0)
  return Times(stream.take, trouble)


@checked
def trace(
  *,
  workers: PositiveInt,
  seed: int,
  path: str,
  slow: tuple[Factor, ...] = (),
  straggler_rate: UnitInterval = 0.0,
  straggler_factor: Slowdown = 1.0,
  straggler_steps: Steps = 1.0,
  death_rate: Fraction = 0.0,
  down_seconds: Seconds = 0.0,
) -> Times:
  """Recorded step times: row s, column w is worker w's step s, in seconds; .npy, or text with commas or blanks.

  FileNotFoundError, ValueError, one line, for a missing or malformed file, for fewer columns than workers, and from
  `steps` beyond its end.
  """
  trouble = Trouble(workers, seed, slow, straggler_rate, straggler_factor, straggler_steps, death_rate, down_seconds)
  table = _read(path)
  if table.shape[1] < workers:
    raise ValueError(f"{path}: {table.shape[1]} columns; invalid: must be at least {workers}, one for each worker")

  def plain(worker: int, first: int, count: int) -> np.ndarray:
    if first + count > len(table):
      raise ValueError(f"{path}: the trace ends after {len(table)} steps; invalid: must have more for worker {worker}")
    return table[first : first + count, worker]

  return Times(plain, trouble)


def _square(jitter: float) -> float:
  """Return jitter^2, the variance over the squared mean. ValueError if it is subnormal."""
  if jitter and jitter**2 < sys.float_info.min:
    raise ValueError(f"times.jitter must be 0 or >= 1.5e-154, got {jitter:g}.")
  return jitter**2


def _read(path: str) -> np.ndarray:
  file = files.regular(path)
  memory.require(file.stat().st_size, path)
  try:
    if file.suffix == ".npy":
      table = np.asarray(np.load(file, allow_pickle=False), np.float64)
    else:
      lines = [line.partition("#")[0].replace(",", " ") for line in file.read_text().splitlines()]
      if not any(line.strip() for line in lines):
        raise ValueError("it is empty")
      table = np.loadtxt(lines, ndmin=2)
  except Exception as error:  # NumPy raises many kinds, more for damaged headers
    reason = next(iter(str(error).splitlines()), type(error).__name__)
    raise ValueError(f"{path}: not a table of step seconds: {reason}") from error
  if table.ndim != 2 or not table.size:
    raise ValueError(f"{path}: shape {list(table.shape)}; invalid: must be [steps, workers]")
  if not (np.isfinite(table) & (table > 0)).all():
    row, column = np.argwhere(~(np.isfinite(table) & (table > 0)))[0]
    raise ValueError(
      f"{path}: row {row}, column {column} is {table[row, column]:g}; invalid: must be a finite number > 0"
    )
  return table


TIMES: dict[str, Callable[..., Times]] = {"constant": constant, "lognormal": lognormal, "gamma": gamma, "trace": trace}
