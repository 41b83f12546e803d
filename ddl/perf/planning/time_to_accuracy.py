"""Time to accuracy as a function of the bandwidth: break-even of two algorithms, and the first change of the lead."""

import math
from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import Any

import numpy as np
from scipy import optimize

from ddl.perf import checks

Seconds = Callable[[float], float]  # to the target, of a bandwidth in bytes per second


def break_even(first: Seconds, second: Seconds, low: float, high: float) -> float | None:
  """Return the bandwidth in [low, high], bytes/s, at which two take equally long; None if one is always ahead.

  The root of first(bandwidth) - second(bandwidth), seconds, on log(bandwidth) by Brent's method to 0.1 %. The
  difference is assumed to change its sign once, as where it is monotone: less bandwidth favours the algorithm that
  sends less. 0 < low < high.
  """
  if not 0 < low < high < np.inf:
    raise ValueError(f"bandwidths from {low:g} to {high:g} bytes/s are invalid: must be 0 < low < high")

  def difference(log: float) -> float:
    return first(float(np.exp(log))) - second(float(np.exp(log)))

  ends = np.log(low), np.log(high)
  signs = np.sign([difference(end) for end in ends])
  if not signs[0] * signs[1] < 0:  # also for NaN, the time of one that never reaches the target
    return None
  root: Any = optimize.brentq(difference, *ends, xtol=1e-3)
  return float(np.exp(root))


def overtaken(times: Mapping[str, Seconds], start: float, end: float) -> tuple[str, float] | None:
  """Return (the first to overtake the one ahead at `start`, the bandwidth where it does) on the way to `end`, or None.

  Two bandwidths per decade are searched for a change of the lead, which `break_even` then solves for.

  Args:
    times: bandwidth in bytes per second -> seconds, of each.
    start, end: bandwidths, finite and above 0, either the larger.
  """
  checks.positive("start bandwidth", start)
  checks.positive("end bandwidth", end)
  grid = np.geomspace(start, end, 1 + math.ceil(2 * abs(math.log10(end / start)))).tolist()
  first = min(times, key=lambda name: times[name](grid[0]))
  for near, far in pairwise(grid):
    ahead = min(times, key=lambda name: times[name](far))
    if times[ahead](far) < times[first](far):
      return ahead, break_even(times[first], times[ahead], *sorted((near, far))) or near  # at `near` they are level
  return None
