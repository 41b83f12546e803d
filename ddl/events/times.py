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

import numpy as np

from ddl import files, memory
from ddl.events.faults import Death, Trouble, not_negative, positive
from ddl.events.rng import Stream


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


def constant(
  *,
  workers: int,
  seed: int,
  seconds: float = 0.01,
  slow: tuple[float, ...] = (),
  straggler_rate: float = 0.0,
  straggler_factor: float = 1.0,
  straggler_steps: float = 1.0,
  death_rate: float = 0.0,
  down_seconds: float = 0.0,
) -> Times:
  """Every step takes the same time. ValueError, one line, for invalid values."""
  positive("seconds", seconds)
  trouble = Trouble(workers, seed, slow, straggler_rate, straggler_factor, straggler_steps, death_rate, down_seconds)
  return Times(lambda worker, first, count: np.full(count, float(seconds)), trouble)


def lognormal(
  *,
  workers: int,
  seed: int,
  seconds: float = 0.01,
  jitter: float = 0.1,
  slow: tuple[float, ...] = (),
  straggler_rate: float = 0.0,
  straggler_factor: float = 1.0,
  straggler_steps: float = 1.0,
  death_rate: float = 0.0,
  down_seconds: float = 0.0,
) -> Times:
  """log x ~ Normal(log seconds - s^2 / 2, s^2), s^2 = log(1 + jitter^2): mean seconds, std jitter * seconds."""
  variance = np.log1p(_square(jitter))
  center, spread = np.log(positive("seconds", seconds)) - variance / 2, np.sqrt(variance)
  stream = Stream(lambda rng, count: rng.lognormal(center, spread, count), seed=seed, purpose=0)
  trouble = Trouble(workers, seed, slow, straggler_rate, straggler_factor, straggler_steps, death_rate, down_seconds)
  return Times(stream.take, trouble)


def gamma(
  *,
  workers: int,
  seed: int,
  seconds: float = 0.01,
  jitter: float = 0.1,
  slow: tuple[float, ...] = (),
  straggler_rate: float = 0.0,
  straggler_factor: float = 1.0,
  straggler_steps: float = 1.0,
  death_rate: float = 0.0,
  down_seconds: float = 0.0,
) -> Times:
  """x ~ Gamma(shape 1 / jitter^2, scale seconds * jitter^2): mean seconds, std jitter * seconds."""
  trouble = Trouble(workers, seed, slow, straggler_rate, straggler_factor, straggler_steps, death_rate, down_seconds)
  positive("seconds", seconds)
  variance = _square(jitter)
  if not variance:  # the limit, for which there is no shape
    return Times(lambda worker, first, count: np.full(count, float(seconds)), trouble)
  stream = Stream(lambda rng, count: rng.gamma(1 / variance, seconds * variance, count), seed=seed, purpose=0)
  return Times(stream.take, trouble)


def trace(
  *,
  workers: int,
  seed: int,
  path: str,
  slow: tuple[float, ...] = (),
  straggler_rate: float = 0.0,
  straggler_factor: float = 1.0,
  straggler_steps: float = 1.0,
  death_rate: float = 0.0,
  down_seconds: float = 0.0,
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
  """Return jitter^2, the variance over the squared mean. ValueError if it is subnormal or overflows."""
  square = not_negative("jitter", jitter) * jitter
  if not (square == 0 == jitter or sys.float_info.min <= square <= sys.float_info.max):
    raise ValueError(f"jitter is {jitter:g}; invalid: must be 0, or have a square from 1e-307 to 1e308")
  return square


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
