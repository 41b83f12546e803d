"""Step times of workers: named distributions, stragglers and deaths, each a function of (seed, worker, step).

The keyword-only arguments of a factory are its settings. All factories share these settings:
  slow: a multiplier of the step time for each worker; () for none
  straggler_rate, straggler_factor, straggler_steps: at each step a worker becomes a straggler with probability
    straggler_rate: it is straggler_factor times slower for a geometrically distributed number of steps with mean
    straggler_steps
  death_rate, down_seconds: at each step a worker dies with probability death_rate, restarts down_seconds later, and
    repeats its round from the last exchange, without dying at that step again
Stragglers and deaths are drawn by worker and step, so that they are the same for algorithms with different periods.
"""

import functools
import inspect
import sys
from collections.abc import Callable, Sequence
from typing import Annotated, Any, NamedTuple

import numpy as np

from ddl import files, memory
from ddl.errors import OptionError
from ddl.ranges import LARGEST_SECONDS, Fraction, PositiveInt, Range, Seconds, UnitInterval, checked

BLOCK = 1024  # draws per generator; creating a generator costs as much as a thousand draws


class Stream:
  """An infinite sequence of independent draws for each worker."""

  def __init__(self, draw: Callable[[np.random.Generator, int], np.ndarray], *, seed: int, purpose: int):
    """Set the distribution. draw: (generator, count) -> [count, ...]; purpose: distinguishes streams of one seed."""
    if seed < 0:
      raise OptionError("seed", ">= 0", seed)
    self._draw, self._seed, self._purpose = draw, seed, purpose
    self._blocks: dict[tuple[int, int], np.ndarray] = {}

  def take(self, worker: int, first: int, count: int) -> np.ndarray:
    """Return draws first, ..., first + count - 1 of a worker: [count, ...]."""
    block, position = divmod(first, BLOCK)
    if position + count <= BLOCK:
      return self._block(worker, block)[position : position + count]
    last = (first + count - 1) // BLOCK
    blocks = [self._block(worker, index) for index in range(block, last + 1)]
    return np.concatenate(blocks)[position : position + count]

  def _block(self, worker: int, block: int) -> np.ndarray:
    values = self._blocks.get((worker, block))
    if values is None:
      rng = np.random.default_rng(np.random.SeedSequence((self._seed, self._purpose, worker, block)))
      values = self._blocks[worker, block] = self._draw(rng, BLOCK)
    return values


PlainTimes = Callable[[int, int, int], np.ndarray]  # (worker, first step, count) -> [count] seconds
Plain = PlainTimes | tuple[PlainTimes, Sequence[float]]  # with the mean seconds of each worker if these differ
StepSeconds = Annotated[float, Range(0, LARGEST_SECONDS, open_low=True)]
Jitter = Annotated[float, Range(0, 10)]  # with more jitter a few steps dominate the mean over a run
Factor = Annotated[float, Range(0, 1e6, open_low=True)]
Slowdown = Annotated[float, Range(1, 1e6)]
Steps = Annotated[float, Range(1, 1e9)]


class Death(NamedTuple):
  """A death within a round. The worker repeats the whole round, without dying at that step again."""

  work_seconds: float  # lost work: seconds from the start of the round to the death
  down_seconds: float


class Times:
  """Step times and deaths as a pure function of (seed, worker, step).

  A worker becomes a straggler at each step with probability straggler_rate, and stops being one at each later step with
  probability 1 / straggler_steps.
  """

  def __init__(
    self,
    plain: Plain,
    *,
    workers: PositiveInt,
    seed: int,
    slow: tuple[Factor, ...] = (),
    straggler_rate: UnitInterval = 0.0,
    straggler_factor: Slowdown = 1.0,
    straggler_steps: Steps = 1.0,
    death_rate: Fraction = 0.0,
    down_seconds: Seconds = 0.0,
  ):
    """Add shared settings to `plain` step times. Raises ValueError if `slow` has neither 0 nor `workers` entries."""
    if slow and len(slow) != workers:
      condition = f"empty or have one multiplier per worker ({workers})"
      raise ValueError(f"config.times.slow must be {condition}, got {len(slow)}.")
    self._plain, means = plain if isinstance(plain, tuple) else (plain, (1.0,) * workers)
    self._slow, self.workers = tuple(map(float, slow)) or (1.0,) * workers, workers
    self.means = tuple(mean * factor for mean, factor in zip(means, self._slow, strict=True))  # up to a common factor
    self._rate, self._factor, self._stop = straggler_rate, straggler_factor, 1 / straggler_steps
    self._death_rate, self._down = death_rate, float(down_seconds)
    # three uniform numbers per step: for stragglers, for deaths, and for the time of a death within the step
    self._chance = Stream(lambda rng, count: rng.random((count, 3)), seed=seed, purpose=1)
    self._straggles = [np.zeros(0, bool) for _ in range(workers)]  # a Markov chain, extended on demand from step 0

  def steps(self, worker: int, first: int, count: int) -> np.ndarray:
    """Return the durations, in seconds, of steps first, ..., first + count - 1: [count]."""
    seconds = self._plain(worker, first, count)
    if not self._rate:
      return seconds * self._slow[worker]
    chain = self._straggles[worker]
    if len(chain) < first + count:
      chance = self._chance.take(worker, len(chain), max(first + count - len(chain), len(chain), BLOCK))[:, 0]
      more = markov_chain(chance < self._rate, chance < self._stop, bool(chain[-1]) if len(chain) else False)
      chain = self._straggles[worker] = np.concatenate([chain, more])
    return seconds * np.where(chain[first : first + count], self._slow[worker] * self._factor, self._slow[worker])

  def deaths(self, worker: int, first: int, seconds: np.ndarray) -> list[Death]:
    """Return the deaths, in order, in a round that starts at step `first` and whose steps take `seconds` [steps]."""
    if not self._death_rate:
      return []
    _, dies, share = self._chance.take(worker, first, len(seconds)).T
    work = np.cumsum(seconds) - (1 - share) * seconds
    return [Death(lost, self._down) for lost in work[dies < self._death_rate].tolist()]


