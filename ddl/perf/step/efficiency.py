"""How near a step comes to the peak: the curve fitted from measured steps."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from scipy.optimize import lsq_linear

from ddl.perf.hardware.device import Efficiency


class Fit(NamedTuple):
  """A fitted curve, and how far it is from what was measured."""

  efficiency: Efficiency
  errors: tuple[float, ...]  # per measurement: predicted / measured - 1


def fit(
  flop_per_example: float,
  peak: float,
  examples: Sequence[float],
  seconds: Sequence[float],
  *,
  best: float | None = None,
  half: float | None = None,
) -> Fit:
  """The efficiency whose step times are nearest to measured ones, in relative least squares.

  t(b) = F (b + half) / (peak best) is linear in 1 / best and half / best, so that the optimum within 0 < best <= 1 and
  half >= 0 is the global one.

  Args:
    flop_per_example: F of a training step.
    peak: FLOP per second of one worker.
    examples: per worker and step, one per measurement.
    seconds: of the steps.
    best: given instead of fitted.
    half: given instead of fitted, in examples. One measurement, or several of one size, fit one parameter alone.

  Raises:
    ValueError: for invalid figures, a step faster than the peak allows, or fewer sizes than parameters.
  """
  b, t = np.asarray(examples, float), np.asarray(seconds, float)
  scale = _check(flop_per_example, peak, b, t)
  if best is not None and half is not None:
    raise ValueError("best and half are both given; there is nothing to fit")
  if best is not None and not 0 < best <= 1:
    raise ValueError(f"best is {best:g}; it is in (0, 1]")
  if half is not None and not 0 <= half < math.inf:
    raise ValueError(f"half is {half:g} examples; it is 0 or more")
  if best is None and half is None and len(set(b)) < 2:
    raise ValueError("steps of one size cannot fit both best and half; measure two sizes, or give one of the two")
  slope, offset = scale * b / t, scale / t  # t / t = slope / best + offset half / best
  ones = np.ones_like(t)
  if half is not None:
    (inverse,) = _solve((slope + offset * half)[:, None], ones, [1.0])
    found = Efficiency(float(1 / inverse), half)
  elif best is not None:
    (product,) = _solve(offset[:, None], ones - slope / best, [0.0])
    found = Efficiency(best, float(product * best))
  else:
    inverse, product = _solve(np.stack([slope, offset], axis=1), ones, [1.0, 0.0])
    found = Efficiency(float(1 / inverse), float(product / inverse))
  predicted = scale * (b + found.half) / found.best
  return Fit(found, tuple((predicted / t - 1).tolist()))


def _solve(columns: np.ndarray, target: np.ndarray, lowest: list[float]) -> np.ndarray:
  """The least squares with bounds from below, exact on a bound too."""
  return lsq_linear(columns, target, (lowest, np.inf), method="bvls").x


def _check(flop_per_example: float, peak: float, b: np.ndarray, t: np.ndarray) -> float:
  """F / peak, if the measurements can be."""
  if b.shape != t.shape or b.ndim != 1 or not b.size:
    raise ValueError(f"{b.size} sizes and {t.size} times; give one time per size, and at least one")
  if not (0 < flop_per_example < math.inf and 0 < peak < math.inf):
    raise ValueError(f"{flop_per_example:g} FLOP per example at a peak of {peak:g} FLOP/s; both have to be above 0")
  for size, time in zip(b, t, strict=True):
    if not (0 < size < math.inf and 0 < time < math.inf):
      raise ValueError(f"a step on {size:g} examples in {time:g} s is invalid: both must be above 0")
    if flop_per_example * size > peak * time * (1 + 1e-9):
      share = flop_per_example * size / (peak * time)
      raise ValueError(f"a step on {size:g} examples in {time:g} s is {share:.3g} times as fast as the peak allows")
  return flop_per_example / peak
