"""Compute round times, sufficient delays and periods, speed-ups, numbers of servers and break-even bandwidths.

Delayed averaging (DaSGD, arXiv 2006.00441): a message launched at the start of a round is merged d steps later, so it
is hidden if T_comm <= d T_step; only one message is in flight at a time, so d <= tau.

Two lemmas (Zou et al. 2017, arXiv 1709.06622): the speed-up of G workers with an overhead in each step, and the number
of servers that hides the exchange. A step takes T = T_C + T_O: only the compute time T_C shrinks with the number of
workers G, and R_O = T_O / T_C is the overhead of ONE worker divided by its compute time; if the overhead grows with G,
its value at G is used. The second lemma ignores latency and the processing time of servers. All times are in seconds.
"""

import math
from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import Any

import numpy as np
import scipy  # imports its submodules at first use

ROUNDING = 1 - 1e-12  # prevents ceil() from rounding up a quotient that exceeds an integer only by rounding error
Seconds = Callable[[float], float]  # bandwidth in bytes per second -> seconds to reach the target of a comparison


def round_seconds(*, step: float, message: float, period: int = 1, delay: int = 0) -> float:
  """Return the seconds of a round with a delayed message: period * step + max(0, message - min(delay, period) * step).

  If the delay exceeds the period, several messages share one link, so a longer delay hides no more.
  """
  return period * step + max(0.0, message - min(delay, period) * step)


def smallest_delay(message: float, step: float) -> int:
  """Return the smallest delay that hides an exchange of `message` seconds: d = ceil(T_comm / T_step)."""
  return math.ceil(message / step * ROUNDING)


def exposed_share(message: float, step: float, *, period: int, delay: int) -> float:
  """Return the share of a round spent waiting: e / (tau T_step + e) with e = max(0, T_comm - d T_step), d <= tau."""
  whole = round_seconds(step=step, message=message, period=period, delay=delay)
  return (whole - period * step) / whole


def smallest_period(message: float, step: float, *, share: float, delay: int = 0) -> int:
  """Return the smallest period >= max(1, d) with which at most `share` of a round is spent waiting.

  tau >= e (1 - share) / (share T_step), with e as in `exposed_share`.
  """
  if smallest_delay(message, step) <= delay:
    return max(1, delay)
  exposed = message - delay * step
  return max(1, delay, math.ceil(exposed * (1 - share) / (share * step) * ROUNDING))


def efficiency(workers: float, overhead: float) -> float:
  """Return the efficiency (1 + R_O) / (1 + G R_O): the speed-up (T_C + T_O) / (T_C / G + T_O) divided by G."""
  return (1 + overhead) / (1 + workers * overhead)


def workers_for(share: float, overhead: float) -> float:
  """Return the largest number of workers G with which the efficiency is at least `share` (alpha).

  G = (1 + R_O - alpha) / (alpha R_O); infinite without overhead.
  """
  return (1 + overhead - share) / (share * overhead) if overhead else math.inf


def overhead_for(share: float, workers: float) -> float:
  """Return the overhead R_O with which G workers have the efficiency `share` (alpha), which must exceed 1 / G.

  R_O = (1 - alpha) / (alpha G - 1).
  """
  return (1 - share) / (share * workers - 1)


def speedup_limit(overhead: float) -> float:
  """Return the speed-up in the limit of many workers: (1 + R_O) / R_O; infinite without overhead."""
  return (1 + overhead) / overhead if overhead else math.inf


def servers_for(
  params_bytes: float, workers: int, bandwidth: float, compute_seconds: float, duplex: float = 0.0
) -> int:
  """Return the smallest number of servers that hides a round's pulls and pushes: N_ps >= (2 - ov) S_p N_w / (B_ps T_C).

  Args:
    params_bytes: bytes of the model, spread evenly over the servers (S_p).
    workers: number of workers, each of which pulls and pushes the model once per round (N_w).
    bandwidth: bandwidth of one server in bytes per second, one way (B_ps).
    compute_seconds: compute time of a worker round (T_C).
    duplex: share of receiving that overlaps sending (ov): 0 as in the paper, 1 for full duplex.
  """
  needed = (2 - duplex) * params_bytes / bandwidth * workers
  return max(1, math.ceil(needed / compute_seconds * ROUNDING))


def break_even(first: Seconds, second: Seconds, low: float, high: float) -> float | None:
  """Return the bandwidth in [low, high] (bytes/s) at which both algorithms take equally long, or None.

  The result is None if one algorithm is always faster or never reaches the target. Otherwise, it is the root of
  first(bandwidth) - second(bandwidth) in log(bandwidth), by Brent's method to 0.1 %. The difference is assumed to
  change sign at most once, because a lower bandwidth favors the algorithm that sends less.
  """

  def difference(log: float) -> float:
    return first(float(np.exp(log))) - second(float(np.exp(log)))

  ends = np.log(low), np.log(high)
  signs = np.sign([difference(end) for end in ends])
  if not signs[0] * signs[1] < 0:  # also for NaN, the time of an algorithm that never reaches the target
    return None
  root: Any = scipy.optimize.brentq(difference, *ends, xtol=1e-3)
  return float(np.exp(root))


def overtaken(times: Mapping[str, Seconds], start: float, end: float) -> tuple[str, float] | None:
  """Return (name, bandwidth) of the first algorithm to overtake the one that is fastest at `start`, or None.

  Search two bandwidths (bytes/s) per decade from `start` to `end` for a change of the fastest algorithm, then solve
  with `break_even`.
  """
  grid = np.geomspace(start, end, 1 + math.ceil(2 * abs(math.log10(end / start)))).tolist()
  first = min(times, key=lambda name: times[name](grid[0]))
  for near, far in pairwise(grid):
    ahead = min(times, key=lambda name: times[name](far))
    if times[ahead](far) < times[first](far):
      return ahead, break_even(times[first], times[ahead], *sorted((near, far))) or near  # None: equal at `near`
  return None
