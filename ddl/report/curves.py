"""Learning curves: means over the seeds with 95 % bands, printed with a small panel per algorithm, and interactive."""

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ddl.report import figure, formats, frames, sentences
from ddl.report.figure import DASHES, IDLE, INK, MUTED, NARROW, WIDE, Figure
from ddl.report.frames import Frames, Quantity
from ddl.report.reader import COLUMNS, PREDICTED, ComparisonRecord, DataFrame, RunRecord
from ddl.report.statistics import half_width, interval_ends

if TYPE_CHECKING:
  import altair as alt

BELOW = 0.5  # times the range of the ends: how far an accuracy axis extends below the worst
FAR, LEAST = 4, 0.05  # an end that is FAR ranges of the better ones below them, each LEAST or more, is off that axis
NEGLIGIBLE = 1e-6  # of the largest value: on a log axis smaller values are rounding errors
POINTS = 100_000  # values that the page holds, about
COSTS = ("examples", "bytes_sent", "step", "seconds", "virtual_seconds")  # columns of metrics that are no results
ACROSS = {  # column: its words in a title and at the axis
  "examples": ("examples", "training examples, all workers together"),
  "bytes_sent": ("bytes sent", "bytes sent per worker"),
  "step": ("steps", "steps of each worker"),
  "seconds": ("measured time", "seconds measured on this hardware"),
  "virtual_seconds": ("virtual time", "virtual seconds"),
}
UP = {
  "test_accuracy": "test accuracy of the consensus model",
  "test_loss": "test loss of the consensus model",
  "test_perplexity": "test perplexity of the consensus model",
  "distance": "RMS distance of the workers from their mean",
  "noise_scale": "gradient noise scale, examples",
}


def words_across(x: str) -> tuple[str, str]:
  """Return the words of an x column in a title and at the axis."""
  if x in ACROSS:
    return ACROSS[x]
  return f"predicted time on {x.removeprefix(f'{PREDICTED}_')}", "predicted seconds"


def data(comparison: ComparisonRecord, y: str) -> tuple[DataFrame, bool]:
  """Return the curves of a metric, and whether its axis, mean and band are logarithmic: where values span decades.

  A line for each label and step. Columns: label; line, "mean", "seed 0" for thin lines, "end of seed 0" where a seed
  ended early; step and every cost, means over the seeds; y, low and high. Between two evaluations of a seed values are
  interpolated linearly; a mean ends with the first of its seeds. Of two seeds there is no band: both are drawn.
  """
  linear = _curves(comparison, y, None)
  means = linear["y"][linear["line"] == "mean"].to_numpy()
  floor = NEGLIGIBLE * float(means.max(initial=0))
  if y == "test_accuracy" or not floor > 0 or means.min() < 0 or means.max() <= 10 * means[means > floor].min():
    return linear, False
  return _curves(comparison, y, floor), True


def _curves(comparison: ComparisonRecord, y: str, floor: float | None) -> DataFrame:
  """Return the lines of `data`. floor: of a log axis; what is not above it is left out."""
  import pandas as pd

  costs = [x for x in (*COSTS, *(f"{PREDICTED}_{name}" for name in comparison.clusters)) if _present(comparison, x)]
  columns = ["label", "line", "step", *[x for x in costs if x != "step"], "y", "low", "high"]
  parts = [pd.DataFrame([], columns=columns)]
  for result in comparison.results:
    seeds = [(run, rows, values) for run in result.runs for rows, values in [_valid(run, y, floor)] if len(rows)]
    if not seeds:
      continue
    steps = [run.columns["step"][rows] for run, rows, _ in seeds]
    ends = [step[-1] for step in steps]
    grid = np.unique(np.concatenate(steps))
    grid = grid[(grid >= max(step[0] for step in steps)) & (grid <= min(ends))]
    curves = np.array([np.interp(grid, step, values) for step, (_, _, values) in zip(steps, seeds, strict=True)])

    def at(x: str, step: np.ndarray, runs: Sequence[RunRecord]) -> np.ndarray:
      return np.mean([np.interp(step, run.columns["step"], run.columns[x]) for run in runs], axis=0)

    def part(line: str, step: np.ndarray, runs: Sequence[RunRecord], *values: Any) -> DataFrame:
      y, low, high = (value if floor is None else 10**value for value in values)
      across = {x: at(x, step, runs) for x in costs}
      return pd.DataFrame({"label": result.info["label"], "line": line} | across | {"y": y, "low": low, "high": high})  # noqa: B023

    mean, low, high = curves.mean(axis=0), np.nan, np.nan
    if len(seeds) > 2 and len(grid):
      half = half_width(curves)
      low, high = (mean - half, mean + half) if floor is not None else interval_ends(y, mean, half)
    parts.append(part("mean", grid, [run for run, _, _ in seeds], mean, low, high))
    for (run, _, values), step in zip(seeds, steps, strict=True):
      rest = step >= (min(ends) if len(seeds) > 2 else step[0])
      if len(seeds) == 2 or (len(seeds) > 2 and rest.sum() > 1):
        parts.append(part(run.name, step[rest], [run], values[rest], np.nan, np.nan))
      if step[-1] < max(ends) and y != "noise_scale":
        parts.append(part(f"end of {run.name}", step[-1:], [run], values[-1:], np.nan, np.nan))
  lines = pd.concat([part for part in parts if len(part)] or parts, ignore_index=True)[columns]
  return lines[np.isfinite(lines["y"].astype(float))]


