"""Build the report's section on a grid of settings: charts against each of its keys."""

import json
import math
from itertools import product
from typing import Any, NamedTuple

import altair as alt
import numpy as np
import pandas as pd

from ddl.names import pluralize, words
from ddl.names import text as value_text
from ddl.report import figure, formats, frames
from ddl.report.figure import COLOURS, INK, NARROW, WIDE, Figure, axes, numeric
from ddl.report.frames import Frames, Quantity
from ddl.report.reader import BUDGET, ComparisonRecord, DataFrame
from ddl.report.sentences import EARLY, EARLY_TEXT
from ddl.report.tables import title_of

WIDE_KEY, WIDE_QUANTITY = 4, 5  # smallest ratios of the largest to the smallest value for a log axis


class Chart(NamedTuple):
  """A chart of a quantity, or of a speed-up in it, against a key of the grid.

  `points` has a row for each algorithm label, or two, at both ends of x, if the algorithm does not use the key.
  Columns: group, the algorithm; panel, the values of the other keys; label; x, the value of the key, or its index if
  values are not numeric; tick, the value as text; level, whether the algorithm does not use the key; y, the mean over
  seeds; low and high, its 95 % interval; partial, whether only some seeds have a value; early, whether the target was
  reached before the first evaluation.
  """

  word: str  # the key's name in texts
  values: list[Any]  # of the key
  quantity: Quantity
  title: str  # what is plotted
  points: DataFrame
  speedup_over: int | None = None  # the number of workers with speed-up 1; None: not a speed-up
  is_log: bool = True  # whether the y axis is logarithmic


def charts(tables: Frames, key: str) -> list[Chart]:
  """Return charts of the final metric, of speed-ups if the key is `workers`, and of the costs to reach the target."""
  comparison = tables.comparison
  sizes = {info["settings"]["workers"] * info["settings"]["batch"] for info in comparison.infos}
  step, *costs = frames.costs(comparison)
  drawn = [_chart(tables, key, quantity) for quantity in frames.scores(comparison)[:1]]
  if key == "workers":
    layouts = comparison.layouts
    own_devices = bool(layouts) and all(layout["devices"] == layout["workers"] for layout in layouts)
    timed = [costs[-1]] * (comparison.virtual or own_devices)
    drawn += [_chart(tables, key, quantity, speedup=True) for quantity in [step, *timed]]
  drawn += [_chart(tables, key, quantity) for quantity in [*[step] * (len(sizes) > 1), *costs]]
  return [chart for chart in drawn if len(chart.points)]


def _speedups(tables: Frames, quantity: Quantity) -> DataFrame:
  """Return the estimates of `_chart` for each seed's cost with the fewest workers divided by its cost with more."""
  infos, early = tables.comparison.infos, tables.table.set_index("label")["early"] > 0
  place = {info["label"]: (info["group"], repr(info["point"] | {"workers": None})) for info in infos}
  least = min(axes(tables.comparison)["workers"])
  first = {place[info["label"]]: info["label"] for info in infos if info["point"].get("workers") == least}
  base = [first.get(place[label]) for label in tables.labels]
  seeds = tables.runs.pivot(index="label", columns="seed", values=quantity.name).reindex(tables.labels)
  ratios = (seeds.reindex(base).set_axis(seeds.index) / seeds).where(np.isfinite).dropna()
  estimates = [frames.estimate(quantity.metric, row) for row in ratios.to_numpy()]
  early |= early.reindex(base, fill_value=False).to_numpy()
  return pd.DataFrame(estimates, ratios.index, ["y", "low", "high"]).assign(partial=False, early=early)


def _chart(tables: Frames, key: str, quantity: Quantity, speedup: bool = False) -> Chart:
  """Return the chart of a quantity, or of a speed-up in it."""
  comparison, keys, name = tables.comparison, axes(tables.comparison), quantity.name
  values, others = keys[key], [other for other in keys if other != key]
  if speedup:
    estimates = _speedups(tables, quantity)
  else:
    table = tables.table.set_index("label")
    estimates = table[[name, f"{name}_low", f"{name}_high"]].set_axis(["y", "low", "high"], axis=1)
    early = (table["early"] > 0) & (not quantity.is_score)
    estimates = estimates.assign(partial=table[f"{name}_mark"] == "partial", early=early)
  estimates = estimates[estimates["y"].notna() if quantity.is_score else estimates["y"] > 0]
  points = []
  for fixed in product(*(keys[other] for other in others)):
    panel = dict(zip(others, fixed, strict=True))
    panel_text = ", ".join(f"{words(other, list(keys))} {value_text(value)}" for other, value in panel.items())
    for info in comparison.infos:
      label, point = info["label"], info["point"]
      if label not in estimates.index or any(point.get(other, value) != value for other, value in panel.items()):
        continue
      for value in [point[key]] if key in point else [values[0], values[-1]]:
        x = float(value if numeric(values) else values.index(value))
        points.append((info["group"], panel_text, label, x, value_text(value), key not in point))
  frame = pd.DataFrame(points, columns=["group", "panel", "label", "x", "tick", "level"]).join(estimates, on="label")
  word = words(key, list(keys))
  title = f"{title_of(tables, quantity)} against {word}"
  title = f"Speed-up in {title}" if speedup else f"{title[0].upper()}{title[1:]}"
  least, most = frame["y"].min(), frame["y"].max()
  is_log = speedup or (not formats.is_share(quantity.metric) and least > 0 and most >= WIDE_QUANTITY * least)
  return Chart(word, values, quantity, title, frame, min(values) if speedup else None, bool(is_log))


