"""How long a worker's steps take: distributions by name. A new one is a function here and a registry line.

The keyword-only arguments of a factory are its settings. All but the first two are of one kind:
  slow: a multiplier per worker, () for none
  straggler_rate, straggler_factor, straggler_turns: a worker becomes that many times slower with that probability per
    turn, for a geometric number of turns with that mean
  death_rate, down_seconds: a worker dies with that probability per turn and comes back so many seconds later
"""

from collections.abc import Callable
from pathlib import Path

import numpy as np

from ddl.events.faults import Death, Trouble, not_negative, positive
from ddl.events.rng import Stream


class Times:
  """Step times as a pure function of (seed, worker, step); a turn of `count` steps has those from turn * count on."""

  def __init__(self, plain: Callable[[int, int, int], np.ndarray], trouble: Trouble):
    """plain: (worker, first step, count) -> [count] seconds without any trouble."""
    self._plain, self._trouble = plain, trouble
    self.workers = trouble.workers

  def steps(self, worker: int, turn: int, count: int) -> np.ndarray:
    """How long each of the turn's steps takes: [count] seconds."""
    return self._plain(worker, turn * count, count) * self._trouble.factor(worker, turn)

  def deaths(self, worker: int, turn: int) -> Death | None:
    """What is lost of this turn before it is done in full; None for nothing."""
    return self._trouble.death(worker, turn)


def constant(
  *,
  workers: int,
  seed: int,
  seconds: float = 0.01,
  slow: tuple[float, ...] = (),
  straggler_rate: float = 0.0,
  straggler_factor: float = 1.0,
  straggler_turns: float = 1.0,
  death_rate: float = 0.0,
  down_seconds: float = 0.0,
) -> Times:
  """Every step takes the same time. ValueError, one line, for values that can't be."""
  positive("seconds", seconds)
  trouble = Trouble(workers, seed, slow, straggler_rate, straggler_factor, straggler_turns, death_rate, down_seconds)
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
  straggler_turns: float = 1.0,
  death_rate: float = 0.0,
  down_seconds: float = 0.0,
) -> Times:
  """log x ~ Normal(log seconds - s^2 / 2, s^2), s^2 = log(1 + jitter^2): mean seconds, std jitter * seconds."""
  variance = np.log1p(not_negative("jitter", jitter) ** 2)
  center, spread = np.log(positive("seconds", seconds)) - variance / 2, np.sqrt(variance)
  stream = Stream(lambda rng, count: rng.lognormal(center, spread, count), seed=seed, purpose=0)
  trouble = Trouble(workers, seed, slow, straggler_rate, straggler_factor, straggler_turns, death_rate, down_seconds)
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
  straggler_turns: float = 1.0,
  death_rate: float = 0.0,
  down_seconds: float = 0.0,
) -> Times:
  """x ~ Gamma(shape 1 / jitter^2, scale seconds * jitter^2): mean seconds, std jitter * seconds."""
  trouble = Trouble(workers, seed, slow, straggler_rate, straggler_factor, straggler_turns, death_rate, down_seconds)
  positive("seconds", seconds)
  if not not_negative("jitter", jitter):  # the limit, which the shape can't express
    return Times(lambda worker, first, count: np.full(count, float(seconds)), trouble)
  stream = Stream(lambda rng, count: rng.gamma(jitter**-2, seconds * jitter**2, count), seed=seed, purpose=0)
  return Times(stream.take, trouble)


def trace(
  *,
  workers: int,
  seed: int,
  path: str,
  slow: tuple[float, ...] = (),
  straggler_rate: float = 0.0,
  straggler_factor: float = 1.0,
  straggler_turns: float = 1.0,
  death_rate: float = 0.0,
  down_seconds: float = 0.0,
) -> Times:
  """Recorded step times: row s, column w is worker w's step s, in seconds; .npy, or text with commas or blanks.

  ValueError, one line, for a file that isn't that, for fewer columns than workers, and in `steps` where it ends.
  """
  trouble = Trouble(workers, seed, slow, straggler_rate, straggler_factor, straggler_turns, death_rate, down_seconds)
  table = _read(path)
  if table.shape[1] < workers:
    raise ValueError(f"{path}: {table.shape[1]} columns, one for each worker, are too few for {workers} workers")

  def plain(worker: int, first: int, count: int) -> np.ndarray:
    if first + count > len(table):
      raise ValueError(f"{path}: the trace is too short: it has {len(table)} steps, worker {worker} needs another")
    return table[first : first + count, worker]

  return Times(plain, trouble)


def _read(path: str) -> np.ndarray:
  if not Path(path).is_file():
    raise ValueError(f"{path}: no such trace file")
  try:
    if path.endswith(".npy"):
      table = np.asarray(np.load(path, allow_pickle=False), np.float64)
    else:
      text = Path(path).read_text()
      if not text.strip():
        raise ValueError("it is empty")
      table = np.loadtxt(text.replace(",", " ").splitlines(), ndmin=2)
  except (ValueError, TypeError, EOFError) as error:
    raise ValueError(f"{path}: not a table of step seconds: {str(error).splitlines()[0]}") from error
  if table.ndim != 2 or not table.size:
    raise ValueError(f"{path}: a trace is a table [steps, workers], not of shape {list(table.shape)}")
  if not (np.isfinite(table) & (table > 0)).all():
    row, column = np.argwhere(~(np.isfinite(table) & (table > 0)))[0]
    raise ValueError(f"{path}: row {row}, column {column} is {table[row, column]:g}; must be a finite number > 0")
  return table


TIMES: dict[str, Callable[..., Times]] = {"constant": constant, "lognormal": lognormal, "gamma": gamma, "trace": trace}
