"""Figures of a report: Vega-Lite charts by Altair, saved as SVG, PDF, PNG and CSV, interactive on the page."""

import base64
import gzip
import re
import textwrap
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ddl.names import slug
from ddl.report import frames
from ddl.report.frames import Frames
from ddl.report.reader import ComparisonRecord, DataFrame

if TYPE_CHECKING:
  import altair as alt  # it takes a third of a second to import

FOLDER, FORMATS = "figures", ("svg", "pdf", "png", "csv")  # beside the page
WIDE, NARROW = 691, 310  # points: 9.6 inches, and 4.3 for a paper's column
DPI = 200  # of a PNG: twice a screen's
INK, MUTED, GRID, IDLE = "#1b2129", "#5a6571", "#e4e8ec", "#c3cad2"
# Okabe and Ito's colours without yellow.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", INK, "#8c6d31")
DASHES = ((1, 0), (6, 3), (2, 2), (8, 2, 2, 2), (12, 3), (4, 2), (8, 2, 2, 2, 2, 2), (12, 2, 5, 2))
# The dark part of matplotlib's plasma, for values in their order.
SEQUENCE = (
  "#0d0887", "#260591", "#3a049a", "#4c02a1", "#5e01a6", "#6e00a8", "#7e03a8", "#8e0ca4", "#9d189d", "#aa2395",
  "#b6308b", "#c23c81", "#cc4977", "#d5546e", "#de6164", "#e76e5b",
)  # fmt: skip
MANY = 12  # lines that one pair of axes shows with all of them told apart
CONFIG: dict[str, Any] = {
  "font": "Helvetica, Arial, sans-serif",
  "background": "white",
  "padding": 6,
  "view": {"stroke": None},
  "title": {"anchor": "start", "color": INK, "fontSize": 13, "subtitleColor": MUTED, "subtitleFontSize": 11,
            "subtitlePadding": 4, "offset": 10, "frame": "group"},
  "axis": {"domainColor": MUTED, "gridColor": GRID, "tickColor": MUTED, "labelColor": INK, "titleColor": INK,
           "titleFontWeight": "normal", "labelFontSize": 10, "titleFontSize": 11, "labelOverlap": "greedy"},
  "legend": {"labelColor": INK, "labelFontSize": 10, "title": None, "symbolSize": 200, "labelLimit": 260,
             "symbolStrokeWidth": 2, "symbolType": "stroke", "columnPadding": 12},
  "header": {"labelColor": INK, "labelFontSize": 10, "labelAnchor": "start", "title": None, "labelLimit": 150,
             "labelPadding": 2},
}  # fmt: skip
SCREEN = CONFIG | {part: CONFIG[part] | {"labelFontSize": 12, "titleFontSize": 13} for part in ("axis", "legend")}


