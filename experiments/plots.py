"""The pictures of a comparison: mean over seeds with its 95 % band, for the page, for a phone and for slides."""

import base64
import io
import re
import textwrap
from collections.abc import Sequence
from typing import Any, NamedTuple, cast

import numpy as np

from experiments import report_format
from experiments.report_data import Comparison
from experiments.report_lines import ACROSS, Chart, Line, chart

INK, MUTED, GRID, PAPER = "#1b2129", "#5a6571", "#dfe3e8", "#fffffe"
# Okabe and Ito's colours without yellow. Dashes and markers go round at other paces than the seven colours, so that
# no pair is told apart by colour alone.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", INK, "#8c6d31")
DASHES: tuple[Any, ...] = ("-", (0, (5, 1.4)), (0, (6, 1.4, 1.2, 1.4)))
MARKERS = "os^DvP<X>ph*"
DARK = {  # what a dark page shows in place of each; the other colours serve both
  INK: "#e6eaef", MUTED: "#a3adb8", GRID: "#333c46", PAPER: "#161b21",
  "#0072b2": "#4586f5", "#d55e00": "#f27b42", "#009e73": "#2fbd93", "#56b4e9": "#9adcff",
}  # fmt: skip
LABELS = {
  "examples": "training examples, all workers together",
  "bytes_sent": "bytes sent per worker",
  "seconds": "training seconds",
  "virtual_seconds": "virtual seconds",
  "test_accuracy": "test accuracy of the consensus model",
  "test_loss": "test loss of the consensus model",
  "distance": "RMS distance (L2) of the workers from their mean",
}
SLIDE, PHONE = (9.6, 5.4), (4.3, 5.9)  # inches


class Picture(NamedTuple):
  name: str  # of the PNG, without the suffix
  title: str
  alt: str
  caption: list[str]  # sentences
  wide: str  # SVG
  narrow: str  # SVG for a phone: upright, with the legend below
  png: bytes  # the wide one at twice the size of a screen

  def embedded(self) -> "Picture":
    """The same with data URIs in place of the SVGs."""
    wide, narrow = (base64.b64encode(svg.encode()).decode() for svg in (self.wide, self.narrow))
    return self._replace(wide=f"data:image/svg+xml;base64,{wide}", narrow=f"data:image/svg+xml;base64,{narrow}")


def pictures(comparison: Comparison) -> list[Picture]:
  """The metric against examples, time and bytes; test loss and distance between workers against examples."""
  metric = comparison.metric
  unused = "seconds" if comparison.seconds == "virtual_seconds" else "virtual_seconds"
  wanted = [(x, metric) for x in ACROSS if x != unused] + [
    ("examples", y) for y in ("test_loss", "distance") if y != metric
  ]
  charts = [chart(comparison, x, y) for x, y in wanted]
  return [picture(each, comparison) for each in charts if each is not None]


def picture(shown: Chart, comparison: Comparison) -> Picture:
  """One chart, drawn."""
  order = sorted(shown.lines, key=_end, reverse=True)  # the legend as the lines end
  ends = ", ".join(f"{line.label} {report_format.figure(shown.y, _end(line))}" for line in order)
  seeds = len(comparison.info["seeds"])
  what = "one seed" if seeds == 1 else "mean over seeds" + " with a 95 % band" * (seeds > 2)
  alt = f"{shown.title}: one line per algorithm, {what}. The lines end at: {ends}. {shown.absent}".strip()
  prefix = {"test_accuracy": "accuracy", "test_loss": "loss"}.get(shown.y, shown.y)
  name = f"{prefix}_vs_{shown.x.removesuffix('_sent')}"
  caption = [sentence for sentence in (shown.absent, *shown.notes) if sentence]
  wide, png = _draw(shown, order, SLIDE, wide=True)
  narrow, _ = _draw(shown, order, PHONE, wide=False)
  return Picture(name, shown.title, alt, caption, wide, narrow, png)


def _end(line: Line) -> float:
  return float(line.mean[np.isfinite(line.mean)][-1])


def style(wide: bool) -> dict[str, Any]:
  """The look of every picture, as matplotlib's settings."""
  from matplotlib import font_manager

  present = set(font_manager.get_font_names())
  family = [name for name in ("Helvetica Neue", "Arial", "Liberation Sans", "DejaVu Sans") if name in present]
  return {
    "font.family": family, "font.size": 11 if wide else 10, "text.color": INK, "axes.labelcolor": INK,
    "axes.edgecolor": MUTED, "xtick.color": MUTED, "ytick.color": MUTED, "xtick.labelcolor": INK,
    "ytick.labelcolor": INK, "axes.spines.top": False, "axes.spines.right": False, "axes.facecolor": PAPER,
    "figure.facecolor": PAPER, "grid.color": GRID, "grid.linewidth": 0.8, "axes.axisbelow": True,
    "svg.fonttype": "path", "svg.hashsalt": "ddl", "axes.titlesize": 14 if wide else 12,
    "axes.titleweight": "bold", "text.parse_math": False, "xtick.minor.size": 2.5, "ytick.minor.size": 2.5,
  }  # fmt: skip


def blank(size: tuple[float, float]) -> Any:
  """An empty figure, inches."""
  from matplotlib.figure import Figure

  picture = Figure(figsize=size, layout="constrained")
  layout: Any = picture.get_layout_engine()
  layout.set(w_pad=0.12, h_pad=0.1)
  return picture


def svg(picture: Any) -> str:
  """A figure as SVG whose colours follow the page into the dark."""
  file = io.StringIO()
  picture.savefig(file, format="svg", metadata={"Date": None})
  return _adaptive(file.getvalue())


