"""A grid of config keys: figures of quantities and speed-ups against a key, and slopes in log axes."""

import json
import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from ddl.names import text as value_text
from ddl.names import words
from ddl.report import figure, formats, frames
from ddl.report.figure import COLOURS, INK, NARROW, WIDE, Figure, axes, numeric
from ddl.report.frames import Frames, Quantity
from ddl.report.reader import DataFrame
from ddl.report.sentences import EARLY, EARLY_TEXT
from ddl.report.settings import BUDGET
from ddl.report.statistics import summary
from ddl.report.tables import Cell

DECADE, HALF = 10, 5  # from such a span on the axis of the key, or that of the quantity, is logarithmic


class Chart(NamedTuple):
  """A quantity, or a speed-up in it, against a key of the grid.

  points: a line for each label (two for one that does not read the key). Columns: group; panel, the values of the
  other keys; label; x, the value of the key, or its number where values are no numbers; tick, the same as text; y, low,
  high; partial, whether only some seeds have it; level, whether the label does not read the key; early, whether it was
  reached before the first evaluation.
  """

  key: str
  quantity: Quantity
  points: DataFrame
  seeds: DataFrame  # y of each label (rows) and seed (columns)
  speedup_over: int | None = None  # number of workers

  @property
  def is_speedup(self) -> bool:
    """Whether it is a speed-up."""
    return self.speedup_over is not None

  @property
  def column(self) -> str:
    """The name of y in the figure's data."""
    metric = self.quantity.metric
    return f"speedup_{'steps' if metric == 'step' else metric}" if self.is_speedup else metric

  @property
  def log_y(self) -> bool:
    """Whether the axis of y is logarithmic."""
    y = self.points["y"].tolist()
    return self.is_speedup or (self.quantity.metric != "test_accuracy" and min(y) > 0 and max(y) >= HALF * min(y))


def charts(tables: Frames, key: str) -> list[Chart]:
  """Return the final metric, speed-ups where the key is `workers`, and the costs of the target."""
  comparison = tables.comparison
  sizes = {each.info["settings"]["workers"] * each.info["settings"]["batch"] for each in comparison.results}
  costs = [quantity for quantity in frames.costs(comparison) if quantity.metric != "step" or len(sizes) > 1]
  drawn = [_chart(tables, key, frames.scores(comparison)[0])]
  if key == "workers":
    layouts = [each for result in comparison.results for each in result.layouts]
    own_devices = bool(layouts) and all(each.devices == each.workers for each in layouts)
    step, *_, seconds = frames.costs(comparison)
    drawn += [_speedup(tables, quantity) for quantity in [step, *[seconds] * (comparison.virtual or own_devices)]]
  drawn += [_chart(tables, key, quantity) for quantity in costs]
  return [chart for chart in drawn if len(chart.points)]


def _seeds(tables: Frames, quantity: Quantity) -> DataFrame:
  """Return a quantity by label and run, without costs of zero."""
  seeds = tables.runs.pivot(index="label", columns="run", values=quantity.name).reindex(tables.labels)
  return seeds if quantity.is_score else seeds.where(seeds > 0)


def _speedup(tables: Frames, quantity: Quantity) -> Chart:
  """Return the cost with the fewest workers over that with more, paired by seed, where every seed has both."""
  least = min(axes(tables.comparison)["workers"])
  infos = {result.info["label"]: result.info for result in tables.comparison.results}
  seeds = _seeds(tables, quantity)
  place = {label: (info["group"], repr(info["point"] | {"workers": None})) for label, info in infos.items()}
  base = {place[label]: label for label, info in infos.items() if info["point"].get("workers") == least}
  first = seeds.reindex([base.get(place[label]) for label in seeds.index])
  first.index = seeds.index
  ratios = first / seeds
  counts = dict(zip(tables.labels, tables.table["seeds"], strict=True))
  ratios = ratios[[ratios.loc[label].notna().sum() == counts[label] for label in ratios.index]]
  early = set(tables.runs["label"][tables.runs["early"].astype(bool)])
  early |= {label for label in infos if base.get(place[label]) in early}
  return _chart(tables, "workers", quantity, ratios, early, least)


