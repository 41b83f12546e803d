"""Learning curves, which are means over the seeds with 95 % bands: figures for print, and an interactive chart."""

from typing import Any

import altair as alt
import numpy as np
import pandas as pd

from ddl.report import figure, formats, frames, sentences
from ddl.report.figure import DASHES, IDLE, INK, MUTED, NARROW, WIDE, Figure
from ddl.report.frames import Frames
from ddl.report.reader import PREDICTED, Columns, ComparisonRecord, DataFrame
from ddl.report.statistics import common_grid, finite_rows, half_width, interval_ends

BELOW = 0.5  # how far an accuracy axis extends below the worst final value, as a share of the range of final values
NEGLIGIBLE = 1e-6  # share of the largest value; smaller values are rounding errors on a log axis
POINTS = 1_200  # limit of a chart's points; beyond it, only every second, third, ... point of each line is drawn
FEW = 4  # maximum number of lines that have bands on the same axes
COSTS = ("examples", "bytes_sent", "step", "seconds", "virtual_seconds")  # columns of metrics that are x axes


def data(comparison: ComparisonRecord, y: str) -> tuple[DataFrame, bool]:
  """Return the curves of a metric as a frame, and whether the metric has a logarithmic axis.

  It has one if it is not an accuracy and its values span a decade; means and bands are then computed on logarithms.
  The frame has a row for each line and step. Columns: label, of the algorithm; line, which is "mean", "seed 0" for thin
  lines, or "end of seed 0" where a seed ended early; the costs, such as step, averaged over the seeds; y, the value;
  low and high, the 95 % band.
  Values are interpolated between evaluations. A mean ends where the first of its seeds ends. With two seeds, both
  curves are drawn, without a band.
  """
  linear = _curves(comparison, y, None)
  means = linear["y"][linear["line"] == "mean"].to_numpy()
  floor = NEGLIGIBLE * float(means.max(initial=0))
  if formats.is_share(y) or not floor > 0 or means.min() < 0 or means.max() <= 10 * means[means > floor].min():
    return linear, False
  return _curves(comparison, y, floor), True


def _curves(comparison: ComparisonRecord, y: str, floor: float | None) -> DataFrame:
  """Return the frame of `data`. floor: the limit of a log axis below which values are omitted; None: a linear axis."""
  costs = _costs(comparison)
  parts = [pd.DataFrame([], columns=["label", "line", *costs, "y", "low", "high"])]
  for result in comparison.results:
    seeds = [(f"seed {seed}", run, *_valid(run, y, floor)) for seed, run in result.runs.items()]
    seeds = [seed for seed in seeds if len(seed[-1])]
    if not seeds:
      continue
    grid, curves = common_grid([(steps, values) for *_, steps, values in seeds])
    half = half_width(curves) if len(seeds) > 2 and len(grid) else np.nan
    ends = [steps[-1] for *_, steps, _ in seeds]
    lines = [("mean", [run for _, run, *_ in seeds], grid, curves.mean(axis=0), half)]
    for name, run, steps, values in seeds:
      rest = steps >= (min(ends) if len(seeds) > 2 else steps[0])
      if len(seeds) == 2 or (len(seeds) > 2 and rest.sum() > 1):
        lines.append((name, [run], steps[rest], values[rest], np.nan))
      if steps[-1] < max(ends) and y != "noise_scale":
        lines.append((f"end of {name}", [run], steps[-1:], values[-1:], np.nan))
    for line, runs, steps, values, half in lines:
      across = {x: np.mean([np.interp(steps, run["step"], run[x]) for run in runs], axis=0) for x in costs}
      low, high = interval_ends(y if floor is None else "logarithm", values, half)
      values, low, high = (x if floor is None else 10**x for x in (values, low, high))
      columns = {"label": result.info["label"], "line": line} | across | {"y": values, "low": low, "high": high}
      parts.append(pd.DataFrame(columns))
  rows = pd.concat([part for part in parts if len(part)] or parts, ignore_index=True)
  return rows[np.isfinite(rows["y"].astype(float))]


def _costs(comparison: ComparisonRecord) -> list[str]:
  """Return the columns of metrics that are x axes."""
  predicted = [f"{PREDICTED}_{name}" for name in comparison.clusters]
  return [name for name in (*COSTS, *predicted) if name in comparison.measured]