def _present(comparison: ComparisonRecord, name: str) -> bool:
  return any(np.isfinite(run.columns[name]).any() for result in comparison.results for run in result.runs)


def _valid(run: RunRecord, y: str, floor: float | None) -> tuple[np.ndarray, np.ndarray]:
  """Return the rows up to where a run diverged, and its values there, on a log axis as logarithms."""
  values = run.columns[y]
  finite = np.isfinite(values)
  rows = np.flatnonzero(finite)
  if len(rows) and y != "noise_scale":  # which has gaps where no gradient was told from zero
    bad = np.flatnonzero(~finite[rows[0] :])
    rows = rows[: bad[0]] if len(bad) else rows
  with np.errstate(divide="ignore", invalid="ignore"):
    return rows, values[rows] if floor is None else np.log10(np.where(values[rows] > floor, values[rows], np.nan))


def accuracy_limits(lines: DataFrame, targets: Sequence[float]) -> tuple[float, float]:
  """Return limits from somewhat below the worst end, or the target, to the best accuracy.

  How lines rise from the start is left out, as it would squeeze their ends; so are ends far below all others.
  """
  means = lines[lines["line"] == "mean"]
  last = means.groupby("label")["y"].last().sort_values(ascending=False).tolist()
  kept = last[:1]
  for end in last[1:]:
    if kept[-1] - end > FAR * max(LEAST, kept[0] - kept[-1]):
      break
    kept.append(end)
  lowest, highest = min([*targets, *kept]), max([*targets, means["y"].max()])
  room = highest - lowest or 0.01
  step = 10.0 ** np.floor(np.log10(room / 4))
  low = max(0.0, step * float(np.floor((lowest - BELOW * room) / step + 1e-9)))
  bands = means["high"][means["y"] >= low].max()
  highest = max(highest, min(highest + BELOW * room, 0.0 if np.isnan(bands) else bands))
  return float(low), float(min(1.0 + min(0.005, 0.03 * (1.0 - low)), highest + 0.06 * (highest - low)))


def is_log(comparison: ComparisonRecord, x: str) -> bool:
  """Return whether the x axis is logarithmic: of bytes, and of the time where algorithms take it very differently."""
  if x not in (comparison.seconds, "bytes_sent") and not x.startswith(PREDICTED):
    return False
  ends = [max(float(run.columns[x][-1]) for run in result.runs) for result in comparison.results if result.runs]
  moved = [end for end in ends if end > 0]
  return x == "bytes_sent" or (bool(moved) and max(moved) > 5 * min(moved))


def pictures(tables: Frames) -> list[Figure]:
  """Return the metric against examples, bytes and time; loss or perplexity, distance and noise scale by examples."""
  comparison = tables.comparison
  metric, *others = [quantity.metric for quantity in frames.scores(comparison)]
  across = [(quantity.metric, metric) for quantity in frames.costs(comparison)[1:]]
  others = [y for y in (*(others or ["test_loss"]), "distance", "noise_scale") if y != metric]
  drawn = [curve_figure(tables, *axes) for axes in (*across, *(("examples", y) for y in others))]
  return [each for each in drawn if each]