def _chart(
  tables: Frames, key: str, quantity: Quantity, seeds: Any = None, early: set[str] | None = None,
  speedup_over: int | None = None,
) -> Chart:  # fmt: skip
  """Return the chart of a quantity; seeds: its values where they are no column of the runs."""
  import pandas as pd

  comparison = tables.comparison
  keys = axes(comparison)
  values, others = keys[key], [other for other in keys if other != key]
  if early is None:
    early = set() if quantity.is_score else set(tables.runs["label"][tables.runs["early"].astype(bool)])
  values_of = _seeds(tables, quantity) if seeds is None else seeds
  values_of = values_of[values_of.notna().any(axis=1)]
  counts = dict(zip(tables.labels, tables.table["seeds"], strict=True))
  panels = [()]
  for other in others:
    panels = [(*fixed, (other, value)) for fixed in panels for value in keys[other]]
  points = []
  for fixed in panels:
    panel = ", ".join(f"{words(other, list(keys))} {value_text(value)}" for other, value in fixed)
    for info in (result.info for result in comparison.results):
      label, point = info["label"], info["point"]
      if label not in values_of.index or any(point.get(other, value) != value for other, value in fixed):
        continue
      row = values_of.loc[label].dropna().tolist()
      y, low, high = frames.estimate(quantity.metric, row)
      shared = {"group": info["group"], "panel": panel, "label": label, "y": y, "low": low, "high": high,
                "partial": len(row) < counts[label], "level": key not in point, "early": label in early}  # fmt: skip
      for value in [point[key]] if key in point else [values[0], values[-1]]:
        x = value if numeric(values) else values.index(value)
        points.append(shared | {"x": float(x), "tick": value_text(value)})
  columns = ["group", "panel", "label", "x", "tick", "y", "low", "high", "partial", "level", "early"]
  return Chart(key, quantity, pd.DataFrame(points, columns=columns), values_of, speedup_over)


class Slope(NamedTuple):
  """d log y / d log x by least squares for each seed: the mean and its 95 % interval."""

  group: str
  panel: str
  mean: float
  interval: tuple[float, float] | None
  early: bool  # whether a point was reached before the first evaluation: then the slope is not shown

  def __str__(self) -> str:
    ends = f" ({' to '.join(map(formats.signed, self.interval))})" if self.interval else ""
    return f"{formats.signed(self.mean)}{ends}"


def slopes(tables: Frames, chart: Chart) -> list[Slope]:
  """Return the slopes of lines that have all of three points or more, over the seeds that have all of them."""
  values = axes(tables.comparison)[chart.key]
  if not numeric(values) or min(values) <= 0 or len(values) < 3 or chart.quantity.metric == "test_accuracy":
    return []
  fitted = []
  for (panel, group), line in chart.points[~chart.points["level"].astype(bool)].groupby(["panel", "group"], sort=False):
    line = line.sort_values("x")
    y = chart.seeds.loc[line["label"]].dropna(axis=1).to_numpy()  # [points, seeds]
    if len(line) < len(values) or not y.size or y.min() <= 0:
      continue
    x = np.log(line["x"].to_numpy())
    across = x - x.mean()
    mean, half = summary(across @ np.log(y) / (across @ across))
    interval = None if half is None else (mean - half, mean + half)
    fitted.append(Slope(str(group), str(panel), mean, interval, bool(line["early"].any())))
  return fitted


def is_log_key(values: Sequence[Any]) -> bool:
  """Return whether a log axis suits rising numbers: they span a decade, or each is at least twice the last."""
  if not numeric(values) or min(values) <= 0:
    return False
  doubled = all(b >= 2 * a for a, b in pairwise(values))
  return max(values) >= DECADE * min(values) or (len(values) > 2 and doubled)


def title(tables: Frames, chart: Chart) -> str:
  """Return what is drawn."""
  quantity, goal = chart.quantity, tables.comparison.goal
  word = words(chart.key, list(axes(tables.comparison)))
  if chart.is_speedup:
    return f"Speed-up in {quantity.title} to {goal} against {word}"
  text = f"final {quantity.title}" if quantity.is_score else f"{quantity.title} to {goal}"
  return f"{text[0].upper()}{text[1:]} against {word}"


