"""Slopes of a grid's lines in logarithmic axes, such as the -1/2 of theory."""

from typing import NamedTuple

import numpy as np

from experiments.report import formats
from experiments.report.grid.grid_data import Chart, Line
from experiments.report.statistics import Span, summary
from experiments.report.table_rows import EARLY

CAPTION = 8  # slopes that fit into one


class Slope(NamedTuple):
  """d log y / d log x by least squares, of each seed: the mean, its 95 % interval, and the number of seeds."""

  mean: float
  interval: Span | None
  seeds: int
  early: bool = False  # over costs from before a first evaluation

  def __str__(self) -> str:
    ends = f" ({' to '.join(map(formats.signed, self.interval))})" if self.interval else ""
    return f"{formats.signed(self.mean)}{EARLY * self.early}{ends}"


def slope(chart: Chart, line: Line) -> Slope | None:
  """Of a line of three points or more, over the seeds that have all; None for shares and what is not positive."""
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
  return Slope(mean, None if half is None else (mean - half, mean + half), len(seeds), any(line.early))


def captioned(chart: Chart) -> Chart:
  """The chart with a note of the slopes of all lines, unless they are too many for a caption."""
  found = [[f"{line.group} {each}" for line in panel.lines if (each := slope(chart, line))] for panel in chart.panels]
  if not 0 < sum(map(len, found)) <= CAPTION:
    return chart
  texts = [
    f"{panel.title}: " * bool(panel.title) + ", ".join(each)
    for panel, each in zip(chart.panels, found, strict=True)
    if each
  ]
  note = f"Slopes in logarithmic axes (95 % interval over the seeds): {'; '.join(texts)}."
  return chart._replace(notes=[*chart.notes, note])
