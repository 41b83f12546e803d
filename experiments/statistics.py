"""Means over seeds and what they can tell: Student intervals, bands of curves, the first time that a target is met."""

from collections.abc import Sequence

import numpy as np
from scipy import special  # scipy.stats would cost a second at start-up

Curve = tuple[np.ndarray, np.ndarray]  # x [points] increasing, y [points]


def summary(values: Sequence[float] | np.ndarray) -> tuple[float, float | None]:
  """Mean and half-width of its 95 % confidence interval: t(0.975, n - 1) s / sqrt(n), s the sample deviation.

  The half-width is None for fewer than two values, which show no spread. NaN gives NaN: what to leave out is for the
  caller to decide and to say. No values at all have mean NaN.
  """
  values = np.asarray(values, np.float64)
  if values.size == 0:
    return float("nan"), None
  mean = float(values.mean())
  if values.size == 1:
    return mean, None
  error = values.std(ddof=1) / np.sqrt(values.size)  # s / sqrt(n)
  return mean, float(special.stdtrit(values.size - 1, 0.975) * error)


def first_reaching(values: np.ndarray, target: float, higher_is_better: bool) -> int | None:
  """Index of the first value that is at least (or, where lower is better, at most) the target; None if none is.

  NaN meets no target.
  """
  met = values >= target if higher_is_better else values <= target
  return int(np.argmax(met)) if met.any() else None


def finite_prefix(x: np.ndarray, y: np.ndarray) -> Curve:
  """The curve up to the first point where x or y is not finite: what comes after a divergence is not data."""
  bad = ~(np.isfinite(x) & np.isfinite(y))
  end = int(np.argmax(bad)) if bad.any() else len(x)
  return x[:end], y[:end]


def band(curves: Sequence[Curve]) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
  """Mean and 95 % half-width over seeds, at every x where some seed was evaluated and which all the seeds cover.

  Between its own points a seed is interpolated linearly; nothing is extrapolated.

  Args:
    curves: one (x, y) a seed, finite, at least one point each.

  Returns:
    (x, mean, half), each [points]; half is None for a single seed. The arrays are empty where no x is common to all.
  """
  start, end = max(x[0] for x, _ in curves), min(x[-1] for x, _ in curves)
  grid = np.unique(np.concatenate([x for x, _ in curves]))
  grid = grid[(grid >= start) & (grid <= end)]
  values = np.stack([np.interp(grid, x, y) for x, y in curves])  # [seeds, points]
  if len(curves) == 1:
    return grid, values[0], None
  error = values.std(axis=0, ddof=1) / np.sqrt(len(curves))
  return grid, values.mean(axis=0), special.stdtrit(len(curves) - 1, 0.975) * error