def on_clusters(tables: Frames) -> list[Figure]:
  """Return the metric against the seconds predicted for each cluster."""
  drawn = [curve_figure(tables, f"{PREDICTED}_{name}", tables.comparison.metric) for name in tables.comparison.clusters]
  return [each for each in drawn if each]


def curve_figure(tables: Frames, x: str, y: str) -> Figure | None:
  """Return the figure of the metric y against x, both columns of the metrics; None if there is nothing to draw."""
  comparison, seeds = tables.comparison, len(tables.comparison.info["seeds"])
  lines, log_y = data(comparison, y)
  means = lines[lines["line"] == "mean"]
  if not len(means) or (y == "distance" and not means["y"].any()):
    return None
  log_x = is_log(comparison, x)
  drawn = lines[lines[x] > 0] if log_x else lines
  target = target_of(comparison, y)
  limits = (
    accuracy_limits(lines, [comparison.target] if y == comparison.metric else []) if y == "test_accuracy" else None
  )
  notes, shown = [], set(drawn["label"])
  ends = means.groupby("label", sort=False)["y"].last()
  if x == "bytes_sent" and (silent := [label for label in ends.index if label not in shown]):
    texts = [f"{label} (ends at {formats.figure(y, ends[label])})" for label in silent]
    notes.append(f"Sends nothing, so not on this axis: {formats.listed(texts, labels=False)}.")
  if limits and (below := [label for label in ends.index if ends[label] < limits[0] and label in shown]):
    texts = [f"{label} ({formats.figure(y, ends[label])})" for label in below]
    notes.append(f"Ends below these axes: {formats.listed(texts, labels=False)}.")
  if log_y and (
    zero := [each.info["label"] for each in comparison.results if each.runs and each.info["label"] not in ends]
  ):
    notes.append(f"Zero at every evaluation, so not on this log axis: {formats.listed(zero)}.")
  notes += _notes(tables, lines, x, y, log_y)
  name = f"{y.removeprefix('test_')}_vs_{x.removesuffix('_sent')}"
  if x.startswith(PREDICTED):
    name = f"{y.removeprefix('test_')}_on_{x.removeprefix(f'{PREDICTED}_')}"
  subtitle = f"{formats.NAMES[y][0].upper()}{formats.NAMES[y][1:]} against {words_across(x)[0]}"
  subtitle += "" if seeds == 1 else ", mean over seeds" + " and 95 % bands" * (seeds > 2)
  last = ", ".join(f"{label} {formats.figure(y, value)}" for label, value in ends.items() if label in shown)
  alt = f"{subtitle}: one line per algorithm. The lines end at: {last}. {' '.join(notes[:1])}".strip()
  columns = drawn[["label", "line", x, "y", "low", "high"]].rename(
    columns={"y": y, "low": f"{y}_low", "high": f"{y}_high"})  # fmt: skip

  def chart(narrow: bool) -> dict[str, Any]:
    return _printed(tables, drawn.rename(columns={x: "x"}), x, y, (log_x, log_y), limits, target, narrow)

  return Figure(name, _title(tables, ends, x, y), subtitle, alt, notes, chart, columns)


def _title(tables: Frames, ends: Any, x: str, y: str) -> str:
  """Return what a figure shows."""
  comparison = tables.comparison
  if y == comparison.metric:
    cluster = x.removeprefix(f"{PREDICTED}_") if x.startswith(PREDICTED) else ""
    return sentences.headline(tables, Quantity(x, cluster)) + f" on {cluster}" * bool(cluster)
  value = formats.figure(y, ends.min() if y.startswith("test_") else ends.max())
  if y == "distance":
    return f"At the end the workers of {ends.idxmax()} are furthest apart ({value})"
  if y == "noise_scale":
    return f"The gradient noise scale ends at {ends.min():,.3g} to {ends.max():,.3g} examples"
  return f"{ends.idxmin()} ends with the lowest mean {formats.NAMES[y]} ({value})"


def target_of(comparison: ComparisonRecord, y: str) -> float | None:
  """Return where a dotted line is: at the target, or of the noise scale at the global batch."""
  if y == "noise_scale":
    batches = {each.info["settings"]["workers"] * each.info["settings"]["batch"] for each in comparison.results}
    return float(min(batches)) if len(batches) == 1 else None
  return comparison.target if y == comparison.metric else None