def _valid(run: Columns, y: str, floor: float | None) -> tuple[np.ndarray, np.ndarray]:
  """Return a run's steps until it diverged, and `y` at these steps (as log10 if there is a floor)."""
  steps, values = run["step"], run[y]
  # The noise scale has gaps where the gradient does not differ significantly from zero.
  rows = np.flatnonzero(np.isfinite(values)) if y == "noise_scale" else finite_rows(values)
  if floor is not None:
    with np.errstate(divide="ignore", invalid="ignore"):
      values = np.log10(np.where(values > floor, values, np.nan))
  return steps[rows], values[rows]


def limits_of(comparison: ComparisonRecord, lines: DataFrame, y: str) -> list[float] | None:
  """Return the limits of the axis of an accuracy; None for other metrics and without lines.

  They range from just below the worst final value or the target to the best accuracy. They exclude the initial rise of
  the curves, and final values far below all others.
  """
  means = lines[lines["line"] == "mean"]
  if not formats.is_share(y) or not len(means):
    return None
  shown = [*figure.near(means.groupby("label")["y"].last()), *[comparison.target] * (y == comparison.metric)]
  worst, best = min(shown), max(*shown, means["y"].max())
  return figure.limits([worst, best], [worst - BELOW * (best - worst), means["high"].max()], share=True)


def is_log(lines: DataFrame, x: str) -> bool:
  """Return whether the x axis is logarithmic: for bytes, and for times if final times differ more than fivefold."""
  ends = lines[lines[x] > 0].groupby("label")[x].max()
  return x == "bytes_sent" or ("seconds" in x and bool(ends.max() > 5 * ends.min()))


def pictures(tables: Frames) -> list[Figure]:
  """Return figures of the target's metric against examples, bytes and time, and of other metrics against examples."""
  comparison, metric = tables.comparison, tables.comparison.metric
  others = [quantity.metric for quantity in frames.scores(comparison)[1:]]
  axes = [(quantity.metric, metric) for quantity in frames.costs(comparison)[1:]]
  axes += [("examples", y) for y in (*(others or ["test_loss"]), "distance", "noise_scale") if y != metric]
  return list(filter(None, [curve_figure(tables, x, y) for x, y in axes]))


def on_clusters(tables: Frames) -> list[Figure]:
  """Return the figures of the target's metric against the predicted seconds on each cluster."""
  drawn = [curve_figure(tables, f"{PREDICTED}_{name}", tables.comparison.metric) for name in tables.comparison.clusters]
  return list(filter(None, drawn))


def curve_figure(tables: Frames, x: str, y: str) -> Figure | None:
  """Return the figure of column y of the metrics against column x; None if there is nothing to draw."""
  comparison, seeds = tables.comparison, len(tables.comparison.info["seeds"])
  lines, log_y = data(comparison, y)
  means = lines[lines["line"] == "mean"]
  if not len(means) or (y == "distance" and not means["y"].any()):
    return None
  log_x = is_log(lines, x)
  drawn = lines[lines[x] > 0] if log_x else lines
  if not len(drawn):  # no algorithm sends anything
    return None
  limits = limits_of(comparison, lines, y)
  ends = means.groupby("label", sort=False)["y"].last()
  shown = ends[ends.index.isin(set(drawn["label"]))]
  notes = _notes(tables, lines, ends.drop(shown.index), shown, x, y, log_y, limits)
  cluster, name = x.removeprefix(f"{PREDICTED}_"), y.removeprefix("test_")
  name += f"_on_{cluster}" if x.startswith(PREDICTED) else f"_vs_{x.removesuffix('_sent')}"
  subtitle = f"{frames.quantity(y).title.capitalize()} against {frames.quantity(x).title}"
  subtitle += "" if seeds == 1 else ", mean over seeds" + "; bands: 95 %" * (seeds > 2)
  description = f"{subtitle}: one line per algorithm. The lines end at: {', '.join(_ends(shown, y, '{} {}'))}. "
  columns = drawn[["label", "line", x, "y", "low", "high"]]
  points = _thinned(columns.rename(columns={x: "x"}), ["label", "line"])
  columns = columns.rename(columns={"y": y, "low": f"{y}_low", "high": f"{y}_high"})
  description = (description + " ".join(notes[:1])).strip()
  return Figure(name, _title(tables, ends, x, y), subtitle, description, notes,
                lambda narrow: _printed(tables, points, x, y, (log_x, log_y), limits, narrow), columns)  # fmt: skip


