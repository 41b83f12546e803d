"""Figures of a report: Vega-Lite charts built with Altair and saved as SVG, PDF, PNG and CSV."""

import base64
import gzip
import re
import textwrap
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import zip_longest
from pathlib import Path
from typing import Any
from urllib.parse import quote

import altair as alt
import markupsafe
import numpy as np
import pandas as pd
import vl_convert

from ddl.names import slug
from ddl.report import formats, frames
from ddl.report.frames import Frames
from ddl.report.reader import ComparisonRecord, DataFrame

FOLDER, FORMATS = "figures", ("svg", "pdf", "png", "csv")  # FOLDER is in the page's folder
SUFFIXES = ", ".join(f".{kind}" for kind in FORMATS)
WIDE, NARROW = 691, 310  # points: 9.6 inches, and 4.3 for a paper's column
DPI = 200  # of a PNG
URI = " <>/=:;,()-.'"  # characters that need no percent-encoding in an HTML attribute with double quotes
INK, MUTED, GRID, IDLE = "#1b2129", "#5a6571", "#e4e8ec", "#c3cad2"
# Okabe and Ito's colors without yellow.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", INK, "#8c6d31")
DASHES = ((1, 0), (6, 3), (2, 2), (8, 2, 2, 2), (12, 3), (4, 2), (8, 2, 2, 2, 2, 2), (12, 2, 5, 2))
# The dark part of matplotlib's plasma, for ordered values.
SEQUENCE = (
  "#0d0887", "#260591", "#3a049a", "#4c02a1", "#5e01a6", "#6e00a8", "#7e03a8", "#8e0ca4", "#9d189d", "#aa2395",
  "#b6308b", "#c23c81", "#cc4977", "#d5546e", "#de6164", "#e76e5b",
)  # fmt: skip
# An accuracy is off the axis if its gap to the next better one exceeds FAR times the range of all better ones, which
# counts as at least LEAST.
FAR, LEAST = 4, 0.05
MANY = 12  # maximum number of lines that can all stand out on one pair of axes
CONFIG: dict[str, Any] = {
  "font": "Helvetica, Arial, sans-serif",
  "background": "white",
  "padding": 6,
  "view": {"stroke": None, "continuousWidth": WIDE - 60, "continuousHeight": 300},
  "title": {"anchor": "start", "color": INK, "fontSize": 13, "subtitleColor": MUTED, "subtitleFontSize": 11,
            "subtitlePadding": 4, "offset": 10, "frame": "group"},
  "axis": {"domainColor": MUTED, "gridColor": GRID, "tickColor": MUTED, "labelColor": INK, "titleColor": INK,
           "titleFontWeight": "normal", "labelFontSize": 10, "titleFontSize": 11, "labelOverlap": "greedy",
           "labelSeparation": 4},
  "legend": {"labelColor": INK, "labelFontSize": 10, "title": None, "symbolSize": 200, "labelLimit": 260,
             "symbolStrokeWidth": 2, "symbolType": "stroke", "symbolOpacity": 1, "columnPadding": 12,
             "orient": "bottom", "columns": 4},
  "header": {"labelColor": INK, "labelFontSize": 10, "labelAnchor": "start", "title": None, "labelLimit": 150,
             "labelPadding": 2},
}  # fmt: skip
NARROW_CONFIG = CONFIG | {
  "view": {"stroke": None, "continuousWidth": NARROW - 50, "continuousHeight": 220},
  "legend": CONFIG["legend"] | {"columns": 2},
}
SCREEN = CONFIG | {part: CONFIG[part] | {"labelFontSize": 12, "titleFontSize": 13} for part in ("axis", "legend")}


