"""The data of the page's interactive chart: means and bands of all metrics against all costs, at each evaluation."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ddl.report import formats, templates
from ddl.report.clusters import PREDICTED, TIME, on_clusters
from ddl.report.reader import COLUMNS, Comparison, Run
from ddl.report.statistics import half_width, interval_ends

SCRIPT, STYLE = (templates.FOLDER / f"interactive_chart.{kind}" for kind in ("js", "css"))
LIBRARY = Path(__file__).with_name("vendor") / "uplot"  # github.com/leeoniya/uPlot, MIT
ACROSS = ("examples", "bytes_sent", "step", "seconds", "virtual_seconds")  # the columns that are costs
UNITS = {"test_accuracy": "share", "bytes_sent": "bytes", "seconds": "seconds", "virtual_seconds": "seconds",
         "step": "count", "examples": "count"}  # fmt: skip
FIGURES, LEAST = 100_000, 40  # that the page holds, about; and points that a line keeps


def content(comparison: Comparison) -> dict[str, Any] | None:
  """What the script draws: {"x": axes, "y": axes, "lines": ...}; None where no algorithm has a result.

  A line is the mean over the seeds at each evaluation, of x as of y, as long as all seeds have a value; of three seeds
  and more with Student's 95 % interval. Columns of metrics that are no costs are metrics; those without a value are
  left out. Long lines are thinned evenly.
  """
  from ddl.report.figures import curve_data
  from ddl.report.figures import style as line_styles
  from ddl.report.figures.style import DARK

  clocks = {f"{PREDICTED}_{each.entry['name']}": each.comparison.results for each in on_clusters(comparison)}
  metrics = [name for name in COLUMNS if name not in ACROSS]
  count = sum(bool(result.runs) for result in comparison.results)
  most = max(LEAST, FIGURES // max(1, count * (len(ACROSS) + len(clocks) + 3 * len(metrics))))
  lines = []
  for number, style in enumerate(line_styles.line_styles(comparison)):
    result = comparison.results[number]
    if not result.runs:
      continue
    length = min(len(run.columns["step"]) for run in result.runs)
    kept = np.unique(np.linspace(0, length - 1, min(length, most)).round().astype(int))
    across = {name: _stack(result.runs, name, length).mean(axis=0) for name in ACROSS}
    across |= {name: _stack(other[number].runs, TIME, length).mean(axis=0) for name, other in clocks.items()}
    up = {name: _summary(name, _stack(result.runs, name, length)) for name in metrics}
    lines.append(
      {
        "label": result.info["label"],
        "group": result.info["group"],
        "colours": [style.colour, DARK.get(style.colour, style.colour)],
        "dashes": list(style.dashes),
        "front": style.front,
        "x": {name: _rounded(values[kept]) for name, values in across.items() if np.isfinite(values).any()},
        "y": {name: [_rounded(part[kept]) for part in parts] for name, parts in up.items() if parts},
      }
    )
  if not lines:
    return None
  texts = {name: words for name, (_, words) in curve_data.ACROSS.items()} | {"step": "steps of each worker"}
  axes = {
    name: {"text": texts.get(name) or name.replace("_", " "), "unit": UNITS.get(name, "seconds"),
           "log": curve_data.log_across(comparison, name)}
    for name in (*ACROSS, *clocks)
    if any(name in line["x"] for line in lines)
  }  # fmt: skip
  return {
    "x": axes,
    "y": {name: _metric(comparison, name, lines) for name in metrics if any(name in line["y"] for line in lines)},
    "lines": lines,
  }


def _metric(comparison: Comparison, name: str, lines: Sequence[dict[str, Any]]) -> dict[str, Any]:
  from ddl.report.figures import curve_data

  axis: dict[str, Any] = {"text": formats.NAMES.get(name) or name.replace("_", " "), "unit": UNITS.get(name, "")}
  axis["target"] = comparison.target if name == comparison.metric else None
  axis["from"] = None
  if name == "test_accuracy" and (shown := curve_data.chart(comparison, "examples", name)):
    axis["from"] = shown.limits[0]
  values = np.array([value for line in lines for value in line["y"].get(name, [[]])[0] if value is not None])
  axis["log"] = name != "test_accuracy" and curve_data.log_floor(values) is not None
  return axis


def _stack(runs: Sequence[Run], name: str, length: int) -> np.ndarray:
  return np.stack([run.columns[name][:length] for run in runs])


def _summary(name: str, values: np.ndarray) -> list[np.ndarray]:
  """Mean, low and high over the first axis, NaN before all have begun and from where one stopped; [] without any."""
  known = np.isfinite(values)
  begun = np.logical_or.accumulate(known, axis=1)
  known &= ~np.logical_or.accumulate(begun & ~known, axis=1)  # what follows a divergence is no data
  alike = known.all(axis=0)
  if not alike.any():
    return []
  values = np.where(alike, values, np.nan)
  mean = values.mean(axis=0)
  if len(values) < 3:  # a band of two covers everything
    return [mean]
  return [mean, *interval_ends(name, mean, half_width(values))]


def _rounded(values: np.ndarray) -> list[float | None]:
  return [float(f"{value:.5g}") if np.isfinite(value) else None for value in values]


def embedded(shown: dict[str, Any]) -> str:
  """As JSON for an element of the page, which no label can end."""
  return json.dumps(shown, ensure_ascii=False, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")