@dataclass(frozen=True, repr=False)
class Figure:
  """A figure with its title, its text for those who do not see it, its caption and its data. Drawn when it is used."""

  name: str  # of its files, without the suffix
  title: str  # what it shows as a finding
  subtitle: str  # what is drawn
  alt: str
  caption: list[str]  # sentences
  chart: Callable[[bool], dict[str, Any]]  # makes the Vega-Lite specification, narrow or wide
  data: DataFrame  # what is drawn

  def __post_init__(self) -> None:
    """Make the name that of a file: it may hold what a user named, such as a cluster."""
    object.__setattr__(self, "name", slug(self.name))

  def __repr__(self) -> str:
    return f"Figure {self.name}: {self.title}; save(path) writes {', '.join(f'.{kind}' for kind in FORMATS)}"

  def spec(self, title: bool = True, narrow: bool = False) -> dict[str, Any]:
    """Return the Vega-Lite specification."""
    spec = self.chart(narrow) | {"config": CONFIG}
    if title:
      characters = (NARROW if narrow else WIDE) // 7
      spec["title"] = {
        "text": textwrap.wrap(self.title, characters),
        "subtitle": textwrap.wrap(self.subtitle, characters + 10),
      }
    return spec

  @cached_property
  def svg(self) -> str:
    """For a screen."""
    return rendered(self.spec())

  @property
  def embedded(self) -> str:
    """A data URI for an image of the page."""
    svg = re.sub(r' (?:aria-\w+|role|pointer-events|class)="[^"<>]*"(?=[^<>]*>)', "", self.svg)  # the page has its text
    svg = re.sub(r'(?: d|transform)="[^"]*"', lambda path: re.sub(r"(\.\d)\d+", r"\1", path[0]), svg)
    return f"data:image/svg+xml;base64,{base64.b64encode(svg.encode()).decode()}"

  def content(self, kind: str, svg: str | None = None, dpi: int = DPI) -> bytes:
    """Return the content of a file. kind: one of FORMATS; svg: another one than that for a screen."""
    import vl_convert

    if kind == "csv":
      return self.data.to_csv(index=False).encode()
    svg = svg or self.svg
    if kind == "svg":
      return svg.encode()
    return vl_convert.svg_to_pdf(svg) if kind == "pdf" else vl_convert.svg_to_png(svg, scale=dpi / 72)

  def save(self, path: str | Path, title: bool = True, narrow: bool = False) -> Path:
    """Write it as the suffix says.

    Args:
      path: .svg, .pdf, .png or .csv, in an existing folder.
      title: whether it has its title; a paper's caption stands for it.
      narrow: 4.3 inches wide, for a paper's column; of curves the large axes only, with the bands of the small ones.

    Raises:
      ValueError: for another suffix.
      FileNotFoundError: for a missing folder.
    """
    path = Path(path)
    kind = path.suffix.lower().removeprefix(".")
    if kind not in FORMATS:
      raise ValueError(f"path must end in {', '.join(f'.{each}' for each in FORMATS)}, got {path.name}.")
    if not path.parent.is_dir():
      raise FileNotFoundError(f"{path.parent} is no folder; make it, or save {path.name} elsewhere")
    plain = kind == "csv" or (title and not narrow)
    path.write_bytes(self.content(kind, None if plain else rendered(self.spec(title, narrow))))
    return path

  def _repr_png_(self) -> bytes:
    """Show it in a notebook."""
    return self.content("png", dpi=90)


def save_all(folder: Path, figures: Iterable[Figure]) -> None:
  """Write every figure in all formats into the sub-folder figures/ of a page's folder."""
  for figure in figures:
    (folder / FOLDER).mkdir(exist_ok=True)
    for kind in FORMATS:
      (folder / FOLDER / f"{figure.name}.{kind}").write_bytes(figure.content(kind))


def specification(chart: "alt.TopLevelMixin", **data: DataFrame) -> dict[str, Any]:
  """Return the Vega-Lite specification of a chart of named data, which is faster than a chart of frames."""
  spec = chart.to_dict(validate=False)
  records = {name: frame.astype(object).where(frame.notna(), None).to_dict("records") for name, frame in data.items()}
  return spec | {"datasets": spec.get("datasets", {}) | records}


def png(chart: "alt.TopLevelMixin", **data: DataFrame) -> bytes:
  """Return a chart of named data as PNG, in twice the resolution of a screen."""
  import vl_convert

  return vl_convert.svg_to_png(rendered(specification(chart, **data) | {"config": CONFIG}), scale=2)


def rendered(spec: dict[str, Any]) -> str:
  """Return the SVG of a Vega-Lite specification."""
  import vl_convert

  return vl_convert.vegalite_to_svg(spec)