def _notes(tables: Frames, lines: DataFrame, x: str, y: str, log_y: bool) -> list[str]:
  """Return the caption's sentences on a metric."""
  comparison, notes = tables.comparison, []
  if y == "distance" and (averaged := [each.info["label"] for each in comparison.results if _averaged(each)]):
    notes.append(f"Every evaluation of {formats.listed(averaged)} falls on a step that averages the workers.")
  if y == "noise_scale":
    notes.append(
      "tr(Sigma) / |G|^2 (McCandlish et al. 2018, arXiv 1812.06162), dotted: the global batch. While that is far below "
      "it, twice as many workers need nearly half as many steps."
    )
  if lines["line"].str.startswith("end of").any():
    notes.append("A cross marks where a seed diverged or stopped; the others continue as thin lines.")
  if log_y and len(comparison.info["seeds"]) > 1:
    notes.append("Means and bands are those of the logarithm.")
  return notes


def _averaged(result: Any) -> bool:
  """Return whether workers that train separately are equal at every evaluation."""
  settings, distances = result.info["settings"], [run.columns["distance"][1:] for run in result.runs]
  if result.info["taxonomy"]["payload"] == "gradients" or result.info["hyper"].get("period") == 1:
    return False
  return settings["workers"] > 1 and any(map(len, distances)) and not np.any(np.concatenate(distances))


def _encodings(x: str, y: str, logs: tuple[bool, bool], limits: Any, across: Any = None) -> dict[str, Any]:
  import altair as alt

  def axis(metric: str, words: str, log: bool, domain: Any) -> dict[str, Any]:
    scale = alt.Scale(type="log" if log else "linear", nice=False, domain=list(domain) if domain else alt.Undefined)
    title = words + ", log scale" * log
    return {"scale": scale, "axis": alt.Axis(title=title, tickCount=6, labelExpr=figure.label_format(metric, log))}

  return {
    "x": alt.X("x:Q", **axis(x, words_across(x)[1], logs[0], across)),
    "y": alt.Y("y:Q", **axis(y, UP.get(y, y.replace("_", " ")), logs[1], limits)),
  }


def _layers(
  styles: DataFrame, bands: bool, legend: "alt.Legend | None", singles: bool = False, clip: bool = False,
  **opacity: Any,
) -> list["alt.Chart"]:  # fmt: skip
  """Return band and mean of every label, without data: fields x, y, low, high, label, line.

  Args:
    singles: with thin lines of single seeds, and crosses where they ended.
  """
  import altair as alt

  labels, front = styles["label"].tolist(), styles["label"][styles["front"]].tolist()
  channels = figure.by_label("label", labels, legend, styles["colour"].tolist(), styles["dash"].tolist())
  base = alt.Chart().encode(x="x:Q", y="y:Q", color=channels["color"], **opacity)
  means = base.transform_filter("datum.line == 'mean'") if singles else base
  layers = []
  if singles:
    seeds = base.transform_filter("indexof(datum.line, 'seed') == 0").encode(detail="line:N")
    ends = base.transform_filter("indexof(datum.line, 'end of') == 0")
    layers.append(seeds.mark_line(clip=clip, strokeWidth=0.8, opacity=0.7))
    layers.append(ends.mark_point(shape="cross", angle=45, size=60, filled=True, clip=clip))
  if len(front) < len(labels):
    rest = means.transform_filter(alt.FieldOneOfPredicate("label", [label for label in labels if label not in front]))
    layers.append(rest.mark_line(clip=clip, strokeWidth=0.8))
    means = means.transform_filter(alt.FieldOneOfPredicate("label", front))
  if bands:
    layers.append(means.mark_area(clip=clip, fillOpacity=0.18, line=False).encode(y=alt.Y("low:Q"), y2="high:Q"))
  layers.append(means.mark_line(clip=clip, strokeWidth=2, strokeJoin="round").encode(strokeDash=channels["strokeDash"]))
  return layers


def _rule(target: float | None) -> list["alt.Chart"]:
  """Return the dotted line of the target."""
  import altair as alt
  import pandas as pd

  if target is None:
    return []
  rule = alt.Chart(pd.DataFrame({"target": [target]})).mark_rule(strokeDash=[2, 3], color=INK)
  return [rule.encode(x=alt.value(0), x2=alt.value("width"), y="target:Q")]


