"""Lines of a figure of learning curves: means over the seeds with their bands, and seeds that ended early."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from experiments.report.inference.statistics import Curve, band, finite_prefix, interval_ends
from experiments.report.reader import Result, Run


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
