"""The data of a figure of learning curves: lines with bands, axes, limits and notes for the caption."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from experiments.report import formats
from experiments.report.figures import axis_limits
from experiments.report.figures.mean_lines import Line, mean_lines
from experiments.report.reader import Comparison, Result

ACROSS = {  # column: its words in a title and at the axis
  "examples": ("examples", "training examples, all workers together"),
  "virtual_seconds": ("virtual time", "virtual seconds"),
  "bytes_sent": ("bytes sent", "bytes sent per worker"),
  "seconds": ("measured time", "seconds measured on this hardware"),
}
LABELS = {
  "test_accuracy": "test accuracy of the consensus model",
  "test_loss": "test loss of the consensus model",
  "test_perplexity": "test perplexity of the consensus model",
  "distance": "RMS distance of the workers from their mean",
  "noise_scale": "gradient noise scale, examples",
}
NEGLIGIBLE = 1e-6  # of the largest value: on a log axis smaller values are rounding errors


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


def chart(comparison: Comparison, x: str, y: str) -> Chart | None:
  """The metric `y` against `x`, both metrics columns; None if there is nothing to draw."""
  results, seeds = comparison.results, len(comparison.info["seeds"])
  ends = {each.info["label"]: max(float(run.columns[x][-1]) for run in each.runs) for each in results if each.runs}
  log_x = log_across(comparison, x)
  lines, floor, absent = mean_lines(results, x, y, log_x), None, ""
  if y == "distance" and not any(line.mean.any() for line in lines):
    return None
  if lines and y != "test_accuracy":
    floor = log_floor(np.concatenate([line.mean for line in lines]))
    if floor is not None:
      flat = [line.label for line in lines if not (line.mean > floor).any()]
      absent = f"Zero at every evaluation, so not on this log axis: {formats.listed(flat)}." if flat else ""
      lines = [line for line in mean_lines(results, x, y, log_x, floor) if np.isfinite(line.mean).any()]
  if not lines:
    return None
  if x == "bytes_sent" and not all(ends.values()):
    absent = f"Sends nothing, so not on this axis: {formats.listed(_silent(results, ends, y))}."
  log_y = floor is not None
  target = comparison.target if y == comparison.metric and not (log_y and comparison.target <= 0) else None
  if y == "noise_scale":
    batches = {each.info["settings"]["workers"] * each.info["settings"]["batch"] for each in results}
    target = float(min(batches)) if len(batches) == 1 else None
  drawn = (
    mean_lines(results, "examples", y) if y == "test_accuracy" else lines
  )  # so that all the pictures share one axis
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
  if x.endswith("seconds") and any(line.seeds > 1 for line in lines):
    notes.append("The time of a point is the mean over the seeds at that evaluation; bands are of the metric alone.")
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
  for line in mean_lines(results, "examples", y):
    if line.label in silent:
      silent[line.label] = f"{line.label} (ends at {formats.figure(y, line.mean[-1])})"
  return list(silent.values())


def _below(results: Sequence[Result], lowest: float) -> list[str]:
  """The labels whose accuracy ends below the axis, with these ends."""
  lines = mean_lines(results, "examples", "test_accuracy")
  return [
    f"{line.label} ({formats.figure('test_accuracy', line.mean[-1])})" for line in lines if line.mean[-1] < lowest
  ]
