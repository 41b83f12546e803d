"""The report's section on a grid: pictures against each of its keys, slopes, and what was run and tested."""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from experiments.grid_point import text, words
from experiments.report import formats
from experiments.report.cells import Cell
from experiments.report.figures.picture import Picture
from experiments.report.grid import grid_data, grid_slopes
from experiments.report.reader import SCORES, Comparison
from experiments.report.sections.settings_table import BUDGET
from experiments.report.table_rows import EARLY, Row


class Slopes(NamedTuple):
  """A table: d log y / d log key."""

  title: str
  labels: list[str]
  columns: dict[str, list[Cell]]
  left_out: str  # why some are left out, "" where none is


class Key(NamedTuple):
  """The pictures against a key of the grid."""

  title: str
  pictures: list[Picture]  # the metric, and speed-ups
  costs: list[Picture]
  slopes: Slopes | None


def section(comparison: Comparison, table: Sequence[Row]) -> dict[str, Any] | None:
  """The variables of the section's template; None where there is no grid."""
  from experiments.report.grid import grid_plot

  grid = grid_data.axes(comparison)
  keys = []
  for key in grid:
    charts = list(map(grid_slopes.captioned, grid_data.charts(comparison, table, key)))
    costs = [chart for chart in charts if chart.quantity not in (*SCORES, grid_data.SPEEDUP)]
    first = [chart for chart in charts if chart not in costs]
    drawn = [[grid_plot.picture(chart) for chart in each] for each in (first, costs)]
    keys.append(Key(words(key, list(grid)), drawn[0], drawn[1], slopes(charts)))
  return {"notes": notes(comparison), "against": keys} if keys else None


def pictures(found: dict[str, Any] | None) -> list[Picture]:
  """All that the section shows."""
  return [picture for key in found["against"] for picture in (*key.pictures, *key.costs)] if found else []


def notes(comparison: Comparison) -> list[str]:
  """What was run at which points, with which budget."""
  entries, grid = [result.info for result in comparison.results], grid_data.axes(comparison)
  given = [f"{words(key, list(grid))} {formats.listed(list(map(text, values)))}" for key, values in grid.items()]
  sentences = [f"Run at {' and '.join(given)}{', each with each' * (len(grid) > 1)}."]
  for key in grid:
    reading = {entry["group"] for entry in entries if key in entry["point"]}
    if lacking := list(dict.fromkeys(entry["group"] for entry in entries if entry["group"] not in reading)):
      what = f"{words(key, list(grid))}, so that one run stands for all of its values"
      sentences.append(f"{formats.listed(lacking)} read{'s' * (len(lacking) == 1)} no {what}.")
  budgets = [math.prod(entry["settings"][key] for key in BUDGET) for entry in entries]
  if "steps" in comparison.info["grid"]:
    sentences.append(f"The grid sets the steps, so that points have {formats.between(budgets)} examples.")
  elif {"workers", "batch"} & grid.keys():
    whole = ", as steps are whole" * (len(set(budgets)) > 1)
    sentences.append(
      f"Steps follow so that all points have one budget, {formats.between(budgets)} examples{whole}; evaluations and "
      "the steps of a learning-rate schedule are scaled alike."
    )
  return sentences


def slopes(charts: Sequence[grid_data.Chart]) -> Slopes | None:
  """d log y / d log key of each line; None where the key is no number or no line has all of three points."""
  columns: dict[str, dict[str, Cell]] = {}
  for chart in charts:
    if chart.quantity == grid_data.SPEEDUP:  # the costs' slopes with the other sign
      continue
    for panel in chart.panels:
      for line in panel.lines:
        found, invented = grid_slopes.slope(chart, line), grid_slopes.left_out(chart, line)
        if found is not None or invented:
          label = f"{line.group}, {panel.title}" if panel.title else line.group
          cell = _cell(found) if found else Cell(f"none, of points {EARLY}", "partial")
          columns.setdefault(chart.title.partition(" against ")[0].lower(), {})[label] = cell
  if not columns:
    return None
  labels = list(dict.fromkeys(label for cells in columns.values() for label in cells))
  filled = {head: [cells.get(label, Cell("not all points", "partial")) for label in labels]
            for head, cells in columns.items()}  # fmt: skip
  invented = any(EARLY in cell.text for cells in filled.values() for cell in cells)
  told = f"None{grid_slopes.WHY}; evaluate more often: config.eval_every." if invented else ""
  return Slopes(f"Slopes against {charts[0].x_label}, both axes logarithmic", labels, filled, told)


def _cell(found: grid_slopes.Slope) -> Cell:
  ends = (" to ".join(map(formats.signed, found.interval)),) if found.interval else ()
  return Cell(formats.signed(found.mean), details=ends)
