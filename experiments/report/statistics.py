"""Statistics over seeds: Student intervals, the test of paired differences, bands, the first time of a target."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from scipy import stats

Curve = tuple[np.ndarray, np.ndarray]  # x [points] increasing, y [points]
Span = tuple[float, float]  # a figure known to lie above the first and not above the second; equal where exact


def half_width(values: np.ndarray) -> np.ndarray:
  """Of the 95 % confidence interval over the first axis: t(0.975, n - 1) s / sqrt(n), s the sample deviation."""
  return stats.t.ppf(0.975, len(values) - 1) * stats.sem(values)


def summary(values: Sequence[float] | np.ndarray) -> tuple[float, float | None]:
  """Mean and half-width of the 95 % confidence interval, None for fewer than two values; NaN gives NaN."""
  values = np.asarray(values, np.float64)
  if values.size < 2:
    return (float(values[0]) if values.size else float("nan")), None
  return float(values.mean()), float(half_width(values))


def log_summary(values: Sequence[float] | np.ndarray) -> tuple[float, Span | None]:
  """Geometric mean and its 95 % confidence interval, exp(mean(log v) -+ t s(log v) / sqrt(n)), which stays above 0.

  For costs, which `paired` tests by their ratio: the ratio of two geometric means is the geometric mean of the ratios.
  The interval is None for fewer than two values. Where a value is 0 it is the arithmetic mean, without an interval.
  """
  values = np.sort(np.asarray(values, np.float64))  # so that the order of seeds does not change the last digit
  if not (values > 0).all():
    return float(values.mean()), None
  mean, half = summary(np.log(values))
  return float(np.exp(mean)), None if half is None else (float(np.exp(mean - half)), float(np.exp(mean + half)))


class Difference(NamedTuple):
  """Two algorithms over their common seeds: first minus second, or first over second."""

  mean: float  # of a ratio the geometric one
  low: float  # the 95 % interval, widened by the spacing of evaluations; of one seed only that spacing
  high: float
  ratio: bool
  sign: int  # -1 where the first is significantly smaller, 1 where it is significantly larger, 0 for neither


def paired(first: Mapping[str, Span], second: Mapping[str, Span], ratio: bool = False) -> Difference:
  """The paired t-test, d_s = a_s - b_s by seed: significant where mean(d) -+ t(0.975, n - 1) s(d) / sqrt(n) omits 0.

  Both run with the same seeds: the same initial parameters, order of examples and times of steps. That correlates
  their figures, Var(a - b) = Var(a) + Var(b) - 2 Cov(a, b), so that the differences spread less than the figures.
  Without a correlation (Cov = 0) the test is still valid, with fewer degrees of freedom than an unpaired one.

  Evaluations bracket some figures, such as the step at which a target was met. The interval is widened by the mean
  width of these brackets, the worst case for every seed: two that met a target within the same evaluation are never
  significantly different. Each pair is tested by itself, without a correction for the number of pairs.

  One seed has no spread: `sign` is the order in that seed, which is no evidence of a difference.

  Args:
    first, second: by seed; seeds that only one of them has are left out.
    ratio: test log a_s - log b_s where all figures are above 0: costs scale with the difficulty of a seed.
  """
  common = [seed for seed in first if seed in second]
  if not common:
    return Difference(float("nan"), -np.inf, np.inf, False, 0)
  a, b = (np.array([spans[seed] for seed in common], np.float64) for spans in (first, second))  # [seeds, 2]
  means = log_summary if ratio and min(a[:, 1].min(), b[:, 1].min()) > 0 else summary
  gap = means(a[:, 1])[0] - means(b[:, 1])[0]
  ratio = ratio and min(a.min(), b.min()) > 0
  if ratio:
    a, b = np.log(a), np.log(b)
  mean, half = summary((a - b)[:, 1])
  low, high = float((a[:, 0] - b[:, 1]).mean()) - (half or 0.0), float((a[:, 1] - b[:, 0]).mean()) + (half or 0.0)
  # An interval may end at 0 where brackets touch. Where it is of differences, geometric means may disagree with it.
  sign = int(gap > 0 and low >= 0) - int(gap < 0 and high <= 0)
  if ratio:
    mean, low, high = np.exp([mean, low, high]).tolist()
  return Difference(mean, low, high, ratio, sign)


def first_reaching(values: np.ndarray, target: float, higher_is_better: bool) -> int | None:
  """Index of the first value that is at least (or, where lower is better, at most) the target; None if none is.

  NaN meets no target.
  """
  met = values >= target if higher_is_better else values <= target
  return int(np.argmax(met)) if met.any() else None


def finite_prefix(x: np.ndarray, y: np.ndarray) -> Curve:
  """Return the curve up to the first point where x or y is not finite: values after a divergence are not data."""
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
  return grid, values.mean(axis=0), half_width(values)
