"""Slopes of a grid's lines in logarithmic axes, such as the -1/2 of theory."""

from typing import NamedTuple

import numpy as np

from experiments.report import formats
from experiments.report.grid.grid_data import Chart, Line
from experiments.report.inference.statistics import Span, summary
from experiments.report.table_rows import EARLY

CAPTION = 8  # slopes that fit into one
WHY = f": points marked {EARLY} are mostly invented, and so would the slope be"


class Slope(NamedTuple):
  """d log y / d log x by least squares, of each seed: the mean, its 95 % interval, and the number of seeds."""

  mean: float
  interval: Span | None
  seeds: int

  def __str__(self) -> str:
    ends = f" ({' to '.join(map(formats.signed, self.interval))})" if self.interval else ""
    return f"{formats.signed(self.mean)}{ends}"


def slope(chart: Chart, line: Line) -> Slope | None:
  """Of a line of three points or more, over the seeds that have all; None for shares and what is not positive.

  None too where a point is a cost from before the first evaluation: the slope of figures that are mostly invented.
  """
  return None if any(line.early) else _fitted(chart, line)


def left_out(chart: Chart, line: Line) -> bool:
  """Whether there is no slope for the sole reason that a point is mostly invented."""
  return any(line.early) and _fitted(chart, line) is not None


def _fitted(chart: Chart, line: Line) -> Slope | None:
  x = np.array(line.x)
  if not chart.numbers or chart.quantity == "test_accuracy" or line.level or len(x) < max(3, len(chart.ticks)):
    return None
  seeds = [seed for seed in line.estimates[0].seeds if all(seed in each.seeds for each in line.estimates)]
  y = np.array([[each.seeds[seed] for each in line.estimates] for seed in seeds])  # [seeds, points]
  if not len(y) or min(x.min(), y.min()) <= 0:
    return None
  across = np.log(x) - np.log(x).mean()
  found = np.log(y) @ across / (across @ across)
  mean, half = summary(found)
  return Slope(mean, None if half is None else (mean - half, mean + half), len(seeds))


def captioned(chart: Chart) -> Chart:
  """The chart with a note of the slopes of all lines, unless they are too many for a caption, and of those left out."""
  found = [[f"{line.group} {each}" for line in panel.lines if (each := slope(chart, line))] for panel in chart.panels]
  notes, number = [], sum(map(len, found))
  if 0 < number <= CAPTION:
    texts = [
      f"{panel.title}: " * bool(panel.title) + ", ".join(each)
      for panel, each in zip(chart.panels, found, strict=True)
      if each
    ]
    notes.append(f"Slopes in logarithmic axes (95 % interval over the seeds): {'; '.join(texts)}.")
  without = [line.group for panel in chart.panels for line in panel.lines if left_out(chart, line)]
  if without and number <= CAPTION:
    notes.append(f"No slope of {formats.listed(list(dict.fromkeys(without)), 6)}{WHY}.")
  return chart._replace(notes=[*chart.notes, *notes])