def styles(tables: Frames) -> DataFrame:
  """Return a style per label, in the order of the comparison, the same in all its figures.

  Columns: label; colour; dash; front, whether it stands out: with many lines only the best few do. Colours are
  those of groups, dashes tell the members of a group apart. In a grid of one group the colours are those of its first
  key's values in their order.
  """
  import pandas as pd

  results = tables.comparison.results
  groups, front = [result.info["group"] for result in results], _front(tables)
  grid = axes(tables.comparison)
  single = len(set(groups)) == 1 and bool(grid)
  order = sorted(dict.fromkeys(groups), key=lambda group: not front & {
    label for label, other in zip(tables.labels, groups, strict=True) if other == group})  # fmt: skip
  lines, used = [], {}
  for label, group, result in zip(tables.labels, groups, results, strict=True):
    if single:
      (key, values), *_ = grid.items()
      place = values.index(result.info["point"][key])
      colour = SEQUENCE[round(place * (len(SEQUENCE) - 1) / (len(values) - 1))]
      dash = used[place] = used.get(place, -1) + 1
    else:
      place = order.index(group)
      used[group] = used.get(group, -1) + 1
      colour, dash = COLOURS[place % len(COLOURS)], place // len(COLOURS) + used[group]
    ahead = label in front
    lines.append((label, colour if ahead else IDLE, DASHES[dash % len(DASHES)], ahead))
  return pd.DataFrame(lines, columns=["label", "colour", "dash", "front"])


def _front(tables: Frames) -> set[str]:
  """Return all labels of few; of many the best in each cost and in the metric by turns."""
  if len(tables.table) <= MANY:
    return set(tables.labels)
  comparison = tables.comparison
  ranked = [
    frames.ranking(tables, quantity).ranked
    for quantity in (*frames.costs(comparison)[1:], frames.scores(comparison)[0])
  ]
  front = dict.fromkeys(label for turn in zip_longest(*ranked) for label in turn if label)
  return set(list(front)[: len(COLOURS)])


def axes(comparison: ComparisonRecord) -> dict[str, list[Any]]:
  """Return the keys of the grid with several values among the labels, and these values: numbers in their order."""
  points = [result.info["point"] for result in comparison.results]
  keys = {}
  for key, values in comparison.info["grid"].items():
    present = [value for value in values if any(key in point and point[key] == value for point in points)]
    if len(present) > 1:
      keys[key] = sorted(present) if numeric(present) else present
  return keys


def numeric(values: Sequence[Any]) -> bool:
  """Return whether all of them are numbers."""
  return all(isinstance(value, int | float) and not isinstance(value, bool) for value in values)


def by_label(
  field: str, labels: Sequence[str], legend: Any, colours: Sequence[str] = (), dashes: Sequence[Any] = ()
) -> dict[str, Any]:
  """Return the encodings of lines by label: colours, and dashes where there are more labels than colours."""
  import altair as alt

  colours = colours or [COLOURS[number % len(COLOURS)] for number in range(len(labels))]
  dashes = dashes or [DASHES[number // len(COLOURS) % len(DASHES)] for number in range(len(labels))]
  return {
    "color": alt.Color(f"{field}:N", scale=alt.Scale(domain=labels, range=colours), legend=legend),
    "strokeDash": alt.StrokeDash(f"{field}:N", scale=alt.Scale(domain=labels, range=dashes), legend=legend),
  }


LOG_DIGIT = "round(datum.value / pow(10, floor(log(datum.value) / LN10 + 1e-9)))"


def label_format(metric: str, log: bool = False) -> str:
  """Return the Vega expression of an axis' labels with units; a log axis has them at 1, 2, 3 and 5."""
  text = "format(datum.value, '~g')"
  if metric == "test_accuracy":
    text = "format(100 * datum.value, '.4~g') + ' %'"
  elif metric == "bytes_sent":
    text = "replace(format(datum.value, '.3~s'), /([kMGTP]?)$/, ' $1B')"
  elif metric in ("examples", "step"):
    text = "format(datum.value, '.3~s')"
  elif "seconds" in metric:
    small = "replace(format(datum.value, '.3~s'), /([mµn]?)$/, ' $1s')"
    text = f"abs(datum.value) < 1 ? {small} : format(datum.value, '~g') + ' s'"
  return f"indexof([1, 2, 3, 5], {LOG_DIGIT}) < 0 ? '' : {text}" if log else text


def bundle() -> str:
  """Return the JavaScript of Vega-Embed, Vega-Lite and Vega for a page that works offline, as base64 of gzip."""
  import vl_convert

  return base64.b64encode(
    gzip.compress(vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed").encode(), mtime=0)
  ).decode()
