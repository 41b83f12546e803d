"""Time to accuracy: learning curves on a cluster's clock, who reaches the target first there, and where that turns.

A target counts as reached by the first evaluation that meets it; it was reached at some time after the evaluation
before. Who is told apart must be apart by more than both that gap and the spread over seeds. Seeds are paired: one seed
gives all algorithms the same initial parameters and order of examples.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from scipy import optimize, special

Seconds = Callable[[float], float]  # of steps of each worker, not decreasing; or, to the target, of a bandwidth


class Hit(NamedTuple):
  """Where one seed reached the target: steps of each worker, NaN for never."""

  steps: float  # of the first evaluation that meets it
  before: float  # of the evaluation before that, the same where there is none


class Estimate(NamedTuple):
  """Over seeds: the mean of those that have a value, and the half-width of its 95 % Student interval."""

  mean: float  # NaN for none
  half: float | None  # None for fewer than two values
  reached: int  # seeds with a value
  seeds: int


class Reached(NamedTuple):
  """Seconds at which one algorithm reached the target on one cluster; arrays [seeds], NaN for never."""

  at: np.ndarray
  before: np.ndarray  # the evaluation before
  estimate: Estimate  # of `at`


class Verdict(NamedTuple):
  """Who reaches the target first on one cluster."""

  winner: str | None  # None: nobody reaches it with all seeds
  second: str | None
  lead: Estimate | None  # seconds by which the second is later, over seeds
  certain: bool  # the lead is above 0 beyond the seeds' spread and the gap between evaluations


def hit(steps: np.ndarray, values: np.ndarray, target: float, higher: bool) -> Hit:
  """The first evaluation whose value is at least the target (`higher`), or at most; NaN values meet none.

  Raises:
    ValueError: for arrays of different lengths, or steps that do not increase.
  """
  steps, values = np.asarray(steps, np.float64), np.asarray(values, np.float64)
  if steps.shape != values.shape or steps.ndim != 1 or (np.diff(steps) <= 0).any():
    raise ValueError(f"a curve has increasing steps and as many values, not {steps.shape} and {values.shape}")
  met = np.flatnonzero(values >= target if higher else values <= target)
  if not len(met):
    return Hit(np.nan, np.nan)
  return Hit(float(steps[met[0]]), float(steps[max(met[0] - 1, 0)]))


def estimate(values: Sequence[float] | np.ndarray) -> Estimate:
  """mean +- t(0.975, n - 1) s / sqrt(n) of the values that are not NaN."""
  values = np.asarray(values, np.float64)
  kept = values[~np.isnan(values)]
  if len(kept) < 2:
    return Estimate(float(kept[0]) if len(kept) else np.nan, None, len(kept), len(values))
  half = special.stdtrit(len(kept) - 1, 0.975) * kept.std(ddof=1) / np.sqrt(len(kept))
  return Estimate(float(kept.mean()), float(half), len(kept), len(values))


def reached(hits: Sequence[Hit], clocks: Sequence[Seconds]) -> Reached:
  """The target on the clocks of a cluster, one of each seed.

  Raises:
    ValueError: for another number of clocks.
  """
  pairs = list(zip(hits, clocks, strict=True))
  at = np.array([np.nan if np.isnan(found.steps) else clock(found.steps) for found, clock in pairs])
  before = np.array([np.nan if np.isnan(found.before) else clock(found.before) for found, clock in pairs])
  return Reached(at, before, estimate(at))


def verdict(times: Mapping[str, Reached]) -> Verdict:
  """The best mean of those that reach the target with every seed, and whether the next one is really later."""
  complete = [name for name, each in times.items() if each.estimate.seeds and not np.isnan(each.at).any()]
  order = sorted(complete, key=lambda name: times[name].estimate.mean)
  if not order:
    return Verdict(None, None, None, False)
  if len(order) == 1:
    return Verdict(order[0], None, None, False)
  first, second = (times[name] for name in order[:2])
  lead = estimate(second.at - first.at)
  # One seed tells nothing of the spread. The second may have got there right after its evaluation before.
  certain = lead.half is not None and float(np.mean(second.before - first.at)) - lead.half > 0
  return Verdict(order[0], order[1], lead, certain)


def break_even(first: Seconds, second: Seconds, low: float, high: float) -> float | None:
  """Bandwidth in [low, high], bytes per second, at which two take equally long; None where one is always ahead.

  The root of first(bandwidth) - second(bandwidth), seconds, on log(bandwidth) by Brent's method to 0.1 %. The
  difference is taken to change its sign once, as where it is monotone: who sends less gains as bandwidth falls.

  Raises:
    ValueError: for bounds that can't be.
  """
  if not 0 < low < high < np.inf:
    raise ValueError(f"bandwidths from {low:g} to {high:g} bytes per second can't be searched; give 0 < low < high")

  def difference(log: float) -> float:
    return first(float(np.exp(log))) - second(float(np.exp(log)))

  ends = np.log(low), np.log(high)
  signs = np.sign([difference(end) for end in ends])
  if not signs[0] * signs[1] < 0:  # NaN too: who never gets there is overtaken nowhere
    return None
  root: Any = optimize.brentq(difference, *ends, xtol=1e-3)
  return float(np.exp(root))


def overtaken(times: Mapping[str, Seconds], start: float, end: float) -> tuple[str, float] | None:
  """(who is first to overtake the one ahead at `start`, the bandwidth of that), going to `end`; None: nobody does.

  A lead is looked for at two bandwidths per decade; where it turns in between, by `break_even`.

  Args:
    times: bandwidth in bytes per second -> seconds, of each.
    start, end: bandwidths, either the larger.

  Raises:
    ValueError: for bounds that can't be.
  """
  if not (min(start, end) > 0 and max(start, end) < np.inf):
    raise ValueError(f"bandwidths from {start:g} to {end:g} bytes per second can't be searched; both are above 0")
  grid = np.geomspace(start, end, 1 + math.ceil(2 * abs(math.log10(end / start)))).tolist()
  first = min(times, key=lambda name: times[name](grid[0]))
  for near, far in pairwise(grid):
    ahead = min(times, key=lambda name: times[name](far))
    if times[ahead](far) < times[first](far):
      return ahead, break_even(times[first], times[ahead], *sorted((near, far))) or near  # at `near` they are level
  return None


def interval(values: Sequence[float]) -> tuple[float, float, float]:
  """Mean and 95 % Student interval of bandwidths on a log scale, (mean, low, high); NaN bounds for a single one.

  Raises:
    ValueError: for none, or one that is not above 0.
  """
  if not len(values) or not np.min(values) > 0:
    raise ValueError("an interval is of at least one bandwidth, all above 0")
  found = estimate(np.log(values))
  half = np.nan if found.half is None else found.half
  mean, low, high = np.exp([found.mean, found.mean - half, found.mean + half])
  return float(mean), float(low), float(high)
