"""Closed forms: the round of an average, the delay and period that hide it, speed-ups, servers, break-even bandwidths.

The round of an average (DaSGD, arXiv 2006.00441): a message launched at the start of a round is merged d steps later,
so it is hidden if T_comm <= d T_step, and one is in flight at a time, so d <= tau.

Two lemmas (Zou et al. 2017, arXiv 1709.06622): the speed-up of G workers with an overhead in each step, and how many
servers hide the exchange. T = T_C + T_O: only the compute T_C shrinks with the workers G, and R_O = T_O / T_C is the
overhead of ONE worker over its compute; one that grows with G is taken at the G in question. The second lemma leaves
out latency and the server's own time. All times are in seconds.
"""

import math
from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import Any

import numpy as np
from scipy import optimize

from ddl.errors import OptionError
from ddl.perf import units

ROUNDING = 1 - 1e-12  # a quotient that is an integer but for its rounding stays one
Seconds = Callable[[float], float]  # to the target, of a bandwidth in bytes per second


def round_seconds(*, step: float, message: float, period: int = 1, delay: int = 0) -> float:
  """period * step + max(0, message - min(delay, period) * step): a message that has `delay` steps to arrive.

  With a delay above the period several are in flight on one link: a longer delay then hides no more.
  """
  units.count("period", period)
  units.count("delay", delay, 0)
  units.positive("step (s)", step)
  units.amount("message (s)", message)
  return period * step + max(0.0, message - min(delay, period) * step)


def smallest_delay(message: float, step: float) -> int:
  """D = ceil(T_comm / T_step): steps in flight that hide an exchange of `message` seconds."""
  return math.ceil(units.amount("exchange (s)", message) / units.positive("step (s)", step) * ROUNDING)


def exposed_share(message: float, step: float, *, period: int, delay: int) -> float:
  """Share of a round spent waiting: e / (tau T_step + e), e = max(0, T_comm - d T_step). 0 <= delay <= period."""
  if not 0 <= delay <= period:
    raise OptionError("delay", f"from 0 to the period of {period}", delay)
  whole = round_seconds(step=step, message=message, period=period, delay=delay)
  return (whole - period * step) / whole


def smallest_period(message: float, step: float, *, share: float, delay: int = 0) -> int:
  """Return the smallest tau >= max(1, d) of at most that exposed share: tau >= e (1 - share) / (share T_step)."""
  units.count("delay", delay, 0)
  if not 0 <= share < 1:
    raise OptionError("share of the round", "at least 0 and below 1", f"{share:g}")
  if smallest_delay(message, step) <= delay:
    return max(1, delay)
  if not share:
    raise OptionError("delay", f"{smallest_delay(message, step)} or more where nothing may be exposed", delay)
  exposed = message - delay * step
  return max(1, delay, math.ceil(exposed * (1 - share) / (share * step) * ROUNDING))


def smallest_queued_period(served: float, step: float, *, share: float) -> int:
  """Return the smallest tau whose worker round waits for at most that share: tau >= (1 - share) T_served / T_step.

  T_served is how long the servers are busy with one visit of every worker: none is served twice meanwhile.
  """
  busy = units.amount("exchange (s)", served) * (1 - share)
  return max(1, math.ceil(busy / units.positive("step (s)", step) * ROUNDING))


def efficiency(workers: float, overhead: float) -> float:
  """Alpha = (1 + R_O) / (1 + G R_O), in (0, 1]: the speed-up (T_C + T_O) / (T_C / G + T_O) over G."""
  if not workers >= 1:
    raise OptionError("number of workers", "at least 1", f"{workers:g}")
  units.amount("overhead over compute", overhead)
  return (1 + overhead) / (1 + workers * overhead)


def workers_for(share: float, overhead: float) -> float:
  """G = (1 + R_O - alpha) / (alpha R_O): up to so many workers have the efficiency alpha; infinite without overhead."""
  units.amount("overhead over compute", overhead)
  units.positive("efficiency", units.share("efficiency", share))
  return (1 + overhead - share) / (share * overhead) if overhead else math.inf


def overhead_for(share: float, workers: float) -> float:
  """R_O = (1 - alpha) / (alpha G - 1): the overhead with which G workers have the efficiency alpha, above 1 / G."""
  units.positive("efficiency", units.share("efficiency", share))
  if not share * workers > 1:
    raise OptionError("efficiency", f"above 1/{workers:g}, which any overhead leaves", f"{share:g}")
  return (1 - share) / (share * workers - 1)


def speedup_limit(overhead: float) -> float:
  """(1 + R_O) / R_O, of ever more workers; infinite without overhead."""
  return (1 + units.amount("overhead over compute", overhead)) / overhead if overhead else math.inf


def servers_for(
  params_bytes: float, workers: int, bandwidth: float, compute_seconds: float, duplex: float = 0.0
) -> int:
  """N_ps >= (2 - ov) S_p N_w / (B_ps T_C): servers that carry a round's pulls and pushes while the workers compute.

  Args:
    params_bytes: of the model, spread evenly over the servers (S_p).
    workers: that pull and push it once per round (N_w).
    bandwidth: of one server, bytes per second, one way (B_ps).
    compute_seconds: of a worker round (T_C).
    duplex: share of receiving that overlaps sending (ov): 0 as in the paper, 1 for full duplex.
  """
  busy = units.positive("bytes of the model", params_bytes) / units.positive("bandwidth of a server", bandwidth)
  needed = (2 - units.share("duplex", duplex)) * busy * units.count("number of workers", workers)
  return max(1, math.ceil(needed / units.positive("compute seconds", compute_seconds) * ROUNDING))


def break_even(first: Seconds, second: Seconds, low: float, high: float) -> float | None:
  """Return the bandwidth in [low, high], bytes/s, at which two take equally long; None if one is always ahead.

  The root of first(bandwidth) - second(bandwidth), seconds, on log(bandwidth) by Brent's method to 0.1 %. The
  difference is assumed to change its sign once, as where it is monotone: less bandwidth favours the algorithm that
  sends less. 0 < low < high.
  """
  if not 0 < low < high < np.inf:
    raise OptionError("bandwidths", "0 < low < high", f"{low:g} to {high:g} bytes/s")

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
  """
  units.positive("start bandwidth", start)
  units.positive("end bandwidth", end)
  grid = np.geomspace(start, end, 1 + math.ceil(2 * abs(math.log10(end / start)))).tolist()
  first = min(times, key=lambda name: times[name](grid[0]))
  for near, far in pairwise(grid):
    ahead = min(times, key=lambda name: times[name](far))
    if times[ahead](far) < times[first](far):
      return ahead, break_even(times[first], times[ahead], *sorted((near, far))) or near  # at `near` they are level
  return None