def markov_chain(starts: np.ndarray, stops: np.ndarray, state: bool) -> np.ndarray:
  """Return the states of a two-state chain after each step: [steps] bool.

  Args:
    starts: [steps] bool: whether a step turns False into True.
    stops: [steps] bool: whether a step turns True into False.
    state: the state before the first step.
  """
  # the last step whose result does not depend on the state before it
  fixed = np.maximum.accumulate(np.where(starts != stops, np.arange(len(starts)), -1))
  flips = np.cumsum(starts & stops)
  known = fixed >= 0
  odd = (flips - np.where(known, flips[fixed], 0)) % 2 == 1
  return np.where(known, starts[fixed], state) ^ odd


def not_negative(name: str, value: float) -> float:
  """Return the value; raise OptionError unless it is finite and >= 0."""
  if not (np.isfinite(value) and value >= 0):
    raise OptionError(name, "a finite number >= 0", f"{value:g}")
  return value


def _step_times(factory: Callable[..., Plain]) -> Callable[..., Times]:
  """Convert a factory of plain step times to a factory of `Times` that also takes the shared settings."""
  specific, shared = (inspect.signature(function).parameters for function in (factory, Times))
  parameters = {key: x for key, x in {**specific, **shared}.items() if x.kind is x.KEYWORD_ONLY}
  signature = inspect.Signature([*parameters.values()])

  @functools.wraps(factory)
  def make_times(**settings: Any) -> Times:
    values = signature.bind(**settings).arguments
    plain = factory(**{key: value for key, value in values.items() if key in specific})
    return Times(plain, **{key: value for key, value in values.items() if key in shared})

  make_times.__signature__ = signature  # pyright: ignore[reportAttributeAccessIssue]
  return checked(make_times)


@_step_times
def constant(*, seconds: StepSeconds = 0.01) -> PlainTimes:
  """Constant step times."""
  return lambda worker, first, count: np.full(count, float(seconds))


@_step_times
def lognormal(*, seed: int, seconds: StepSeconds = 0.01, jitter: Jitter = 0.1) -> PlainTimes:
  """Lognormal step times with mean `seconds` and standard deviation jitter * seconds.

  log x ~ Normal(log seconds - s^2 / 2, s^2), s^2 = log(1 + jitter^2).
  """
  variance = np.log1p(_square(jitter))
  center, spread = np.log(seconds) - variance / 2, np.sqrt(variance)
  return Stream(lambda rng, count: rng.lognormal(center, spread, count), seed=seed, purpose=0).take


@_step_times
def gamma(*, seed: int, seconds: StepSeconds = 0.01, jitter: Jitter = 0.1) -> PlainTimes:
  """Gamma-distributed step times with mean `seconds` and standard deviation jitter * seconds.

  x ~ Gamma(shape 1 / jitter^2, scale seconds * jitter^2).
  """
  variance = _square(jitter)
  if not variance:  # the limit of a constant, for which the shape is infinite
    return lambda worker, first, count: np.full(count, float(seconds))
  return Stream(lambda rng, count: rng.gamma(1 / variance, seconds * variance, count), seed=seed, purpose=0).take


@_step_times
def trace(*, workers: PositiveInt, path: str) -> Plain:
  """Recorded step times [steps, workers] in seconds: a .npy file, or text with columns separated by commas or blanks.

  Raises FileNotFoundError for a missing file, and a one-line ValueError for a malformed file, for fewer columns than
  workers, or when a run needs more steps than the file has.
  """
  table = _read(path)
  if table.shape[1] < workers:
    raise OptionError(f"the number of columns of {path}", f"at least {workers} (one per worker)", table.shape[1])

  def plain(worker: int, first: int, count: int) -> np.ndarray:
    if first + count > len(table):
      condition = f"at least {first + count} (one per step of worker {worker})"
      raise OptionError(f"the number of rows of {path}", condition, len(table))
    return table[first : first + count, worker]

  return plain, table[:, :workers].mean(axis=0).tolist()


def _square(jitter: float) -> float:
  """Return jitter^2, the variance divided by the squared mean; raise ValueError if it underflows."""
  if jitter and jitter**2 < sys.float_info.min:
    raise ValueError(f"config.times.jitter must be 0 or >= 1.5e-154, got {jitter:g}.")
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
        raise ValueError("the file has no numbers")
      table = np.loadtxt(lines, ndmin=2)
  except Exception as error:  # NumPy raises many types of exceptions for damaged files
    reason = next(iter(str(error).splitlines()), type(error).__name__)
    raise ValueError(f"{path} is not a table of step seconds: {reason}") from error
  if table.ndim != 2 or not table.size:
    raise OptionError(f"the shape of {path}", "[steps, workers] with at least one of each", list(table.shape))
  if not (np.isfinite(table) & (table > 0)).all():
    row, column = np.argwhere(~(np.isfinite(table) & (table > 0)))[0]
    raise OptionError(f"row {row}, column {column} of {path}", "a finite number > 0", f"{table[row, column]:g}")
  return table


TIMES: dict[str, Callable[..., Times]] = {"constant": constant, "lognormal": lognormal, "gamma": gamma, "trace": trace}
