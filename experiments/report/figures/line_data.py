"""The data of a figure of learning curves: lines with bands, axes, limits and notes for the caption."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from experiments.report import formats
from experiments.report.reader import Comparison, Result
from experiments.report.statistics import Curve, band, finite_prefix

ACROSS = {  # column: its word in a title
  "examples": "examples", "virtual_seconds": "virtual time", "bytes_sent": "bytes sent", "seconds": "measured time",
}  # fmt: skip
LABELS = {
  "examples": "training examples, all workers together",
  "bytes_sent": "bytes sent per worker",
  "seconds": "seconds measured on this hardware",
  "virtual_seconds": "virtual seconds",
  "test_accuracy": "test accuracy of the consensus model",
  "test_loss": "test loss of the consensus model",
  "distance": "RMS distance of the workers from their mean",
}
NEGLIGIBLE = 1e-6  # of the largest value: on a log axis smaller values are rounding errors
BELOW = (
  1.5  # an accuracy axis extends below the worst end by so many times the range of the ends; the start may lie outside
)


class Line(NamedTuple):
  """One algorithm in one picture; arrays are [points]."""

  label: str
  number: int  # its place in the comparison, which fixes colour and marker
  x: np.ndarray
  mean: np.ndarray
  band: tuple[np.ndarray, np.ndarray] | None  # from, to; None for fewer than three seeds
  rest: list[Curve]  # single seeds: after one of them ended early, or all of two seeds, which have no band
  stopped: list[tuple[float, float]]  # where a seed ended early
  seeds: int  # in the mean


class Chart(NamedTuple):
  x: str  # a metrics column
  y: str
  x_label: str
  y_label: str
  title: str
  lines: list[Line]
  log_x: bool
  log_y: bool
  limits: tuple[float, float]  # of y
  target: float | None
  absent: str  # which algorithms are not on the axes, and why; is part of the figure
  notes: list[str]  # belong into the caption


def line(result: Result, number: int, x: str, y: str, log_x: bool, floor: float | None = None) -> Line | None:
  """An algorithm's mean and band; None if it has no point. Where x is logarithmic so is the interpolation.

  With a floor y is logarithmic, and so are mean and band; what is not above the floor becomes NaN.
  """
  curves = []
  for run in result.runs:
    across, up = finite_prefix(run.columns[x], run.columns[y])
    if log_x:
      across, up = np.log10(across[across > 0]), up[across > 0]
    if len(across):
      curves.append((across, up))
  if not curves:
    return None
  across_back = (lambda values: 10**values) if log_x else (lambda values: values)
  up_back = (lambda values: values) if floor is None else (lambda values: 10**values)
  if floor is not None:
    curves = [(across, np.log10(np.where(up > floor, up, np.nan))) for across, up in curves]
  grid, mean, half = band(curves)
  if not len(grid):  # seeds that have no x in common: their mean evaluation by evaluation, without a band
    count = min(len(across) for across, _ in curves)
    grid, mean = (np.mean([each[:count] for each in column], axis=0) for column in zip(*curves, strict=True))
    half = None
  longest = max(len(across) for across, _ in curves)
  short = [curve for curve in curves if len(curve[0]) < longest]
  end = min(across[-1] for across, _ in curves)
  rest = [_after(end, curve) for curve in curves if short and curve[0][-1] > end]
  spread = None
  if len(curves) == 2:  # with Student's t of 12.7 a band of two seeds covers everything else
    rest = curves
  elif half is not None:
    spread = up_back(mean - half), up_back(mean + half)
  return Line(
    result.info["label"], number, across_back(grid), up_back(mean), spread,
    [(across_back(across), up_back(up)) for across, up in rest],
    [(float(across_back(across[-1])), float(up_back(up[-1]))) for across, up in short], len(curves),
  )  # fmt: skip


def _after(start: float, curve: Curve) -> Curve:
  x, y = curve
  later = x > start
  return np.append(max(start, x[0]), x[later]), np.append(np.interp(start, x, y), y[later])


def chart(comparison: Comparison, x: str, y: str) -> Chart | None:
  """The metric `y` against `x`, both metrics columns; None if there is nothing to draw."""
  log_x = x == "bytes_sent" or (x == comparison.seconds and _ratio(comparison, x) > 5)
  results = comparison.results
  drawn = [line(result, number, x, y, log_x) for number, result in enumerate(results)]
  lines = [each for each in drawn if each is not None and len(each.x)]
  if y == "distance" and not any(each.mean.any() for each in lines):
    return None
  absent, log_y, floor = "", False, 0.0
  if lines and y != "test_accuracy":
    values = np.concatenate([each.mean for each in lines])
    floor = NEGLIGIBLE * float(values.max())
    log_y = values.min() >= 0 < values.max() and bool(values.max() > 10 * values[values > floor].min())
    flat = [each.label for each in lines if log_y and not (each.mean > floor).any()]
    lines = [each for each in lines if each.label not in flat]
    if log_y:
      again = [line(results[each.number], each.number, x, y, log_x, floor) for each in lines]
      lines = [each for each in again if each is not None and np.isfinite(each.mean).any()]
    if flat:
      names = formats.listed(flat, 12)
      absent = f"Zero at every evaluation, so not on this log axis: {names}."
  if not lines:
    return None
  silent = [_ending(result, y) for result in results if result.runs and _largest(result, x) == 0]
  if x == "bytes_sent" and silent:
    absent = f"Sends nothing, so not on this axis: {formats.listed(silent, 12)}."
  limits = _limits(comparison, lines, y, log_y, floor)
  notes = [
    f"{each.label}: {each.seeds} of {len(comparison.info['seeds'])} seeds."
    for each in lines
    if each.seeds < len(comparison.info["seeds"])
  ]
  if any(each.stopped for each in lines):
    notes.append(
      "A cross marks where a seed diverged or stopped; the other seeds continue as thin lines in the small axes."
    )
  if log_y and any(each.seeds > 1 for each in lines):
    notes.append("Means and bands are those of the logarithm.")
  if y == "test_accuracy" and limits[0] > 0:
    notes.append(f"The accuracy axis starts at {limits[0] * 100:.0f} %.")
  name = formats.NAMES[y]
  title = f"{name[0].upper()}{name[1:]} against {ACROSS[x]}"
  target = comparison.target if y == comparison.metric and not (log_y and comparison.target <= 0) else None
  return Chart(x, y, LABELS[x], LABELS[y], title, lines, log_x, log_y, limits, target, absent, notes)


def _largest(result: Result, x: str) -> float:
  return max(float(run.columns[x][-1]) for run in result.runs)


def _ending(result: Result, y: str) -> str:
  """The label and the end of its mean, for a line that is not drawn."""
  found = line(result, 0, "examples", y, log_x=False)
  if found is None or not len(found.mean):
    return result.info["label"]
  return f"{result.info['label']} (ends at {formats.figure(y, found.mean[-1])})"


def _ratio(comparison: Comparison, x: str) -> float:
  """The largest end of x over the smallest."""
  ends = [_largest(result, x) for result in comparison.results if result.runs]
  ends = [end for end in ends if end > 0]
  return max(ends) / min(ends) if ends else 1.0


def _limits(comparison: Comparison, lines: Sequence[Line], y: str, log_y: bool, floor: float) -> tuple[float, float]:
  if y == "test_accuracy":
    # From the curves against examples, so that all the pictures share one axis; it is drawn as the target's metric.
    drawn = [line(result, 0, "examples", y, log_x=False) for result in comparison.results]
    drawn = [each for each in drawn if each is not None and len(each.x)]
    lowest = min(comparison.target, *(each.mean[-1] for each in drawn))
    highest = max(comparison.target, *(each.mean.max() for each in drawn))
    lowest = max(0.0, np.floor((lowest - BELOW * (highest - lowest) - 0.005) * 20) / 20)
    return float(lowest), min(1.005, highest + 0.06 * (highest - lowest) + 0.005)
  values = np.concatenate([each.mean for each in lines])
  values = values[values > floor] if log_y else values  # leaves out NaN too
  highest = float(values.max())
  if y == "test_loss":  # a diverging loss must not set the scale
    highest = min(highest, 3 * max(float(np.nan_to_num(each.mean[0])) for each in lines))
  lowest = float(values.min())
  if y == comparison.metric and not (log_y and comparison.target <= 0):
    lowest, highest = min(lowest, comparison.target), max(highest, comparison.target)
  if log_y:
    return lowest / 1.3, highest * 1.3
  pad = 0.05 * (highest - lowest) or 0.05 * abs(highest) or 1.0
  return max(0.0, lowest - pad) if lowest >= 0 else lowest - pad, highest + pad
