"""The data of a figure of learning curves: means with bands, axes, limits and notes for the caption."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ddl.report import formats
from ddl.report.reader import Comparison, Result, Run
from ddl.report.statistics import Curve, band, finite_prefix, interval_ends

if TYPE_CHECKING:
  pass

BELOW = 0.5  # times the range of the ends: how far an accuracy axis extends below the worst, and above for bands
FAR, LEAST = 4, 0.05  # an end that is FAR ranges of the better ones below them, each LEAST or more, is off that axis
STEPS = (0.1, 0.05, 0.02, 0.01, 0.005, 0.002, 0.001)  # of which an accuracy axis starts at a multiple


def _of_accuracy(lines: Sequence["Line"], targets: Sequence[float]) -> tuple[float, float]:
  """From somewhat below the worst end, or the target, to the best accuracy and what bands need above it.

  How lines rise from the start is left out, as it would squeeze their ends; so are ends far below all others.
  """
  ends = sorted((float(line.mean[-1]) for line in lines), reverse=True)
  kept = ends[:1]
  for end in ends[1:]:
    if kept[-1] - end > FAR * max(LEAST, kept[0] - kept[-1]):
      break
    kept.append(end)
  lowest, highest = min([*targets, *kept]), max([*targets, *(float(line.mean.max()) for line in lines)])
  room = highest - lowest or 0.01
  low = lowest - BELOW * room
  step = next((each for each in STEPS if each <= room / 4), STEPS[-1])
  low = max(0.0, step * float(np.floor(low / step + 1e-9)))
  bands = [float(line.band[1][line.mean >= low].max(initial=0.0)) for line in lines if line.band is not None]
  highest = max(highest, min(highest + BELOW * room, max(bands, default=0.0)))
  return float(low), float(min(1.0 + min(0.005, 0.03 * (1.0 - low)), highest + 0.06 * (highest - low)))


def limits(lines: Sequence["Line"], y: str, target: float | None, floor: float | None) -> tuple[float, float]:
  """Of the metric y. floor: of a log axis."""
  targets = [] if target is None else [target]
  if y == "test_accuracy":
    return _of_accuracy(lines, targets)
  values = np.concatenate([line.mean for line in lines])
  values = values[values > floor] if floor is not None else values  # leaves out NaN too
  highest = float(values.max())
  if y in ("test_loss", "test_perplexity"):  # a diverging loss must not set the scale
    highest = min(highest, 3 * max(float(np.nan_to_num(line.mean[0])) for line in lines))
  lowest, highest = min([float(values.min()), *targets]), max([highest, *targets])
  if floor is not None:
    return lowest / 1.3, highest * 1.3
  pad = 0.05 * (highest - lowest) or 0.05 * abs(highest) or 1.0
  return max(0.0, lowest - pad) if lowest >= 0 else lowest - pad, highest + pad


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


class _Seed(NamedTuple):
  """A run up to where it diverged; arrays are [evaluations], y is the logarithm where the axis is."""

  name: str
  step: np.ndarray
  x: np.ndarray
  y: np.ndarray


def mean_lines(
  results: Sequence[Result], x: str, y: str, log_x: bool = False, floor: float | None = None
) -> list[Line]:
  """Means and bands of the algorithms that have a point.

  Both x and y are means over the seeds at a step, so that a line goes on to its last evaluation also where seeds take
  other times to it. With a floor y is logarithmic, and so are mean and band; what is not above the floor becomes NaN.
  """
  found = [_line(result, number, x, y, log_x, floor) for number, result in enumerate(results)]
  return [line for line in found if line is not None]


def _seed(run: Run, x: str, y: str, floor: float | None) -> _Seed:
  known = np.isfinite(run.columns[y]) | (y != "noise_scale")  # which has gaps where no gradient was told from zero
  step, across, up = (run.columns[name][known] for name in ("step", x, y))
  across, up = finite_prefix(across, up)
  if floor is not None:
    up = np.log10(np.where(up > floor, up, np.nan))
  return _Seed(run.name, step[: len(across)], across, up)


def _line(result: Result, number: int, x: str, y: str, log_x: bool, floor: float | None) -> Line | None:
  seeds = [each for run in result.runs if len((each := _seed(run, x, y, floor)).step)]
  if not seeds:
    return None

  def plotted(across: np.ndarray, up: np.ndarray) -> Curve:
    kept = across > 0 if log_x else np.full(len(across), True)
    return across[kept], 10 ** up[kept] if floor is not None else up[kept]

  step, mean, half = band([(each.step, each.y) for each in seeds])
  across = np.mean([np.interp(step, each.step, each.x) for each in seeds], axis=0)
  if not len(step):  # seeds that have no step in common: their mean evaluation by evaluation, without a band
    count = min(len(each.step) for each in seeds)
    across, mean = (np.mean([each[:count] for each in c], axis=0) for c in ([s.x for s in seeds], [s.y for s in seeds]))
    half = None
  longest, end = max(len(each.step) for each in seeds), min(each.step[-1] for each in seeds)
  short = [each for each in seeds if len(each.step) < longest]
  rest = [(each.name, _after(end, each)) for each in seeds if short and each.step[-1] > end]
  if len(seeds) == 2:  # with Student's t of 12.7 a band of two seeds covers everything else
    rest, half = [(each.name, (each.x, each.y)) for each in seeds], None
  edges = None
  if half is not None:  # of a logarithm nothing needs to be cut
    low, high = (mean - half, mean + half) if floor is not None else interval_ends(y, mean, half)
    edges = plotted(across, low)[1], plotted(across, high)[1]
  ends = [(each.name, plotted(each.x[-1:], each.y[-1:])) for each in short if y != "noise_scale"]
  stopped = [(name, (float(at[0]), float(up[0]))) for name, (at, up) in ends if len(at)]
  singles = [(name, plotted(*curve)) for name, curve in rest]
  line = Line(result.info["label"], number, *plotted(across, mean), edges, singles, stopped, len(seeds))
  return line if len(line.x) else None


def _after(end: float, seed: _Seed) -> Curve:
  later, at = seed.step > end, max(end, seed.step[0])
  x, y = (np.append(np.interp(at, seed.step, each), each[later]) for each in (seed.x, seed.y))
  return x, y


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
  ends = limits(drawn, y, target, floor)
  if y == "test_accuracy" and (below := _below(results, ends[0])):
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
  if y == "test_accuracy" and x == "examples" and ends[0] > 0:
    notes.append(
      f"All accuracy axes start at {ends[0] * 100:.4g} %, half the range of the ends and the target below the worst "
      "of them, so that the differences of the ends are seen; what comes before is not."
    )
  (words, x_label), name = ACROSS[x], formats.NAMES[y]
  title = f"{name[0].upper()}{name[1:]} against {words}"
  return Chart(x, y, x_label, LABELS[y], title, lines, log_x, log_y, ends, target, absent, notes)


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