def _finding(tables: Frames, chart: Chart) -> str:
  """Return what a chart shows: the best mean of each algorithm, or its speed-up with the most workers."""
  quantity, points = chart.quantity, chart.points[~chart.points["level"].astype(bool)]
  word = words(chart.key, list(axes(tables.comparison)))
  if chart.is_speedup:
    texts = []
    for group, line in points.groupby("group", sort=False):
      last = line[line["x"] == line["x"].max()]
      ends = " to ".join(dict.fromkeys(f"{end:.2g}" for end in (last["y"].min(), last["y"].max())))
      texts.append(f"{group} {ends}{EARLY * bool(last['early'].any())}")
    most = f"{points['tick'].iloc[points['x'].argmax()]} over {chart.speedup_over} workers"
    return f"Speed-up in {quantity.title} with {most}: {formats.listed(texts, labels=False)}"
  sign = -1 if quantity.metric == "test_accuracy" else 1
  best = {group: line.loc[(sign * line["y"]).idxmin()] for group, line in points.groupby("group", sort=False)}
  extreme = "Highest" if sign < 0 else "Lowest"
  texts = [f"{row['tick']} for {group}" for group, row in best.items()]
  return f"{extreme} mean {quantity.title} at {word} {formats.listed(texts, 3, labels=False)}" if best else ""


def picture(tables: Frames, chart: Chart) -> Figure:
  """Return the figure of a chart."""
  quantity, points, text = chart.quantity, chart.points, title(tables, chart)
  key = words(chart.key, list(axes(tables.comparison)))
  name = f"grid_{chart.column.removeprefix('test_').removesuffix('_sent')}_vs_{key}".replace(" ", "_")
  notes, limits = [], _limits(chart)
  if level := list(dict.fromkeys(points["group"][points["level"].astype(bool)])):
    notes.append(f"Dashed: {formats.listed(level)} read{'s' * (len(level) == 1)} no {key}.")
  if points["partial"].any():
    notes.append("Open markers: the mean is of only the seeds that have the figure.")
  if quantity.metric == "bytes_sent" and (silent := tables.runs["label"][tables.runs["silent"].astype(bool)].tolist()):
    notes.append(f"Send nothing, so not on these axes: {formats.listed(list(dict.fromkeys(silent)), 6)}.")
  if (points["low"] < limits[0]).any() or (points["high"] > limits[1]).any():
    notes.append("An interval whose bar ends at the edge goes on beyond the axis.")
  if chart.is_speedup:
    notes += [f"Of {quantity.title} only: the time of a step is not in it."] if quantity.metric == "step" else []
    groups = dict.fromkeys(result.info["group"] for result in tables.comparison.results)
    if without := [group for group in groups if group not in set(points["group"])]:
      notes.append(f"Not every seed met the target with {chart.speedup_over} workers: {formats.listed(without)}.")
  if early := list(dict.fromkeys(points["label"][points["early"].astype(bool)])):
    notes.append(f"{EARLY} {EARLY_TEXT}, so that the cost is mostly invented: {formats.listed(early, 6)}.")
  fitted = [slope for slope in slopes(tables, chart) if not slope.early]
  if 0 < len(fitted) <= 8:
    texts = [f"{slope.group}{f', {slope.panel}' if slope.panel else ''} {slope}" for slope in fitted]
    notes.append(f"Slopes in logarithmic axes (95 % interval over the seeds): {'; '.join(texts)}.")
  columns = points[["group", "panel", "tick", "y", "low", "high"]]
  values = "; ".join(
    f"{line['group']} {line['panel']} {line['tick']}: "
    + (f"{line['y']:.3g}" if chart.is_speedup else formats.figure(quantity.unit, line["y"]))
    for line in columns.to_dict("records")
  )
  columns = columns.rename(columns={"group": "algorithm", "tick": key, "y": chart.column})
  return Figure(name, _finding(tables, chart) or text, text, f"{text}. {values}.", notes,
                lambda narrow: _drawn(tables, chart, narrow), columns)  # fmt: skip