def _finding(tables: Frames, chart: Chart) -> str:
  """Return a chart's main finding: the best mean of each algorithm, or its speed-up with the most workers."""
  quantity, points = chart.quantity, chart.points[~chart.points["level"]]
  groups = points.groupby("group", sort=False)
  if chart.speedup_over:
    texts = []
    for group, line in groups:
      last = line[line["x"] == line["x"].max()]
      ends = " to ".join(dict.fromkeys(f"{end:.2g}" for end in (last["y"].min(), last["y"].max())))
      texts.append(f"{group} {ends}{EARLY * bool(last['early'].any())}")
    most = f"{points['tick'].iloc[points['x'].argmax()]} over {pluralize(chart.speedup_over, 'worker')}"
    return f"Speed-up in {quantity.title} with {most}: {formats.listed(texts, labels=False)}"
  is_higher = quantity.metric == tables.comparison.metric and tables.comparison.higher_is_better
  sign, extreme = (-1, "Highest") if is_higher else (1, "Lowest")
  texts = [f"{group} at {chart.word} {line.loc[(sign * line['y']).idxmin(), 'tick']}" for group, line in groups]
  return f"{extreme} mean {quantity.title}: {formats.listed(texts, 3, labels=False)}" if texts else chart.title


def picture(tables: Frames, chart: Chart) -> Figure:
  """Return the figure of a chart."""
  quantity, points = chart.quantity, chart.points
  column = "speedup_" * bool(chart.speedup_over) + quantity.metric
  column = "speedup_steps" if column == "speedup_step" else column
  name = f"grid_{column.removeprefix('test_').removesuffix('_sent')}_vs_{chart.word}".replace(" ", "_")
  texts = [f"{y:.3g}" if chart.speedup_over else formats.figure(quantity.metric, y) for y in points["y"]]
  rows = zip(points["group"], points["panel"], points["tick"], texts, strict=True)
  values = "; ".join(f"{group} {panel} {tick}: {text}" for group, panel, tick, text in rows)
  columns = points[["group", "panel", "tick", "y", "low", "high"]]
  columns = columns.rename(columns={"group": "algorithm", "tick": chart.word, "y": column})
  return Figure(name, _finding(tables, chart), chart.title, f"{chart.title}. {values}.", _notes(tables, chart),
                lambda narrow: _drawn(tables, chart, narrow), columns)  # fmt: skip


def _notes(tables: Frames, chart: Chart) -> list[str]:
  """Return the caption's sentences."""
  quantity, points, notes, limits = chart.quantity, chart.points, [], _limits(chart)
  if len(level := points["group"][points["level"]].unique()):
    notes.append(f"Dashed: {formats.listed(level)} do{'es' * (len(level) == 1)} not use {chart.word}.")
  if points["partial"].any():
    notes.append("Open markers: the mean is over only the seeds that have a value.")
  if quantity.metric == "bytes_sent" and tables.silent:
    notes.append(f"Not shown, as nothing is sent: {formats.listed(tables.silent, 6)}.")
  if len(below := points[points["y"] < limits[0]]):
    texts = [f"{row.label} ({formats.figure(quantity.metric, row.y)})" for row in below.itertuples()]
    notes.append(f"Below the axis: {formats.listed(list(dict.fromkeys(texts)), 6, labels=False)}.")
  if (points["low"] < limits[0]).any() or (points["high"] > limits[1]).any():
    notes.append("Bars that end at the edge continue beyond the axis.")
  if chart.speedup_over:
    notes += ["Counts only steps, not the time of a step."] if quantity.metric == "step" else []
    groups = dict.fromkeys(info["group"] for info in tables.comparison.infos)
    if without := [group for group in groups if group not in set(points["group"])]:
      notes.append(f"Not every seed met the target with {chart.speedup_over} workers: {formats.listed(without)}.")
  if len(early := points["label"][points["early"]].unique()):
    notes.append(f"{EARLY} {EARLY_TEXT}, so the cost is mostly interpolated: {formats.listed(early, 6)}.")
  return notes


