"""Means over seeds and what they can tell: Student intervals, paired differences, bands, the first time of a target."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

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


class Difference(NamedTuple):
  """First minus second: the mean over the seeds, its 95 % half-width (None for one seed), and the deciding range."""

  mean: float
  half: float | None
  low: float  # of the mean difference, or of the mean log ratio
  high: float

  @property
  def sign(self) -> int:
    """-1 where the first is told apart as the smaller, 1 as the larger, 0 where the two are not told apart."""
    return int(self.mean > 0 and self.low >= 0) - int(self.mean < 0 and self.high <= 0)


Span = tuple[float, float]  # a figure that is known to lie above the one and not above the other; equal where exact


def paired(first: Mapping[str, Span], second: Mapping[str, Span], ratio: bool = False) -> Difference:
  """The difference of two algorithms by seed: d_s = a_s - b_s, mean(d) -+ t(0.975, n - 1) s(d) / sqrt(n).

  Both run with the same seeds: the same initial parameters, order of examples and times of steps. What a seed makes
  easy for one it makes easy for the other, Var(a - b) = Var(a) + Var(b) - 2 Cov(a, b), so that the differences spread
  less than the figures do. Two intervals may then overlap although every seed shows the same order. Where the seeds
  have nothing in common (Cov = 0) the test is still valid; it only has fewer degrees of freedom than an unpaired one.

  A figure that evaluations bracket, as a step at which a target was met, adds what the brackets leave open, at its
  worst for every seed: two that met it within the same evaluation are never told apart. Each pair is judged by itself;
  the 95 % are not those of all pairs together.

  Costs are compared by their ratio, log a_s - log b_s: a seed that takes twice as long spreads the differences, and
  hides that one costs ten times the other with every seed.

  Args:
    ratio: of costs, which decides where all figures are above 0.
    first, second: by seed; the seeds that only one of them has are left out. Without a common one nothing is told.
  """
  common = [seed for seed in first if seed in second]
  if not common:
    return Difference(float("nan"), None, -np.inf, np.inf)
  a, b = (np.array([spans[seed] for seed in common], np.float64) for spans in (first, second))  # [seeds, 2]
  mean, half = summary(a[:, 1] - b[:, 1])
  if ratio and min(a.min(), b.min()) > 0:
    a, b = np.log(a), np.log(b)
  margin = summary(a[:, 1] - b[:, 1])[1] or 0.0
  return Difference(mean, half, float((a[:, 0] - b[:, 1]).mean()) - margin, float((a[:, 1] - b[:, 0]).mean()) + margin)


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