def _drawn(tables: Frames, chart: Chart, narrow: bool) -> dict[str, Any]:
  """Return lines with 95 % bars, a panel for each value of the other keys."""
  import altair as alt
  import pandas as pd

  comparison, points = tables.comparison, chart.points
  keys = axes(comparison)
  values, groups = keys[chart.key], list(dict.fromkeys(result.info["group"] for result in comparison.results))
  log_x = is_log_key(values) or (chart.is_speedup and numeric(values))
  places = values if numeric(values) else list(range(len(values)))
  texts = json.dumps(list(map(value_text, values)))
  word = words(chart.key, list(keys))
  x = alt.X(
    "x:Q",
    scale=alt.Scale(type="log" if log_x else "linear", padding=12, nice=False, zero=False),
    axis=alt.Axis(values=places, labelExpr=f"{texts}[indexof({json.dumps(places)}, datum.value)]",
                  title=word + ", log scale" * log_x, labelAngle=0 if numeric(values) else -30,
                  labelOverlap="parity" if numeric(values) else False),
  )  # fmt: skip
  y_title = f"speed-up over {chart.speedup_over} workers" if chart.is_speedup else chart.quantity.title
  unit = "speedup" if chart.is_speedup else chart.quantity.metric
  log_y = chart.log_y
  scale = alt.Scale(type="log" if log_y else "linear", zero=False, padding=8, nice=False, domain=_limits(chart))
  axis = alt.Axis(title=y_title + ", log scale" * log_y, tickCount=5, labelExpr=figure.label_format(unit, log_y))
  channels = figure.by_label("group", groups, alt.Legend(orient="bottom", columns=2 if narrow else 4))
  base = alt.Chart().encode(x=x, y=alt.Y("y:Q", scale=scale, axis=axis), color=channels["color"])
  moving, level = base.transform_filter("!datum.level"), base.transform_filter("datum.level")
  layers = []
  for number, group in enumerate(groups):  # bars stand a little beside each other
    mine, aside = moving.transform_filter(alt.datum.group == group), 4 * (number - (len(groups) - 1) / 2)
    bars = mine.transform_filter("isValid(datum.low)").mark_rule(strokeWidth=1.5, opacity=0.7, clip=True, xOffset=aside)
    points_of = mine.mark_point(size=45, strokeWidth=1.5, xOffset=aside, opacity=1)
    fill = alt.condition("datum.partial", alt.value("white"), alt.value(COLOURS[number % len(COLOURS)]))
    layers += [bars.encode(y="low:Q", y2="high:Q"), points_of.encode(fill=fill)]
  layers += [moving.mark_line(strokeWidth=1.8), level.mark_line(strokeWidth=1.5, strokeDash=[5, 3])]
  if chart.is_speedup:
    ends = [min(values), max(values)]
    ideal = pd.DataFrame({"x": ends, "y": [value / ends[0] for value in ends]})
    layers.append(alt.Chart(ideal).mark_line(strokeDash=[2, 3], color=INK, strokeWidth=1).encode(x="x:Q", y="y:Q"))
  panels = list(dict.fromkeys(points["panel"]))
  others = [keys[other] for other in keys if other != chart.key]
  columns = len(others[-1]) if len(others) == 2 and len(panels) == len(others[0]) * len(others[1]) else 3
  columns = min(len(panels), 2 if narrow else columns)
  width = ((NARROW if narrow else WIDE) - 70) // columns - 8 * (columns > 1)
  shared = alt.layer(*layers, data=alt.NamedData("points"))
  if len(panels) == 1:
    drawn = shared.properties(width=width, height=200 if narrow else 300)
  else:
    facet = alt.Facet("panel:N", sort=panels, header=alt.Header(title=None))
    drawn = shared.properties(width=width, height=130 if narrow else 180).facet(facet, columns=columns, spacing=12)
  shown = points[["group", "panel", "x", "y", "low", "high", "partial", "level"]]
  return figure.specification(drawn, points=shown)


def _limits(chart: Chart) -> list[float]:
  """Return limits of y: around all means, and as far as the bars go unless that hides the means."""
  points = chart.points
  means = points["y"].to_numpy()
  ends = np.concatenate([points["low"].fillna(points["y"]), points["high"].fillna(points["y"])])
  if chart.is_speedup:
    means = np.append(means, [1.0, points["x"].max() / points["x"].min()])
  if chart.log_y:
    means, ends = np.log(means), np.log(np.maximum(ends, 1e-300))
  low, high = means.min(), means.max()
  room = high - low or 0.1 * abs(high) or 1.0
  low, high = min(low, max(ends.min(), low - room)), max(high, min(ends.max(), high + room))
  low, high = low - 0.06 * room, high + 0.06 * room
  if chart.quantity.metric == "test_accuracy" and not chart.is_speedup:
    low, high = max(low, -0.02), min(high, 1.0 + 0.02 * room)
  return [float(math.exp(low)), float(math.exp(high))] if chart.log_y else [float(low), float(high)]