def png(picture: Any) -> bytes:
  """A figure at twice the size of a screen."""
  file = io.BytesIO()
  picture.savefig(file, format="png", dpi=200)
  return file.getvalue()


def _draw(shown: Chart, order: Sequence[Line], size: tuple[float, float], wide: bool) -> tuple[str, bytes]:
  import matplotlib

  with matplotlib.rc_context(cast(Any, style(wide))):
    picture = blank(size)
    axes = picture.add_subplot()
    for line in shown.lines:
      _line(axes, line, 2.2 if wide else 1.8, 0.16 if len(shown.lines) <= 4 else 0.09)
    _axes(axes, shown)
    handles = {artist.get_label(): artist for artist in axes.get_lines()}
    columns = 2 if max(len(line.label) for line in order) <= 20 else 1
    place: dict[str, Any] = {"loc": "outside right upper"} if wide else {"loc": "outside lower left", "ncols": columns}
    picture.legend(
      [handles[line.label] for line in order], [line.label for line in order], frameon=False, handlelength=3.4,
      labelspacing=0.75 if wide else 0.5, fontsize=11 if wide else 9.5, **place,
    )  # fmt: skip
    axes.set_title(shown.title if wide else textwrap.fill(shown.title, 30), loc="left", pad=12)
    drawn = svg(picture)
    if wide and shown.absent:  # the page has it in the caption, a slide has no caption
      picture.supxlabel(shown.absent, x=0.01, ha="left", fontsize=9.5, color=MUTED)
    return drawn, png(picture) if wide else b""


def _line(axes: Any, line: Line, width: float, shade: float) -> None:
  colour, dashes = COLOURS[line.number % len(COLOURS)], DASHES[line.number % len(DASHES)]
  marker = MARKERS[line.number % len(MARKERS)]
  # Markers an eighth of the curve apart, each line's a bit further on than the line's before.
  every = max(1, len(line.x) // 8)
  place = (line.number * every // 5 % every, every)
  axes.plot(
    line.x, line.mean, color=colour, linestyle=dashes, linewidth=width, label=line.label, marker=marker,
    markevery=place, markersize=6, markeredgecolor=PAPER, markeredgewidth=0.7, zorder=3, solid_capstyle="round",
  )  # fmt: skip
  if line.band is not None:
    axes.fill_between(line.x, *line.band, color=colour, alpha=shade, linewidth=0)
  for x, y in line.rest:
    axes.plot(x, y, color=colour, linestyle=dashes, linewidth=0.9, alpha=0.8, zorder=2)
  for x, y in line.stopped:
    axes.plot([x], [y], marker="x", color=colour, markersize=9, markeredgewidth=2.2, zorder=4, clip_on=False)


def _axes(axes: Any, shown: Chart) -> None:
  from matplotlib import ticker

  if shown.log_x:
    axes.set_xscale("log")
    spans = np.log10(axes.get_xlim()[1] / axes.get_xlim()[0])
    axes.xaxis.set_major_locator(ticker.LogLocator(subs=(1,) if spans > 2.5 else (1, 2, 5)))
    axes.xaxis.set_minor_formatter(ticker.NullFormatter())
  else:
    ends = [x[-1] for line in shown.lines for x in (line.x, *(x for x, _ in line.rest))]
    axes.set_xlim(0, max(ends) * 1.01 or 1)
    axes.xaxis.set_major_locator(ticker.MaxNLocator(6))
  formats = {"examples": ticker.EngFormatter(sep=""), "bytes_sent": ticker.EngFormatter(unit="B")}
  axes.xaxis.set_major_formatter(formats.get(shown.x, ticker.FuncFormatter(lambda value, _: f"{value:,.6g} s")))
  axes.set_xlabel(LABELS[shown.x] + (", log scale" if shown.log_x else ""))
  if shown.log_y:
    axes.set_yscale("log")
    spans = np.log10(shown.limits[1] / shown.limits[0])
    axes.yaxis.set_major_locator(ticker.LogLocator(subs=(1,) if spans > 2.5 else (1, 2, 5)))
    axes.yaxis.set_major_formatter(ticker.FuncFormatter(lambda value, _: f"{value:g}"))
    axes.yaxis.set_minor_formatter(ticker.NullFormatter())
  elif shown.y == "test_accuracy":
    axes.yaxis.set_major_formatter(ticker.FuncFormatter(lambda value, _: f"{100 * value:.4g} %"))
  axes.set_ylabel(LABELS[shown.y] + (", log scale" if shown.log_y else ""))
  axes.set_ylim(*shown.limits)
  axes.grid(True)
  if shown.target is not None:
    axes.axhline(shown.target, color=INK, linewidth=1.1, linestyle=(0, (1, 2)), zorder=2.5)
    axes.annotate(
      f"target\n{report_format.target(shown.y, shown.target)}", (1.0, shown.target), (5, 0), va="center",
      xycoords=("axes fraction", "data"), textcoords="offset points", fontsize=9, color=INK,
    )  # fmt: skip


def _adaptive(svg: str) -> str:
  """The SVG with its colours as variables that follow the page into the dark."""
  names = {colour: f"--c{number}" for number, colour in enumerate(DARK)}
  light = "".join(f"{name}:{colour};" for colour, name in names.items())
  dark = "".join(f"{name}:{DARK[colour]};" for colour, name in names.items())
  for colour, name in names.items():
    svg = svg.replace(colour, f"var({name})")
  style = f"<style>svg{{{light}}}@media(prefers-color-scheme:dark){{svg{{{dark}}}}}</style>"
  return re.sub(r"(<svg[^>]*>)", lambda found: found.group(1) + style, svg, count=1)