@dataclass(frozen=True, repr=False)
class Figure:
  """A figure with title, alternative text, caption and data; it is drawn only when it is needed."""

  name: str  # file name without the suffix
  title: str  # the main finding
  subtitle: str  # what is plotted
  alt: str  # alternative text
  caption: list[str]  # sentences
  chart: Callable[[bool], dict[str, Any]]  # narrow -> the Vega-Lite specification
  data: DataFrame  # what is plotted

  def __post_init__(self) -> None:
    """Convert the name, which may contain user-defined names such as a cluster's, to a valid file name."""
    object.__setattr__(self, "name", slug(self.name))

  def __repr__(self) -> str:
    return f"Figure {self.name}: {self.title}; save(path) writes {SUFFIXES}"

  def spec(self, title: bool = True, narrow: bool = False) -> dict[str, Any]:
    """Return the Vega-Lite specification."""
    spec = self.chart(narrow) | {"config": NARROW_CONFIG if narrow else CONFIG}
    if title:
      characters = ((NARROW if narrow else WIDE) - 50) // 7  # the title begins at the axes
      subtitle = textwrap.wrap(self.subtitle, characters + 10)
      spec["title"] = {"text": textwrap.wrap(self.title, characters), "subtitle": subtitle}
    return spec

  @cached_property
  def svg(self) -> str:
    """The figure as SVG."""
    return vl_convert.vegalite_to_svg(self.spec())

  def embedded(self, narrow: bool = False) -> markupsafe.Markup:
    """Return the SVG as a data URI for an HTML attribute, without its alternative text. narrow: as in `save`."""
    svg = vl_convert.vegalite_to_svg(self.spec(narrow=True)) if narrow else self.svg
    svg = re.sub(r' (?:aria-\w+|role|pointer-events|class)="[^"<>]*"(?=[^<>]*>)', "", svg)
    svg = re.sub(r' (?:opacity|stroke-width)="1"| [xy]2="0"|<text[^<>]*/>', "", svg)  # defaults and empty labels
    svg = re.sub(r'(?: d|transform)="[^"]*"', lambda path: re.sub(r"(\.\d)\d+", r"\1", path[0]), svg)
    svg = re.sub(r"""="([^"']*)"(?=[^<>]*>)""", r"='\1'", svg)  # a double quote takes three bytes in a URI
    return markupsafe.Markup(f"data:image/svg+xml,{quote(svg, safe=URI)}")

  def content(self, kind: str, title: bool = True, narrow: bool = False, dpi: int = DPI) -> bytes:
    """Return the content of the figure's file. kind: one of FORMATS; title, narrow: as in `save`; dpi: of a PNG."""
    if kind == "csv":
      return self.data.to_csv(index=False).encode()
    svg = self.svg if title and not narrow else vl_convert.vegalite_to_svg(self.spec(title, narrow))
    if kind == "svg":
      return svg.encode()
    return vl_convert.svg_to_pdf(svg) if kind == "pdf" else vl_convert.svg_to_png(svg, scale=dpi / 72)

  def save(self, path: str | Path, title: bool = True, narrow: bool = False) -> Path:
    """Write the figure into an existing folder as .svg, .pdf, .png or .csv, depending on the suffix of the path.

    Args:
      path: the file to write.
      title: whether to draw the title; False for a paper, where the caption replaces it.
      narrow: whether to draw 4.3 inches wide, for a paper's column; learning curves then have no small panel per label.

    Raises:
      ValueError: for another suffix.
      FileNotFoundError: if the folder does not exist.
    """
    path = Path(path)
    kind = path.suffix.lower().removeprefix(".")
    if kind not in FORMATS:
      raise ValueError(f"path must end in one of {SUFFIXES}, got {path.name}.")
    if not path.parent.is_dir():
      raise FileNotFoundError(f"path must be in an existing folder, got {path}. Create {path.parent} first.")
    path.write_bytes(self.content(kind, title, narrow))
    return path

  def _repr_png_(self) -> bytes:
    """Return the PNG that a notebook shows."""
    return self.content("png", dpi=90)


def save_all(folder: Path, figures: Iterable[Figure], kinds: Sequence[str] = FORMATS) -> None:
  """Write the figures in the formats `kinds` into the subfolder figures/ of a page's folder."""
  for figure in figures:
    (folder / FOLDER).mkdir(exist_ok=True)
    for kind in kinds:
      (folder / FOLDER / f"{figure.name}.{kind}").write_bytes(figure.content(kind))


def specification(chart: alt.TopLevelMixin, **data: DataFrame) -> dict[str, Any]:
  """Return a chart's Vega-Lite specification, including the rows of the frames to which it refers by name.

  data: these frames. Converting them here is faster than in Altair.
  """
  spec = chart.to_dict(validate=False)
  records = {name: frame.astype(object).where(frame.notna(), None).to_dict("records") for name, frame in data.items()}
  return spec | {"datasets": spec.get("datasets", {}) | records}


def png(chart: alt.TopLevelMixin, **data: DataFrame) -> bytes:
  """Return a PNG of a chart at twice the resolution of a screen. data: the frames to which the chart refers by name."""
  return vl_convert.svg_to_png(vl_convert.vegalite_to_svg(specification(chart, **data) | {"config": CONFIG}), scale=2)


def styles(tables: Frames) -> DataFrame:
  """Return the line style of each compared algorithm, the same in all figures of a comparison.

  Columns: label; colour; dash; front, whether the line stands out (of many lines, only the best few do). Colors
  distinguish groups, and dashes the labels within a group; a group is an algorithm with all its points of the grid. In
  a grid with one group, colors show the value of the grid's first key.
  """
  infos, front, grid = tables.comparison.infos, _front(tables), axes(tables.comparison)
  groups = list(dict.fromkeys(info["group"] for info in infos))
  if len(groups) > len(COLOURS):  # the groups in front get the distinct colors
    in_front = {info["group"] for info in infos if info["label"] in front}
    groups.sort(key=lambda group: group not in in_front)
  rows, members = [], Counter()
  for info in infos:
    place, dash = groups.index(info["group"]), 0
    if len(groups) == 1 and grid:
      (key, values), *_ = grid.items()
      place = values.index(info["point"][key])
      colour = SEQUENCE[round(place * (len(SEQUENCE) - 1) / (len(values) - 1))]
    else:
      colour, dash = COLOURS[place % len(COLOURS)], place // len(COLOURS)
    rows.append((info["label"], colour, DASHES[(dash + members[place]) % len(DASHES)], info["label"] in front))
    members[place] += 1
  return pd.DataFrame(rows, columns=["label", "colour", "dash", "front"])