class SlopeTable(NamedTuple):
  """d log y / d log key of each line."""

  title: str
  labels: list[str]
  columns: dict[str, list[Cell]]


class Key(NamedTuple):
  """The figures against a key of the grid."""

  title: str
  pictures: list[Figure]  # the metric, and speed-ups
  costs: list[Figure]
  slopes: SlopeTable | None


class GridSection(NamedTuple):
  """The page's section on a grid."""

  notes: list[str]
  keys: list[Key]

  @property
  def pictures(self) -> list[Figure]:
    """All figures."""
    return [picture for key in self.keys for picture in (*key.pictures, *key.costs)]


def section(tables: Frames) -> GridSection | None:
  """Return the section; None where there is no grid."""
  keys = []
  grid = axes(tables.comparison)
  for key in grid:
    drawn = charts(tables, key)
    is_cost = [not (chart.quantity.is_score or chart.is_speedup) for chart in drawn]
    shown = [picture(tables, chart) for chart in drawn]
    first, costs = (
      [each for each, cost in zip(shown, is_cost, strict=True) if cost == wanted] for wanted in (False, True)
    )
    keys.append(Key(words(key, list(grid)), first, costs, slope_table(tables, drawn, key)))
  return GridSection(notes(tables.comparison), keys) if keys else None


def notes(comparison: Any) -> list[str]:
  """Return what was run at which points, with which budget."""
  infos, grid = [result.info for result in comparison.results], axes(comparison)
  given = [f"{words(key, list(grid))} {formats.listed(list(map(value_text, values)))}" for key, values in grid.items()]
  texts = [f"Run at {' and '.join(given)}{', each with each' * (len(grid) > 1)}."]
  for key in grid:
    reading = {info["group"] for info in infos if key in info["point"]}
    if lacking := list(dict.fromkeys(info["group"] for info in infos if info["group"] not in reading)):
      verb = f"read{'s' * (len(lacking) == 1)} no {words(key, list(grid))}"
      texts.append(f"{formats.listed(lacking)} {verb}, so that one run stands for all of its values.")
  budgets = [math.prod(info["settings"][key] for key in BUDGET) for info in infos]
  if "steps" in comparison.info["grid"]:
    texts.append(f"The grid sets the steps, so that points have {formats.between(budgets)} examples.")
  elif {"workers", "batch"} & grid.keys():
    whole = ", as steps are whole" * (len(set(budgets)) > 1)
    texts.append(f"All points have one budget, {formats.between(budgets)} examples{whole}: steps, evaluations and "
                 "learning-rate schedules follow.")  # fmt: skip
  return texts


def slope_table(tables: Frames, drawn: Sequence[Chart], key: str) -> SlopeTable | None:
  """Return the slopes of all lines against a key; None where none has one."""
  columns: dict[str, dict[str, Cell]] = {}
  for chart in drawn:
    if chart.is_speedup:  # the costs' slopes with the other sign
      continue
    for slope in slopes(tables, chart):
      label = f"{slope.group}, {slope.panel}" if slope.panel else slope.group
      ends = (" to ".join(map(formats.signed, slope.interval)),) if slope.interval else ()
      cell = Cell(f"none, of points {EARLY}", "partial") if slope.early else Cell(formats.signed(slope.mean), "", ends)
      name = title(tables, chart).partition(" against ")[0].lower()
      columns.setdefault(name, {})[label] = cell
  if not columns:
    return None
  labels = list(dict.fromkeys(label for cells in columns.values() for label in cells))
  missing = Cell("not all points", "partial")
  filled = {head: [cells.get(label, missing) for label in labels] for head, cells in columns.items()}
  word = words(key, list(axes(tables.comparison)))
  return SlopeTable(f"Slopes against {word}, both axes logarithmic", labels, filled)