def _drawn(tables: Frames, chart: Chart, narrow: bool) -> dict[str, Any]:
  """Return the Vega-Lite specification: lines with bars of the 95 % interval, a panel per combination of other keys."""
  points, values = chart.points, chart.values
  groups = list(dict.fromkeys(info["group"] for info in tables.comparison.infos))
  is_wide = numeric(values) and max(values) >= WIDE_KEY * min(values) > 0
  log_x = is_wide or chart.speedup_over is not None  # the ideal speed-up is a straight line only on two log axes
  places, texts = values if numeric(values) else list(range(len(values))), json.dumps(list(map(value_text, values)))
  x = alt.X(
    "x:Q",
    scale=alt.Scale(type="log" if log_x else "linear", padding=12, nice=False, zero=False),
    axis=alt.Axis(values=places, labelExpr=f"{texts}[indexof({json.dumps(places)}, datum.value)]",
                  title=chart.word + ", log scale" * log_x, labelAngle=0 if numeric(values) else -30,
                  labelOverlap="parity" if numeric(values) else False),
  )  # fmt: skip
  over = f"speed-up over {pluralize(chart.speedup_over or 0, 'worker')}"
  unit, title = ("speedup", over) if chart.speedup_over else (chart.quantity.metric, chart.quantity.title)
  y = alt.Y("y:Q", **figure.axis(unit, title, chart.is_log, 5, zero=False, padding=8, domain=_limits(chart)))
  base = alt.Chart().encode(x=x, y=y, color=figure.by_label("group", groups)["color"])
  moving = base.transform_filter("!datum.level")
  level = base.transform_filter("datum.level").mark_line(strokeWidth=1.5, strokeDash=[5, 3], clip=True)
  layers = []
  for number, group in enumerate(groups):  # offset the bars, so that they do not overlap
    line, offset = moving.transform_filter(alt.datum.group == group), 4 * (number - (len(groups) - 1) / 2)
    bars = line.transform_filter("isValid(datum.low)")
    bars = bars.mark_rule(strokeWidth=1.5, opacity=0.7, clip=True, xOffset=offset)
    fill = alt.condition("datum.partial", alt.value("white"), alt.value(COLOURS[number % len(COLOURS)]))
    marks = line.mark_point(size=45, strokeWidth=1.5, xOffset=offset, opacity=1, clip=True).encode(fill=fill)
    layers += [bars.encode(y="low:Q", y2="high:Q"), marks]
  layers += [moving.mark_line(strokeWidth=1.8, clip=True), level]
  if chart.speedup_over:
    ideal = pd.DataFrame({"x": [min(values), max(values)], "y": [1, max(values) / min(values)]})
    layers.append(alt.Chart(ideal).mark_line(strokeDash=[2, 3], color=INK, strokeWidth=1).encode(x="x:Q", y="y:Q"))
  drawn, shown = alt.layer(*layers, data=alt.NamedData("points")), points.drop(columns=["label", "tick", "early"])
  panels = points["panel"].unique().tolist()
  if len(panels) == 1:
    return figure.specification(drawn, points=shown)
  columns = min(len(panels), 2 if narrow else 3)
  width = ((NARROW if narrow else WIDE) - 70) // columns - 8 * (columns > 1)
  facet = alt.Facet("panel:N", sort=panels, header=alt.Header(title=None))
  drawn = drawn.properties(width=width, height=130 if narrow else 180).facet(facet, columns=columns, spacing=12)
  return figure.specification(drawn, points=shown)


def _limits(chart: Chart) -> list[float]:
  """Return limits of y that contain the means and most of the error bars, except accuracies far below all others."""
  points, is_share = chart.points, formats.is_share(chart.quantity.metric) and not chart.speedup_over
  means = figure.near(points["y"]) if is_share else points["y"].to_numpy()
  if chart.speedup_over:
    means = np.append(means, [1.0, points["x"].max() / points["x"].min()])
  return figure.limits(means, points[["y", "low", "high"]].stack(), chart.is_log, is_share)


def section(tables: Frames, key: str) -> dict[str, Any]:
  """Return the template's variables for a key of the grid: its title, and its figures.

  "shown" has the figures of the final metric and of speed-ups, "costs" the others.
  """
  drawn, title = charts(tables, key), words(key, list(axes(tables.comparison)))
  figures = [picture(tables, chart) for chart in drawn]
  count = sum(chart.quantity.is_score or bool(chart.speedup_over) for chart in drawn)
  return {"title": title, "shown": figures[:count], "costs": figures[count:]}


def note(comparison: ComparisonRecord) -> str:
  """Return a sentence on the budgets of the grid's points; "" if the grid does not change them."""
  budgets = [math.prod(info["settings"][key] for key in BUDGET) for info in comparison.infos]
  if "steps" in comparison.info["grid"]:
    return f"The grid sets the steps, so points have {formats.between(budgets)} examples."
  if not {"workers", "batch"} & axes(comparison).keys():
    return ""
  budget = f"{formats.between(budgets)} examples{' (rounded to whole steps)' * (len(set(budgets)) > 1)}"
  return f"All points have the same budget, {budget}: steps, evaluations and schedules are scaled to it."