def _printed(
  tables: Frames, lines: DataFrame, x: str, y: str, logs: tuple[bool, bool], limits: Any, target: float | None,
  narrow: bool,
) -> dict[str, Any]:  # fmt: skip
  """Return the large axes, and beside or below them a panel per algorithm with its band; narrow: large axes only."""
  import altair as alt
  import pandas as pd

  styles = figure.styles(tables)
  styles = styles[styles["label"].isin(set(lines["label"]))]
  lines = lines[["label", "line", "x", "y", "low", "high"]].astype({name: float for name in ("x", "y", "low", "high")})
  across = (0, 1.01 * lines["x"].max() or 1)
  if limits:
    lines = _cut(lines, limits)
  if logs[0]:
    across = (lines["x"].min() / 1.1, 1.03 * lines["x"].max())
  shared = _encodings(x, y, logs, limits, across)
  front = styles["label"][styles["front"]].tolist()
  legend = alt.Legend(orient="bottom", columns=2 if narrow else 4, values=front)
  singles = bool((lines["line"] != "mean").any())
  large = alt.layer(*_layers(styles, narrow, legend, singles), *_rule(target), data=alt.NamedData("lines")).encode(
    **shared
  )
  if narrow:
    large = large.properties(width=NARROW, height=220, autosize=alt.AutoSizeParams(type="fit-x", contains="padding"))
    return figure.specification(large, lines=lines)
  many = not styles["front"].all()
  columns = 6 if many else min(2, len(styles))
  rows = -(-len(styles) // columns)
  height = 300 if many else max(260, 62 * rows)
  panel_width = (WIDE - 80) // 6 if many else 118
  none = {
    "labels": False,
    "ticks": False,
    "title": None,
    "tickCount": 4,
    "domain": False,
    "grid": not (many or any(logs)),
  }
  panel = {name: encoding.copy() for name, encoding in shared.items()}
  for encoding in panel.values():
    encoding.axis = alt.Axis(**none)
  means = lines[(lines["line"] == "mean") & lines["label"].isin(front)]
  breaks = means.groupby("label", sort=False).tail(1).assign(y=np.nan)  # one path with gaps is drawn faster
  means = pd.concat([means, breaks]).sort_index(kind="stable").reset_index()[["x", "y"]].reset_index()
  grey = alt.Chart(alt.NamedData("means")).mark_line(color=IDLE, strokeWidth=0.7)
  single = styles.assign(front=True, colour=styles["colour"].replace(IDLE, MUTED))
  if many:
    single["dash"] = [DASHES[0]] * len(single)
  small = alt.layer(
    grey.encode(x="x:Q", y="y:Q", order="index:Q"),
    *_layers(single, True, None, singles),
    *_rule(target),
    data=alt.NamedData("lines"),
  ).encode(**panel)
  facet = alt.Facet("label:N", sort=styles["label"].tolist(), header=alt.Header(title=None))
  panel_height = 46 if many else max(40, (height - 22 * rows) // rows)
  panels = small.properties(width=panel_width, height=panel_height).facet(facet, columns=columns, spacing=6)
  large = large.properties(width=WIDE - 60 if many else WIDE - columns * (panel_width + 6) - 90, height=height)
  both = (large & panels if many else large | panels).resolve_scale(color="independent", strokeDash="independent")
  return figure.specification(both, lines=lines, means=means)


def _cut(lines: DataFrame, limits: tuple[float, float]) -> DataFrame:
  """Cut lines and bands at the limits of y, so that they need no clipping, which takes ten times as long to draw."""
  import pandas as pd

  parts = []
  for (label, line), part in lines.groupby(["label", "line"], sort=False):
    y, place = part["y"].to_numpy() - limits[0], np.arange(len(part))
    crossing = np.flatnonzero(y[1:] * y[:-1] < 0)
    place = np.sort([*place, *(crossing + y[crossing] / (y[crossing] - y[crossing + 1]))])
    columns = {name: np.interp(place, np.arange(len(part)), part[name]) for name in ("x", "y", "low", "high")}
    part = pd.DataFrame({"label": label, "line": line} | columns)
    parts.append(part[part["y"] >= limits[0] - 1e-9])
  cut = pd.concat(parts, ignore_index=True)
  return cut.assign(low=cut["low"].clip(*limits), high=cut["high"].clip(*limits))


def interactive(tables: Frames) -> dict[str, Any] | None:
  """Return the page's chart: its specification, the axes to choose from, and the data; None without a result.

  It is the large axes of the printed figures with bands. The page's script puts the chosen columns into the first two
  calculations of the specification, x and y, and their titles and scales into the encoding.
  """
  import altair as alt

  comparison = tables.comparison
  metrics = [name for name in COLUMNS if name not in COSTS and _present(comparison, name)]
  if not metrics:
    return None
  merged, ups = None, {}
  for y in metrics:
    lines, log = data(comparison, y)
    means = lines[lines["line"] == "mean"].drop(columns="line")
    limits = accuracy_limits(lines, [comparison.target]) if y == "test_accuracy" and len(lines) else None
    ups[y] = {"title": formats.NAMES.get(y) or y.replace("_", " "), "log": log, "target": target_of(comparison, y),
              "domain": limits, "label": [figure.label_format(y, log) for log in (False, True)]}  # fmt: skip
    means = means.rename(columns={"y": y, "low": f"{y}_low", "high": f"{y}_high"})
    merged = means if merged is None else merged.merge(means, how="outer")
  assert merged is not None
  costs = [name for name in (*COSTS, *merged.columns) if name in merged and (name in COSTS or PREDICTED in name)]
  across = {
    x: {"title": words_across(x)[x in COSTS], "log": is_log(comparison, x),
        "label": [figure.label_format(x, log) for log in (False, True)]}
    for x in dict.fromkeys(costs)
  }  # fmt: skip
  shown = alt.selection_point(name="shown", fields=["label"], bind="legend", toggle="true")
  search = alt.param(
    name="search", value="", bind=alt.binding(input="search", name="find ", placeholder="part of a label")
  )
  seen = f"indexof(lower(datum.label), lower({search.name})) >= 0"
  opacity = alt.condition(shown, alt.value(1), alt.value(0.06))
  styles = figure.styles(tables)
  styles = styles[styles["label"].isin(set(merged["label"]))]
  x, y = "examples", comparison.metric
  legend = alt.Legend(orient="bottom", symbolLimit=0)
  layers = _layers(styles, True, legend, clip=True, opacity=opacity)
  titles = {"label:N": "algorithm", "x:Q": "x", "y:Q": "y", "low:Q": "95 % from", "high:Q": "to"}
  tooltip = [alt.Tooltip(field, title=title, format=".4~s") for field, title in titles.items()]
  points = alt.Chart().mark_point(size=90, filled=True, opacity=0, clip=True).encode(x="x:Q", y="y:Q", tooltip=tooltip)
  chart = alt.layer(*layers, points, *_rule(comparison.target), data=alt.NamedData("curves"))
  chart = chart.transform_calculate(x="0", y="0", low="0", high="0").transform_filter(seen)
  chart = chart.encode(**_encodings(x, y, (False, False), None)).add_params(
    shown, search, alt.selection_interval(bind="scales", name="zoom")
  )
  spec = chart.properties(
    width="container", height=380, autosize=alt.AutoSizeParams(type="fit-x", contains="padding")
  ).to_dict()
  kept = _thinned(merged.sort_values(["label", "step"], kind="stable"))
  values = [
    {key: float(f"{value:.5g}") if isinstance(value, float) else value for key, value in line.items() if value == value}
    for line in kept.to_dict("records")
  ]
  spec |= {"config": figure.SCREEN, "datasets": spec.get("datasets", {}) | {"curves": values}}
  return {"spec": spec, "x": across, "y": ups, "initial": [x, y]}


def _thinned(lines: DataFrame) -> DataFrame:
  """Return evenly spaced lines of each label, so that the page holds about POINTS values."""
  most = max(40, POINTS // (lines["label"].nunique() * len(lines.columns)))
  number = lines.groupby("label").cumcount()
  count = lines.groupby("label")["label"].transform("size")
  every = np.maximum(1, np.ceil(count / most)).astype(int)
  return lines[(number % every == 0) | (number == count - 1)]


def embedded(shown: dict[str, Any]) -> str:
  """Return JSON for a script element of the page, which no label can end."""
  return json.dumps(shown, ensure_ascii=False, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")