def _thinned(points: DataFrame, line: list[str]) -> DataFrame:
  """Return every n-th point of each line, counted from its end, so that about POINTS remain. line: columns."""
  return points[points.groupby(line).cumcount(ascending=False) % max(1, -(-len(points) // POINTS)) == 0]


def _ends(ends: Any, y: str, template: str) -> list[str]:
  return [template.format(label, formats.figure(y, value)) for label, value in ends.items()]


def _title(tables: Frames, ends: Any, x: str, y: str) -> str:
  """Return a figure's title, which states its main finding."""
  if y == tables.comparison.metric:
    return sentences.headline(tables, frames.quantity(x))
  if y == "distance":
    return f"The workers of {ends.idxmax()} end furthest apart ({formats.figure(y, ends.max())})"
  if y == "noise_scale":
    return f"The gradient noise scale ends at {ends.min():,.3g} to {ends.max():,.3g} examples"
  return f"Lowest mean {formats.name(y)} at the end: {ends.idxmin()} ({formats.figure(y, ends.min())})"


def target_of(comparison: ComparisonRecord, y: str) -> float | None:
  """Return the value of the dotted line: the target, or the global batch size for the noise scale; None: no line."""
  if y == "noise_scale":
    batches = {info["settings"]["workers"] * info["settings"]["batch"] for info in comparison.infos}
    return float(min(batches)) if len(batches) == 1 else None
  return comparison.target if y == comparison.metric else None


def _notes(
  tables: Frames, lines: DataFrame, hidden: Any, shown: Any, x: str, y: str, log_y: bool, limits: Any
) -> list[str]:
  """Return the caption's sentences. hidden, shown: final values of the algorithms without and with points to draw."""
  notes = []
  if x == "bytes_sent" and len(hidden):
    silent = formats.listed(_ends(hidden, y, "{} (ends at {})"), labels=False)
    notes.append(f"Not shown, as nothing is sent: {silent}.")
  if limits and len(below := shown[shown < limits[0]]):
    notes.append(f"Final values below the axis: {formats.listed(_ends(below, y, '{} ({})'), labels=False)}.")
  labels = [result.info["label"] for result in tables.comparison.results if result.runs]
  if log_y and (zero := [label for label in labels if label not in hidden and label not in shown]):
    notes.append(f"Not shown, as zero at every evaluation: {formats.listed(zero)}.")
  if y == "noise_scale":
    dotted = "" if target_of(tables.comparison, y) is None else "; dotted: the global batch"
    notes.append(f"In examples, as estimated by McCandlish et al. 2018 (arXiv 1812.06162){dotted}.")
  if lines["line"].str.startswith("end of").any():
    notes.append("A cross marks where a seed diverged or stopped; the other seeds continue as thin lines.")
  if log_y and len(tables.comparison.info["seeds"]) > 1:
    notes.append("Means and bands are computed on logarithms.")
  return notes


def _encodings(x: str, y: str, logs: tuple[bool, bool], limits: Any, across: Any = None) -> dict[str, Any]:
  return {
    "x": alt.X("x:Q", **figure.axis(x, frames.quantity(x).title, logs[0], domain=across or alt.Undefined)),
    "y": alt.Y("y:Q", **figure.axis(y, frames.quantity(y).title, logs[1], zero=False, domain=limits or alt.Undefined)),
  }


def _layers(
  styles: DataFrame, bands: dict[str, Any] | None, legend: Any, singles: bool = False, clip: bool = False,
  behind: dict[str, Any] | None = None, **how: Any,
) -> list[alt.Chart]:  # fmt: skip
  """Return charts of each algorithm's mean; the caller adds data with fields x, y, low, high, label, line.

  bands: encodings of the bands; None: no bands. singles: whether to add a thin line for each seed, with a cross where a
  run ended early. behind: encodings of the lines that do not stand out, besides dashes; None: they are thin and solid.
  how: encodings of all marks.
  """
  labels, front = styles["label"].tolist(), styles["label"][styles["front"]].tolist()
  channels = figure.by_label("label", labels, styles["colour"].tolist(), styles["dash"].tolist(), legend=legend)
  base = alt.Chart().encode(x="x:Q", y="y:Q", color=channels["color"], **how)
  means = base.transform_filter("datum.line == 'mean'") if singles else base
  layers = []
  if singles:
    seeds = base.transform_filter("indexof(datum.line, 'seed') == 0").encode(detail="line:N")
    ends = base.transform_filter("indexof(datum.line, 'end of') == 0")
    layers.append(seeds.mark_line(clip=clip, strokeWidth=0.8, opacity=0.7))
    layers.append(ends.mark_point(shape="cross", angle=45, size=60, filled=True, clip=clip))
  if len(front) < len(labels):
    rest = means.transform_filter(alt.FieldOneOfPredicate("label", [label for label in labels if label not in front]))
    dashed = behind | {"strokeDash": channels["strokeDash"]} if behind else {}
    layers.append(rest.mark_line(clip=clip, strokeWidth=1.2 if behind else 0.8).encode(**dashed))
  if bands is not None:
    layers.append(means.mark_area(clip=clip, fillOpacity=0.18, line=False).encode(y="low:Q", y2="high:Q", **bands))
  if len(front) < len(labels):
    means = means.transform_filter(alt.FieldOneOfPredicate("label", front))
  layers.append(means.mark_line(clip=clip, strokeWidth=2, strokeJoin="round").encode(strokeDash=channels["strokeDash"]))
  return layers


def _rule(target: float | None) -> list[alt.Chart]:
  """Return the dotted line at the target; [] if there is no target."""
  if target is None:
    return []
  rule = alt.Chart(pd.DataFrame({"target": [target]})).mark_rule(strokeDash=[2, 3], color=INK)
  return [rule.encode(x=alt.value(0), x2=alt.value("width"), y="target:Q")]


def _printed(
  tables: Frames, lines: DataFrame, x: str, y: str, logs: tuple[bool, bool], limits: Any, narrow: bool
) -> dict[str, Any]:
  """Return the Vega-Lite specification: a large panel above a small one per algorithm; narrow: only the large one."""
  styles, target = figure.styles(tables), target_of(tables.comparison, y)
  styles = styles[styles["label"].isin(set(lines["label"]))]
  large_styles, panel_styles = (styles.assign(colour=styles["colour"].where(styles["front"], c)) for c in (IDLE, MUTED))
  lines = lines.astype({name: float for name in ("x", "y", "low", "high")})
  across = (lines["x"].min() / 1.1, 1.03 * lines["x"].max()) if logs[0] else (0, 1.01 * lines["x"].max() or 1)
  if limits:
    lines = _cut(lines, limits)
  axes = _encodings(x, y, logs, limits, across)
  front, singles = styles["label"][styles["front"]].tolist(), bool((lines["line"] != "mean").any())
  legend = alt.Legend(values=front, columns=figure.columns(front, NARROW - 40 if narrow else WIDE, 4))
  layers = _layers(large_styles, {} if narrow and len(styles) <= FEW else None, legend, singles)
  large = alt.layer(*layers, *_rule(target), data=alt.NamedData("lines")).encode(**axes)
  if narrow:
    large = large.properties(width=NARROW, autosize=alt.AutoSizeParams(type="fit-x", contains="padding"))
    return figure.specification(large, lines=lines)
  most = figure.columns(styles["label"], WIDE, 6)  # a panel is as wide as its label
  columns = -(-len(styles) // -(-len(styles) // most))
  width = (WIDE - 60) // columns - 6
  bare = alt.Axis(labels=False, ticks=False, title=None, grid=False, domain=False)
  panel_axes = {name: encoding.copy() for name, encoding in axes.items()}
  panel_axes["x"].axis = panel_axes["y"].axis = bare
  layers = _layers(panel_styles.assign(front=True, dash=[DASHES[0]] * len(styles)), {}, None, singles)
  small = alt.layer(*layers, *_rule(target), data=alt.NamedData("lines")).encode(**panel_axes)
  header = alt.Header(title=None, labelLimit=width)
  facet = alt.Facet("label:N", sort=styles["label"].tolist(), header=header)
  panels = small.properties(width=width, height=60).facet(facet, columns=columns, spacing=6)
  both = large.properties(width=WIDE - 60, height=300) & panels
  return figure.specification(both.resolve_scale(color="independent", strokeDash="independent"), lines=lines)


def _cut(lines: DataFrame, limits: tuple[float, float]) -> DataFrame:
  """Cut lines and bands at the limits of y; clip paths would make drawing a PNG a hundred times slower."""
  parts = []
  for (label, line), part in lines.groupby(["label", "line"], sort=False):
    y, place = part["y"].to_numpy() - limits[0], np.arange(len(part))
    crossing = np.flatnonzero(y[1:] * y[:-1] < 0)
    place = np.sort([*place, *(crossing + y[crossing] / (y[crossing] - y[crossing + 1]))])
    columns = {name: np.interp(place, np.arange(len(part)), part[name]) for name in ("x", "y", "low", "high")}
    parts.append(pd.DataFrame({"label": label, "line": line} | columns))
  cut = pd.concat(parts, ignore_index=True)
  y = cut["y"].where(cut["y"] >= limits[0] - 1e-9)  # NaN interrupts the line
  return cut.assign(y=y, low=cut["low"].clip(*limits), high=cut["high"].clip(*limits))


def interactive(tables: Frames) -> dict[str, Any] | None:
  """Return the page's interactive chart (specification, data and selectable axes); None if no metric was measured.

  It shows the large panel of the printed figures, with bands. The page's script inserts the selected columns into the
  calculations of x and y in the specification, and their titles, scales and formats into the encoding.
  """
  comparison, costs = tables.comparison, _costs(tables.comparison)
  metrics = [name for name in comparison.measured if name not in costs]
  if not metrics:
    return None

  def choice(name: str, log: bool) -> dict[str, Any]:
    labels = [figure.label_format(name, is_log) for is_log in (False, True)]
    number = ".2%" if formats.is_share(name) else ",.4~r"
    return {"title": frames.quantity(name).title, "log": log, "label": labels, "format": number}

  merged, ups = pd.DataFrame(), {}
  for y in metrics:
    lines, log = data(comparison, y)
    ups[y] = choice(y, log) | {"target": target_of(comparison, y), "domain": limits_of(comparison, lines, y)}
    means = lines[lines["line"] == "mean"].drop(columns="line")
    means = means.rename(columns={"y": y, "low": f"{y}_low", "high": f"{y}_high"})
    merged = merged.merge(means, how="outer") if len(merged.columns) else means
  across = {x: choice(x, is_log(merged, x)) for x in costs}
  styles = figure.styles(tables)
  styles = styles[styles["label"].isin(set(merged["label"]))]
  shown = alt.selection_point(name="shown", fields=["label"], bind="legend", toggle="true")
  search_field = alt.binding(input="search", name="find ", placeholder="part of a label")
  search = alt.param(name="search", value="", bind=search_field)
  opacity = alt.condition(shown, alt.value(1), alt.value(0.06))
  banded = alt.condition(shown, alt.value(0.18), alt.value(0), empty=len(styles) <= FEW)
  bands = {"fillOpacity": banded, "opacity": alt.value(1)}
  behind = {"opacity": alt.condition(shown, alt.value(1), alt.value(0.15), empty=False)}
  layers = _layers(styles, bands, alt.Legend(symbolLimit=0), clip=True, behind=behind, opacity=opacity)
  titles = {"label:N": "algorithm", "x:Q": "x", "y:Q": "y", "low:Q": "95 % from", "high:Q": "to"}
  tooltip = [alt.Tooltip(field, title=title) for field, title in titles.items()]
  points = alt.Chart().mark_point(size=90, filled=True, opacity=0, clip=True).encode(x="x:Q", y="y:Q", tooltip=tooltip)
  x, y = "examples", comparison.metric
  rows = _thinned(merged.sort_values(["label", "step"], kind="stable"), ["label"])
  form = alt.CsvDataFormat(type="csv", parse={name: "string" if name == "label" else "number" for name in rows})
  values = alt.InlineData(rows.to_csv(index=False, float_format="%.5g"), format=form)  # half as long as JSON
  chart = (
    alt.layer(*layers, points, *_rule(comparison.target), data=values)
    .transform_calculate(x="0", y="0", low="0", high="0")
    .transform_filter(f"indexof(lower(datum.label), lower({search.name})) >= 0")
    .encode(**_encodings(x, y, (False, False), None))
    .add_params(shown, search, alt.selection_interval(bind="scales", name="zoom"))
    .properties(width="container", height=380, autosize=alt.AutoSizeParams(type="fit-x", contains="padding"))
  )
  column = 50 + 7 * int(min(40, styles["label"].str.len().max()))  # pixels of the legend's columns
  spec = chart.to_dict() | {"config": figure.SCREEN}
  return {"spec": spec, "x": across, "y": ups, "initial": [x, y], "column": column}
