"""Bounds: speed-up with an overhead, servers that hide the exchange, the critical batch, and break-even bandwidths.

Two lemmas: the speed-up of G workers with an overhead in each step, and how many servers hide the exchange.
Zou et al. 2017, arXiv 1709.06622. T = T_C + T_O: only the compute T_C shrinks with the workers G, and
R_O = T_O / T_C is the overhead of ONE worker over its compute. An overhead that grows with G breaks the first lemma:
take R_O at the G in question then. The second leaves out latency and the server's own time. Every function raises
ValueError for invalid numbers.

What a larger global batch costs in convergence: the critical batch, where it is known.
McCandlish, Kaplan, Amodei et al. 2018, arXiv 1812.06162, with B of the global batch, B_c of the critical one, which the
gradient noise scale B_simple of a run estimates: to the same loss
steps = S_min (1 + B_c / B),   examples = E_min (1 + B / B_c),   E_min = B_c S_min.
Tuned learning rates are meant. Where B_c is not known, a usual batch stands for the largest that has been shown to cost
nothing in a job of the kind.
"""

import math
from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from scipy import optimize

from ddl.perf import units
from ddl.perf.planning.delays import ROUNDING


def speedup(workers: float, overhead: float) -> float:
  """(T_C + T_O) / (T_C / G + T_O) = G (1 + R_O) / (1 + G R_O)."""
  return workers * efficiency(workers, overhead)


def efficiency(workers: float, overhead: float) -> float:
  """Alpha = speedup / G = (1 + R_O) / (1 + G R_O), in (0, 1]."""
  if not workers >= 1:
    raise ValueError(f"number of workers is {workers:g}; invalid: must be at least 1")
  units.amount("overhead over compute", overhead)
  return (1 + overhead) / (1 + workers * overhead)


def workers_for(share: float, overhead: float) -> float:
  """G = (1 + R_O - alpha) / (alpha R_O): up to so many workers have the efficiency alpha; infinite without overhead."""
  units.amount("overhead over compute", overhead)
  return (1 + overhead - _share(share)) / (share * overhead) if overhead else math.inf


def overhead_for(share: float, workers: float) -> float:
  """R_O = (1 - alpha) / (alpha G - 1): the overhead with which G workers have the efficiency alpha, above 1 / G."""
  if not _share(share) * workers > 1:
    raise ValueError(f"efficiency is {share:g}; invalid: must be above 1/{workers:g}, which any overhead leaves")
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


def _share(share: float) -> float:
  return units.positive("efficiency", units.share("efficiency", share))


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
  units.positive("start bandwidth", start)
  units.positive("end bandwidth", end)
  grid = np.geomspace(start, end, 1 + math.ceil(2 * abs(math.log10(end / start)))).tolist()
  first = min(times, key=lambda name: times[name](grid[0]))
  for near, far in pairwise(grid):
    ahead = min(times, key=lambda name: times[name](far))
    if times[ahead](far) < times[first](far):
      return ahead, break_even(times[first], times[ahead], *sorted((near, far))) or near  # at `near` they are level
  return None


class Usual(NamedTuple):
  """A global batch that is known to cost nothing or little."""

  examples: int
  source: str


IMAGES = Usual(8192, "ResNet-50 on ImageNet lost nothing up to 8,192 (Goyal et al. 2017, arXiv 1706.02677)")


LANGUAGE = (  # parameters below which, tokens of a step, source
  (3e9, 480 * 1024, "GPT-2 124M trains with 491,520 tokens a step (nanoGPT, config/train_gpt2.py)"),
  (float("inf"), 4_000_000, "Llama 2 of 7B to 70B trained with 4 million tokens a step (arXiv 2307.09288)"),
)


def of_language(params: float, length: int) -> Usual:
  """The usual batch of a language model in sequences of so many tokens."""
  tokens, source = next((tokens, source) for below, tokens, source in LANGUAGE if params < below)
  return Usual(max(1, tokens // length), source)


def examples_factor(batch: float, critical: float) -> float:
  """1 + B / B_c: examples to a loss, over those that ever smaller batches need."""
  return 1 + units.positive("batch", batch) / units.positive("critical batch", critical)


def seconds_factor(batch: float, critical: float, step: float) -> float:
  """(1 / B + 1 / B_c) T: seconds to a loss over E_min, of steps of T seconds."""
  return units.positive("step (s)", step) * examples_factor(batch, critical) / batch
