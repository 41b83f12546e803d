"""Statistics of curves and seeds: Student intervals, bands, the crossing of a target."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from scipy import stats

Curve = tuple[np.ndarray, np.ndarray]  # x [points] increasing, y [points]
Span = tuple[float, float]  # the ends of an interval
RANGE: Mapping[str, Span] = {  # of metrics columns whose true mean cannot be outside, however few the seeds
  "test_accuracy": (0.0, 1.0),
  "test_perplexity": (1.0, math.inf),
  "distance": (0.0, math.inf),
}


def half_width(values: np.ndarray) -> np.ndarray:
  """Of the 95 % confidence interval over the first axis: t(0.975, n - 1) s / sqrt(n), s the sample deviation."""
  return stats.t.ppf(0.975, len(values) - 1) * stats.sem(values)


def summary(values: Sequence[float] | np.ndarray) -> tuple[float, float | None]:
  """Mean and half-width of the 95 % confidence interval, None for fewer than two values; NaN gives NaN."""
  values = np.asarray(values, np.float64)
  if values.size < 2:
    return (float(values[0]) if values.size else float("nan")), None
  return float(values.mean()), float(half_width(values))


def interval_ends(quantity: str, mean: Any, half: Any) -> tuple[Any, Any]:
  """The ends of mean -+ half, cut where the quantity cannot be: an accuracy is 100 % at most.

  The true mean lies inside RANGE, so that Student's interval holds it exactly as often without the part outside; no
  other interval is put in its place. Every interval of a mean, in tables, files and pictures, is from here; those of
  paired differences, which may have either sign, stay symmetric.
  """
  least, most = RANGE.get(quantity, (-math.inf, math.inf))
  return np.clip(mean - half, least, most), np.clip(mean + half, least, most)


def log_summary(values: Sequence[float] | np.ndarray) -> tuple[float, Span | None]:
  """Geometric mean and its 95 % confidence interval, exp(mean(log v) -+ t s(log v) / sqrt(n)), which stays above 0.

  For costs, which are tested by their ratio: the ratio of two geometric means is the geometric mean of the ratios.
  The interval is None for fewer than two values. Where a value is 0 it is the arithmetic mean, without an interval.
  """
  values = np.sort(np.asarray(values, np.float64))  # so that the order of seeds does not change the last digit
  if not (values > 0).all():
    return float(values.mean()), None
  mean, half = summary(np.log(values))
  return float(np.exp(mean)), None if half is None else (float(np.exp(mean - half)), float(np.exp(mean + half)))


def crossing(steps: np.ndarray, values: np.ndarray, target: float, higher_is_better: bool) -> float | None:
  """The step at which a curve first meets the target (>=, or <= where lower is better); None if it never does.

  Between the last evaluation before, at step a with the value v, and the first that meets it, at step b with w, the
  curve is taken as linear: a + (b - a) (target - v) / (w - v). Where the first evaluation meets it, that is the step.
  Values that are not finite are no evaluations.

  Args:
    steps, values: [evaluations], steps increasing.
  """
  steps, values, met = _met(steps, values, target, higher_is_better)
  if not met.any():
    return None
  after = int(np.argmax(met))
  if after == 0 or values[after] == target:
    return float(steps[after])
  share = (target - values[after - 1]) / (values[after] - values[after - 1])
  return float(steps[after - 1] + share * (steps[after] - steps[after - 1]))


def unseen(steps: np.ndarray, values: np.ndarray, target: float, higher_is_better: bool) -> bool:
  """Whether a curve has passed the target at its first evaluation after the start: `crossing` is mostly invented then.

  All that is known then is an upper bound, the step of that evaluation. A curve that meets the target exactly there is
  not interpolated.
  """
  steps, values, met = _met(steps, values, target, higher_is_better)
  first = int(np.argmax(met))
  return bool(met.any() and first == (1 if steps[0] == 0 else 0) and values[first] != target)


def falls_back(steps: np.ndarray, values: np.ndarray, target: float, higher_is_better: bool) -> bool:
  """Whether a curve that has met the target is evaluated short of it later: `crossing` is the first of several."""
  _, _, met = _met(steps, values, target, higher_is_better)
  return bool(met.any() and not met[int(np.argmax(met)) :].all())


def _met(
  steps: np.ndarray, values: np.ndarray, target: float, higher_is_better: bool
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
  """The evaluations, and which of them meet the target."""
  finite = np.isfinite(values)
  steps, values = steps[finite], values[finite]
  return steps, values, values >= target if higher_is_better else values <= target


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


def mean_curve(curves: Sequence[Curve]) -> Curve | None:
  """The mean over seeds up to where one of them is not finite; None where there is none."""
  found = [each for each in (finite_prefix(*curve) for curve in curves) if len(each[0])]
  return band(found)[:2] if found else None
