"""A run cut into calls: which steps each compiled call makes, so that evaluations fall between calls."""

from typing import NamedTuple

from ddl.api import Algorithm
from ddl.schedule import Due, due


class Call(NamedTuple):
  """`repeat` times the steps of `unit`, from step `first` on."""

  first: int
  unit: tuple[Due, ...]  # what is due at each step
  repeat: int

  @property
  def steps(self) -> int:
    """Number of steps."""
    return len(self.unit) * self.repeat

  @property
  def end(self) -> int:
    """The step after the last."""
    return self.first + self.steps


def plan(algorithm: Algorithm, first: int, last: int, every: int, longest: int) -> list[Call]:
  """Calls of at most `longest` steps that cover first..last-1 and pause at each multiple of `every`.

  Whole rounds are kept together, several to a call, where a round is at most `longest` steps; of each kind of call
  there are few lengths, since each is compiled. A message may be in flight between two calls.
  """
  calls, step = [], first
  while step < last:
    stop = min(last, (step // every + 1) * every)
    while step < stop:
      calls.append(_next(algorithm, step, stop, longest))
      step = calls[-1].end
  return calls


def _next(algorithm: Algorithm, step: int, stop: int, longest: int) -> Call:
  """The call from `step` on that ends at `stop` at the latest."""
  start, period = algorithm.start, algorithm.period
  if step < start:
    return Call(step, (due(algorithm, step),), _share(min(stop, start) - step, longest))
  into = (step - start) % period
  unit = tuple(due(algorithm, t) for t in range(step, min(step + period - into, stop)))
  if into or len(unit) < period or period > longest:
    return Call(step, unit[: _share(len(unit), longest)], 1)
  rounds = (stop - step) // period
  alike = 1
  while alike < rounds and all(due(algorithm, step + alike * period + i) == unit[i] for i in range(period)):
    alike += 1
  return Call(step, unit, _share(alike, longest // period))


def _share(total: int, longest: int) -> int:
  """The length of the first of as few as possible parts of nearly equal length, none above `longest`."""
  parts = -(-total // longest)
  return -(-total // parts)
