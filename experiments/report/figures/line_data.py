"""The data of a figure of learning curves: lines with bands, axes, limits and notes for the caption."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from experiments.report import formats
from experiments.report.figures import axis_limits
from experiments.report.reader import Comparison, Result
from experiments.report.statistics import Curve, band, finite_prefix, interval_ends

ACROSS = {  # column: its words in a title and at the axis
  "examples": ("examples", "training examples, all workers together"),
  "virtual_seconds": ("virtual time", "virtual seconds"),
  "bytes_sent": ("bytes sent", "bytes sent per worker"),
  "seconds": ("measured time", "seconds measured on this hardware"),
}
LABELS = {
  "test_accuracy": "test accuracy of the consensus model",
  "test_loss": "test loss of the consensus model",
  "distance": "RMS distance of the workers from their mean",
  "noise_scale": "gradient noise scale, examples",
}
NEGLIGIBLE = 1e-6  # of the largest value: on a log axis smaller values are rounding errors


class Line(NamedTuple):
  """One algorithm in one picture; arrays are [points]."""

  label: str
  number: int  # its place in the comparison, which fixes colour and marker
  x: np.ndarray
  mean: np.ndarray
  band: tuple[np.ndarray, np.ndarray] | None  # from, to; None for fewer than three seeds
  rest: list[tuple[str, Curve]]  # seeds by name: after one of them ended early, or both of two, which have no band
  stopped: list[tuple[str, tuple[float, float]]]  # seeds by name, and where they ended early
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


def _lines(results: Sequence[Result], x: str, y: str, log_x: bool = False, floor: float | None = None) -> list[Line]:
  """Means and bands of the algorithms that have a point. Where x is logarithmic so is the interpolation.

  With a floor y is logarithmic, and so are mean and band; what is not above the floor becomes NaN.
  """
  found = [_line(result, number, x, y, log_x, floor) for number, result in enumerate(results)]
  return [line for line in found if line is not None]


def _line(result: Result, number: int, x: str, y: str, log_x: bool, floor: float | None) -> Line | None:
  curves, names = [], []
  for run in result.runs:
    known = np.isfinite(run.columns[y]) | (y != "noise_scale")  # which has gaps where no gradient was told from zero
    across, up = finite_prefix(run.columns[x][known], run.columns[y][known])
    if log_x:
      across, up = np.log10(across[across > 0]), up[across > 0]
    if floor is not None:
      up = np.log10(np.where(up > floor, up, np.nan))
    if len(across):
      curves.append((across, up))
      names.append(run.name)
  if not curves:
    return None

  def plotted(across: np.ndarray, up: np.ndarray) -> Curve:
    return 10**across if log_x else across, 10**up if floor is not None else up

  grid, mean, half = band(curves)
  if not len(grid):  # seeds that have no x in common: their mean evaluation by evaluation, without a band
    count = min(len(across) for across, _ in curves)
    grid, mean = (np.mean([each[:count] for each in column], axis=0) for column in zip(*curves, strict=True))
    half = None
  longest = max(len(across) for across, _ in curves)
  named = list(zip(names, curves, strict=True))
  short = [(name, plotted(across[-1:], up[-1:])) for name, (across, up) in named if len(across) < longest]
  end = min(across[-1] for across, _ in curves)
  rest = [(name, _after(end, *curve)) for name, curve in named if short and curve[0][-1] > end]
  if len(curves) == 2:  # with Student's t of 12.7 a band of two seeds covers everything else
    rest, half = named, None
  edges = None
  if half is not None:  # of a logarithm nothing needs to be cut
    low, high = (mean - half, mean + half) if floor is not None else interval_ends(y, mean, half)
    edges = plotted(grid, low)[1], plotted(grid, high)[1]
  stopped = [(name, (float(across[0]), float(up[0]))) for name, (across, up) in short if y != "noise_scale"]
  singles = [(name, plotted(*curve)) for name, curve in rest]
  return Line(result.info["label"], number, *plotted(grid, mean), edges, singles, stopped, len(curves))


def _after(start: float, x: np.ndarray, y: np.ndarray) -> Curve:
  later = x > start
  return np.append(max(start, x[0]), x[later]), np.append(np.interp(start, x, y), y[later])


def chart(comparison: Comparison, x: str, y: str) -> Chart | None:
  """The metric `y` against `x`, both metrics columns; None if there is nothing to draw."""
  results, seeds = comparison.results, len(comparison.info["seeds"])
  ends = {each.info["label"]: max(float(run.columns[x][-1]) for run in each.runs) for each in results if each.runs}
  log_x = log_across(comparison, x)
  lines, floor, absent = _lines(results, x, y, log_x), None, ""
  if y == "distance" and not any(line.mean.any() for line in lines):
    return None
  if lines and y != "test_accuracy":
    floor = log_floor(np.concatenate([line.mean for line in lines]))
    if floor is not None:
      flat = [line.label for line in lines if not (line.mean > floor).any()]
      absent = f"Zero at every evaluation, so not on this log axis: {formats.listed(flat)}." if flat else ""
      lines = [line for line in _lines(results, x, y, log_x, floor) if np.isfinite(line.mean).any()]
  if not lines:
    return None
  if x == "bytes_sent" and not all(ends.values()):
    absent = f"Sends nothing, so not on this axis: {formats.listed(_silent(results, ends, y))}."
  log_y = floor is not None
  target = comparison.target if y == comparison.metric and not (log_y and comparison.target <= 0) else None
  if y == "noise_scale":
    batches = {each.info["settings"]["workers"] * each.info["settings"]["batch"] for each in results}
    target = float(min(batches)) if len(batches) == 1 else None
  drawn = _lines(results, "examples", y) if y == "test_accuracy" else lines  # so that all the pictures share one axis
  limits = axis_limits.limits(drawn, y, target, floor)
  if y == "test_accuracy" and (below := _below(results, limits[0])):
    absent = f"{absent} Ends below these axes: {formats.listed(below)}.".strip()
  notes = [f"{line.label}: {line.seeds} of {seeds} seeds." for line in lines if line.seeds < seeds]
  if y == "distance" and (averaged := [each.info["label"] for each in results if _averaged(each)]):
    notes.append(
      f"Every evaluation of {formats.listed(averaged)} falls on a step that averages the workers, where their distance "
      "is zero; between two averages they differ."
    )
  if y == "noise_scale":
    notes.append(
      "tr(Sigma) / |G|^2 (McCandlish et al. 2018, arXiv 1812.06162): while the global batch of all workers lies far "
      "below it, twice as many workers need nearly half as many steps; far above it they need nearly as many."
    )
  if any(line.stopped for line in lines):
    notes.append(
      "A cross marks where a seed diverged or stopped; the other seeds continue as thin lines in the small axes."
    )
  if log_y and any(line.seeds > 1 for line in lines):
    notes.append("Means and bands are those of the logarithm.")
  if y == "test_accuracy" and x == "examples" and limits[0] > 0:
    notes.append(
      f"All accuracy axes start at {limits[0] * 100:.4g} %, half the range of the ends and the target below the worst "
      "of them, so that the differences of the ends are seen; what comes before is not."
    )
  (words, x_label), name = ACROSS[x], formats.NAMES[y]
  title = f"{name[0].upper()}{name[1:]} against {words}"
  return Chart(x, y, x_label, LABELS[y], title, lines, log_x, log_y, limits, target, absent, notes)


def log_across(comparison: Comparison, x: str) -> bool:
  """Whether the x axis is logarithmic: of bytes, and of the time where algorithms take it very differently."""
  if x != comparison.seconds:
    return x == "bytes_sent"
  ends = [max(float(run.columns[x][-1]) for run in result.runs) for result in comparison.results if result.runs]
  moved = [end for end in ends if end > 0]
  return bool(moved) and max(moved) > 5 * min(moved)


def log_floor(values: np.ndarray) -> float | None:
  """Where a log axis of values that span decades begins; None where a linear one shows them."""
  lowest = NEGLIGIBLE * float(values.max(initial=0))
  decades = lowest > 0 <= values.min() and values.max() > 10 * values[values > lowest].min()
  return lowest if decades else None


def _averaged(result: Result) -> bool:
  """Whether workers that train apart are equal at every evaluation; those that share gradients each step always are."""
  apart = result.info["taxonomy"]["payload"] != "gradients" and result.info["hyper"].get("period") != 1
  distances = [run.columns["distance"][1:] for run in result.runs]  # without the start
  return (
    apart
    and result.info["settings"]["workers"] > 1
    and any(map(len, distances))
    and not np.any(np.concatenate(distances))
  )


def _silent(results: Sequence[Result], ends: dict[str, float], y: str) -> list[str]:
  """The labels that send nothing, with the ends of their means, which are not drawn."""
  silent = {label: label for label, end in ends.items() if end == 0}
  for line in _lines(results, "examples", y):
    if line.label in silent:
      silent[line.label] = f"{line.label} (ends at {formats.figure(y, line.mean[-1])})"
  return list(silent.values())


def _below(results: Sequence[Result], lowest: float) -> list[str]:
  """The labels whose accuracy ends below the axis, with these ends."""
  lines = _lines(results, "examples", "test_accuracy")
  return [
    f"{line.label} ({formats.figure('test_accuracy', line.mean[-1])})" for line in lines if line.mean[-1] < lowest
  ]