def _front(tables: Frames) -> set[str]:
  """Return the labels of algorithms with prominent lines: all if there are few, else some of the best."""
  if len(tables.table) <= MANY:
    return set(tables.labels)
  ranked = [frames.ranking(tables, quantity).ranked for quantity in frames.headline_quantities(tables.comparison)]
  front = dict.fromkeys(label for turn in zip_longest(*ranked) for label in turn if label)
  return set(list(front)[: len(COLOURS)])


def axes(comparison: ComparisonRecord) -> dict[str, list[Any]]:
  """Map each key of the grid that differs between the compared algorithms to its values; numbers are sorted."""
  keys = {}
  for key, values in comparison.info["grid"].items():
    used = [info["point"][key] for info in comparison.infos if key in info["point"]]
    present = [value for value in values if value in used]
    if len(present) > 1:
      keys[key] = sorted(present) if numeric(present) else present
  return keys


def numeric(values: Sequence[Any]) -> bool:
  """Return whether all values are numbers."""
  return all(isinstance(value, int | float) and not isinstance(value, bool) for value in values)


def by_label(
  field: str, labels: Sequence[str], colours: Sequence[str] = (), dashes: Sequence[Any] = (), **legend: Any
) -> dict[str, Any]:
  """Return encodings that distinguish lines by `field`: colors, and dashes if there are more labels than colors."""
  colours = colours or [COLOURS[number % len(COLOURS)] for number in range(len(labels))]
  dashes = dashes or [DASHES[number // len(COLOURS) % len(DASHES)] for number in range(len(labels))]
  return {
    "color": alt.Color(f"{field}:N", scale=alt.Scale(domain=labels, range=colours), **legend),
    "strokeDash": alt.StrokeDash(f"{field}:N", scale=alt.Scale(domain=labels, range=dashes), **legend),
  }


def columns(labels: Iterable[str], width: float, most: int) -> int:
  """Return how many columns, each as wide as the longest label, fit into `width` points: from 1 to `most`."""
  return max(1, min(most, int(width // (45 + 5 * max(map(len, labels))))))


def near(accuracies: Any) -> np.ndarray:
  """Return accuracies in descending order, without those far below all others."""
  ends = np.sort(accuracies)[::-1]
  far = -np.diff(ends) > FAR * np.maximum(LEAST, ends[0] - ends[:-1])
  return ends[: np.argmax(far) + 1] if far.any() else ends


def limits(means: Any, ends: Any, log: bool = False, share: bool = False) -> list[float]:
  """Return limits of an axis that contain the means, and `ends` unless they are far from all means.

  Ends of bands and bars are cut where they extend beyond the means by more than the range of the means. share: whether
  values are in [0, 1].
  """
  means, ends = (np.log(np.maximum(values, 1e-300)) if log else np.asarray(values) for values in (means, ends))
  low, high = means.min(), means.max()
  room = high - low or 0.1 * abs(high) or 1.0
  ends = np.clip([*means, *ends[~np.isnan(ends)]], low - room, high + room)
  low, high = ends.min() - 0.06 * room, ends.max() + 0.06 * room
  if share:
    low, high = max(low, -0.02), min(high, 1.0 + 0.02 * room)
  return [float(end) for end in (np.exp([low, high]) if log else (low, high))]


LOG_DIGIT = "round(datum.value / pow(10, floor(log(datum.value) / LN10 + 1e-9)))"
LABELS = {  # Vega expressions of axis labels
  "accuracy": "format(100 * datum.value, '.4~g') + ' %'",
  "bytes_sent": "replace(format(datum.value, '.3~s'), /([kMGTP]?)$/, ' $1B')",
  "examples": "format(datum.value, '.3~s')",
  "step": "format(datum.value, '.3~s')",
  "seconds": "abs(datum.value) < 1 ? replace(format(datum.value, '.3~s'), /([mµn]?)$/, ' $1s') "
  ": format(datum.value, '~g') + ' s'",
}


def label_format(metric: str, log: bool = False) -> str:
  """Return the Vega expression of tick labels with units.

  log: whether to show only the labels whose leading digit is 1, 2, 3 or 5.
  """
  unit = "seconds" if "seconds" in metric else "accuracy" if formats.is_share(metric) else metric
  text = LABELS.get(unit, "format(datum.value, '~g')")
  return f"indexof([1, 2, 3, 5], {LOG_DIGIT}) < 0 ? '' : {text}" if log else text


def axis(metric: str, title: str, log: bool, tick_count: int = 6, **scale: Any) -> dict[str, Any]:
  """Return the scale and axis of a Vega-Lite channel, with tick labels in the metric's unit."""
  return {
    "scale": alt.Scale(type="log" if log else "linear", nice=False, **scale),
    "axis": alt.Axis(title=title + ", log scale" * log, tickCount=tick_count, labelExpr=label_format(metric, log)),
  }


@cache
def bundle() -> str:
  """Return the JavaScript of Vega-Embed, Vega-Lite and Vega (gzip, base64), for a page that works offline."""
  script = vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed")
  return base64.b64encode(gzip.compress(script.encode(), mtime=0)).decode()
