"""Learning curves of a comparison: all means in one plot, and beside it each algorithm with its 95 % band."""

import textwrap
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from ddl.report import formats
from ddl.report.figures.curve_data import ACROSS, Chart, Line, chart
from ddl.report.figures.picture import Picture
from ddl.report.figures.style import GRID, IDLE, INK, MUTED, PAPER, PHONE, SLIDE, LineStyle, line_styles
from ddl.report.reader import Comparison
from ddl.report.table import scores

SHORT = 22  # characters of a label that has room beside another
FEW = 4  # algorithms that have room below each other


class Plan(NamedTuple):
  """Where things are; inches, from the lower left corner, without title and note."""

  width: float
  height: float
  large: tuple[float, float, float, float]  # left, bottom, right, top
  small: tuple[float, float, float, float]  # all panels
  columns: int
  texts: list[str]  # the lines' labels, wrapped
  size: float  # of these, points
  keys: tuple[float, float] | None  # upper left corner of the key of the lines in front, where not all are


def plan(shown: Chart, styles: Sequence[LineStyle], wide: bool) -> Plan:
  """Panels stand beside the large axes, on a phone and with many lines below them."""
  labels = [line.label for line in shown.lines]
  if not all(styles[line.number].front for line in shown.lines):
    columns, size = (6, 7.5) if wide else (3, 7)
    texts = [textwrap.fill(label, 19 if wide else 17) for label in labels]
    front = sum(styles[line.number].front for line in shown.lines)
    panels = -(-len(labels) // columns) * (0.8 + _label(texts, size)) + 0.3
    if wide:
      return Plan(9.6, panels + 4.0, (0.1, panels, 7.0, panels + 3.95), (0.1, 0.05, 9.5, panels - 0.1), columns, texts,
                  size, (7.15, panels + 3.85))  # fmt: skip
    keys = 0.24 * (front + 2)
    top = panels + keys
    return Plan(4.3, top + 3.0, (0.05, top, 4.25, top + 2.95), (0.05, 0.05, 4.25, panels - 0.1), columns, texts, size,
                (0.2, top - 0.1))  # fmt: skip
  short = max(map(len, labels)) <= SHORT
  columns = 2 if short and len(labels) > FEW * wide else 1
  texts, size = [textwrap.fill(label, SHORT if short else 2 * SHORT) for label in labels], 9.5
  rows = -(-len(labels) // columns)
  if wide:
    height = max(SLIDE[1] - 0.6, 0.3 + rows * (0.72 + _label(texts, size)))
    edge = SLIDE[0] - (4.7 if columns == 2 else 2.9)
    low = 0.05 if rows > 2 else 0.05 + (3 - rows) / 3 * (height - 0.4)
    small = (edge + 0.1, low, SLIDE[0] - 0.1, height)
    return Plan(SLIDE[0], height, (0.1, 0.05, edge, height), small, columns, texts, size, None)
  panels = rows * (0.85 + _label(texts, size)) + 0.3
  return Plan(PHONE[0], panels + 3.4, (0.05, panels + 0.05, 4.25, panels + 3.4), (0.05, 0.05, 4.25, panels - 0.1),
              columns, texts, size, None)  # fmt: skip


def _label(texts: Sequence[str], size: float) -> float:
  """Inches that the labels take above the axes."""
  return (1 + max(text.count("\n") for text in texts)) * size * 1.25 / 72 + 0.08


def draw(figure: Any, large: Any, shown: Chart, styles: Sequence[LineStyle], plan: Plan, up: float) -> None:
  """All panels, with the limits and the grid of the large axes; up: inches below what is planned."""
  left, bottom, right, top = plan.small
  left, bottom, right, top = left + 0.22, bottom + up + 0.22, right, top + up
  rows, gap = -(-len(shown.lines) // plan.columns), 0.14
  across, high = (right - left + gap) / plan.columns, (top - bottom) / rows
  others = shown.lines if plan.keys is None else [line for line in shown.lines if styles[line.number].front]
  for number, (line, text) in enumerate(zip(shown.lines, plan.texts, strict=True)):
    x, y = left + number % plan.columns * across, top - (1 + number // plan.columns) * high
    room = _label(plan.texts, plan.size)
    axes = figure.add_axes(share(figure, x, y, across - gap, high - room - 0.04))
    _alone(axes, large, line, [each for each in others if each is not line], shown, styles[line.number])
    lines = text.count("\n")
    key(figure, x + 0.02, y + high - room + 0.07 + lines * plan.size * 1.25 / 72, styles[line.number], text, plan.size)
  words = f"{shown.title.partition(' against ')[2]}, as in the large axes"
  width, height = figure.get_size_inches()
  figure.text((left + right) / 2 / width, (bottom - 0.06) / height, words, size=9, ha="center", va="top")
  figure.text(
    (left - 0.06) / width, (bottom + top) / 2 / height, formats.NAMES[shown.y], size=9, rotation=90, ha="right",
    va="center",
  )  # fmt: skip
  if plan.keys is not None:
    _keys(figure, shown, styles, (plan.keys[0], plan.keys[1] + up))


def share(figure: Any, x: float, y: float, across: float, high: float) -> tuple[float, float, float, float]:
  """Inches as shares of the figure, for axes: left, bottom, width, height."""
  width, height = figure.get_size_inches()
  return x / width, y / height, across / width, high / height


def _keys(figure: Any, shown: Chart, styles: Sequence[LineStyle], corner: tuple[float, float]) -> None:
  """Of the lines in front, and a word on the others."""
  front = [line for line in shown.lines if styles[line.number].front]
  x, y = corner
  for number, line in enumerate(front):
    key(figure, x, y - 0.24 * number, styles[line.number], textwrap.shorten(line.label, 32, placeholder=" …"), 8.5)
  width, height = figure.get_size_inches()
  rest = len(shown.lines) - len(front)
  figure.text(
    x / width, (y - 0.24 * len(front) - 0.08) / height, f"thin: {rest} others,\nin their own axes below", size=8.5,
    color=MUTED, va="center",
  )  # fmt: skip


def key(figure: Any, x: float, y: float, style: LineStyle, text: str, size: float) -> None:
  """A piece of the line and its label; y: the middle of the label's first line."""
  from matplotlib.lines import Line2D

  width, height = figure.get_size_inches()
  figure.add_artist(
    Line2D(
      [x / width, (x + 0.13) / width, (x + 0.26) / width], [y / height] * 3, color=_ink(style), linewidth=1.6,
      linestyle=_pattern(style), marker=style.marker, markevery=(1, 3), markersize=0.6 * size, markeredgecolor=PAPER,
      markeredgewidth=0.7,
    )
  )  # fmt: skip
  place = (x + 0.33) / width, (y + 0.62 * size / 72) / height
  figure.text(*place, text, size=size, va="top", linespacing=1.05)


def _ink(style: LineStyle) -> str:
  return style.colour if style.front or style.grouped else MUTED


def _pattern(style: LineStyle) -> Any:
  return (0, style.dashes) if style.dashes else "-"


def band(axes: Any, line: Line, style: LineStyle, alpha: float) -> None:
  """The interval around the mean."""
  if line.band is not None:
    axes.fill_between(line.x, *line.band, color=_ink(style), alpha=alpha, linewidth=0, zorder=2)


def mean(axes: Any, line: Line, style: LineStyle, width: float, alone: bool) -> None:
  """The mean, with crosses where seeds ended early; thin in the large axes where others stand out, else alike."""
  if alone or style.front:
    # Eight markers per curve, shifted from line to line so that they do not cover each other.
    every = max(1, len(line.x) // 8)
    marks = {} if alone else {
      "marker": style.marker, "markevery": (line.number * every // 5 % every, every), "markersize": 6,
      "markeredgecolor": PAPER, "markeredgewidth": 0.7,
    }  # fmt: skip
    axes.plot(
      line.x, line.mean, color=_ink(style), linewidth=width, linestyle=_pattern(style), zorder=3,
      solid_capstyle="round", **marks,
    )  # fmt: skip
    if line.stopped:
      axes.plot(
        *zip(*(point for _, point in line.stopped), strict=True), "x", color=_ink(style), markersize=9,
        markeredgewidth=2.2, zorder=4, clip_on=False,
      )  # fmt: skip
  else:
    axes.plot(
      line.x, line.mean, color=style.colour if style.grouped else IDLE, linewidth=0.8,
      alpha=0.5 if style.grouped else 1.0, zorder=1.8,
    )  # fmt: skip


def _alone(axes: Any, large: Any, line: Line, others: Sequence[Line], shown: Chart, style: LineStyle) -> None:
  """One algorithm with its band or its seeds in front of others in grey. Without matplotlib's ticks, which are slow."""
  from matplotlib.collections import LineCollection

  axes.set(xscale=large.get_xscale(), yscale=large.get_yscale(), xlim=large.get_xlim(), ylim=large.get_ylim())
  for number, axis in enumerate((axes.xaxis, axes.yaxis)):
    axis.set_visible(False)
    ticks = (large.xaxis, large.yaxis)[number].get_majorticklocs()
    low, high = sorted((large.get_xlim, large.get_ylim)[number]())
    across = (axes.get_xaxis_transform, axes.get_yaxis_transform)[number]()
    inside = ticks[(ticks >= low) & (ticks <= high)]
    (axes.vlines, axes.hlines)[number](inside, 0, 1, transform=across, color=GRID, linewidth=0.5, zorder=0.5)
  grey = [np.column_stack([other.x, other.mean]) for other in others]
  axes.add_collection(LineCollection(grey, colors=IDLE, linewidths=0.8, zorder=1.5), autolim=False)
  band(axes, line, style, 0.28)
  for _, (x, y) in line.rest:
    axes.plot(x, y, color=_ink(style), linewidth=0.8, alpha=0.8, zorder=2)
  mean(axes, line, style, 1.6, alone=True)
  target(axes, shown)


def target(axes: Any, shown: Chart) -> None:
  """A dotted line."""
  if shown.target is not None:
    axes.axhline(shown.target, color=INK, linewidth=1.1, linestyle=(0, (1, 2)), zorder=2.5)


LINE = 0.17  # inches from a line of small print to the next


def pictures(comparison: Comparison) -> list[Picture]:
  """The metric against examples, time and bytes; loss or perplexity, distance and noise scale against examples."""
  metric, styles = comparison.metric, line_styles(comparison)
  across = [x for x in ACROSS if x == comparison.seconds or not x.endswith("seconds")]
  loss = "test_perplexity" if "test_perplexity" in scores(comparison) else "test_loss"  # one is the other's logarithm
  others = [y for y in (loss, "distance", "noise_scale") if y != metric]
  charts = [chart(comparison, x, metric) for x in across] + [chart(comparison, "examples", y) for y in others]
  return [picture(each, comparison, styles) for each in charts if each is not None]


def picture(shown: Chart, comparison: Comparison, styles: Sequence[LineStyle]) -> Picture:
  """One chart; styles: of all algorithms."""
  last = [(line.label, line.mean[np.isfinite(line.mean)][-1]) for line in shown.lines]
  ends = ", ".join(f"{label} {formats.figure(shown.y, value)}" for label, value in last)
  seeds = len(comparison.info["seeds"])
  lines = "one seed" if seeds == 1 else "mean over seeds" + ", each alone with a 95 % band" * (seeds > 2)
  alt = f"{shown.title}: one line per algorithm, {lines}. The lines end at: {ends}. {shown.absent}".strip()
  name = f"{shown.y.removeprefix('test_')}_vs_{shown.x.removesuffix('_sent')}"
  return Picture(
    name, shown.title, alt, shown.notes, lambda wide: _draw(shown, styles, wide), drawn_points(shown),
    lambda: _column(shown, styles),
  )  # fmt: skip


def drawn_points(shown: Chart) -> dict[str, list[Any]]:
  """A chart's points in columns: label, line ("mean", a seed, or the end of one), x, y, and the ends of the band."""
  columns: dict[str, list[Any]] = {
    name: [] for name in ("label", "line", shown.x, shown.y, f"{shown.y}_low", f"{shown.y}_high")
  }
  nothing = np.full(1, np.nan)
  for line in shown.lines:
    low, high = line.band or (nothing, nothing)
    parts = [("mean", line.x, line.mean, low, high)]
    parts += [(name, x, y, nothing, nothing) for name, (x, y) in line.rest]
    parts += [(f"end of {name}", np.array([x]), np.array([y]), nothing, nothing) for name, (x, y) in line.stopped]
    for part, *arrays in parts:
      for values in zip(*np.broadcast_arrays(*arrays), strict=True):
        row = (line.label, part, *(float(f"{value:.8g}") if np.isfinite(value) else "" for value in values))
        for column, value in zip(columns.values(), row, strict=True):
          column.append(value)
  return columns


def _draw(shown: Chart, styles: Sequence[LineStyle], wide: bool) -> Any:
  """Placed by hand: matplotlib's layout engines take longer than all of the drawing."""
  from matplotlib.figure import Figure

  title = textwrap.wrap(shown.title, 70 if wide else 34)
  note = textwrap.wrap(shown.absent, 125 if wide else 60)
  above, below = (0.2 + (0.26 if wide else 0.22) * len(title)), 0.08 + LINE * len(note)
  layout = plan(shown, styles, wide)
  width, height = layout.width, layout.height + above + below
  figure = Figure(figsize=(width, height))
  axes = figure.add_subplot()
  for line in sorted(shown.lines, key=lambda line: styles[line.number].front):
    mean(axes, line, styles[line.number], (2.2 if wide else 1.8), alone=False)
  _axes(axes, shown, wide)
  left, bottom, right, top = layout.large
  _fit(axes, (left, bottom + below, right, top + below))
  draw(figure, axes, shown, styles, layout, below)
  _words(figure, title, note, wide)
  return figure


def _column(shown: Chart, styles: Sequence[LineStyle]) -> Any:
  """The large axes alone, for a paper: of the lines in front the bands too, and a key below."""
  from matplotlib.figure import Figure

  title, note = textwrap.wrap(shown.title, 34), textwrap.wrap(shown.absent, 60)
  front = [line for line in shown.lines if styles[line.number].front]
  if rest := len(shown.lines) - len(front):
    note = [f"thin: {rest} others", *note]
  short = max(len(line.label) for line in front) <= SHORT
  texts = [textwrap.shorten(line.label, SHORT * (1 if short else 2), placeholder=" …") for line in front]
  rows = -(-len(front) // (1 + short))
  above, below = 0.2 + 0.22 * len(title), 0.08 + LINE * len(note)
  keys = below + 0.08 + 0.2 * rows
  width, height = PHONE[0], keys + 2.75 + above
  figure = Figure(figsize=(width, height))
  axes = figure.add_subplot()
  for line in sorted(shown.lines, key=lambda line: styles[line.number].front):
    if styles[line.number].front:
      band(axes, line, styles[line.number], 0.15)
    mean(axes, line, styles[line.number], 1.8, alone=False)
  _axes(axes, shown, wide=False)
  _fit(axes, (0.05, keys, 4.25, keys + 2.75))
  for number, (line, text) in enumerate(zip(front, texts, strict=True)):
    row, side = number % rows, number // rows
    key(figure, 0.2 + 2.05 * side, keys - 0.14 - 0.2 * row, styles[line.number], text, 9.5)
  _words(figure, title, note, wide=False)
  return figure


def _words(figure: Any, title: Sequence[str], note: Sequence[str], wide: bool) -> None:
  """The title above and the small print below."""
  width, height = figure.get_size_inches()
  figure.text(
    0.12 / width, 1 - 0.12 / height, "\n".join(title), va="top", size=14 if wide else 12, weight="bold", linespacing=1.1
  )
  figure.text(0.12 / width, 0.06 / height, "\n".join(note), va="bottom", size=9 if wide else 8, color=MUTED)


def _fit(axes: Any, box: tuple[float, float, float, float]) -> None:
  """Place the axes so that they fill the box together with their labels. box: left, bottom, right, top, inches."""
  left, bottom, right, top = box
  axes.set_position(share(axes.figure, left + 0.8, bottom + 0.6, right - left - 1.2, top - bottom - 0.7))
  seen, inner = axes.get_tightbbox(bbox_extra_artists=axes.texts), axes.bbox
  left, bottom, right, top = np.array(box) + (inner.extents - seen.extents) / axes.figure.dpi
  axes.set_position(share(axes.figure, left, bottom, right - left, top - bottom))


def _axes(axes: Any, shown: Chart, wide: bool) -> None:
  from matplotlib import ticker

  if shown.log_x:
    axes.set_xscale("log")
    axes.set_xlim(*_log_ends(shown))
    axes.xaxis.set_major_locator(ticker.LogLocator(subs=_ticks(*axes.get_xlim(), dense=False)))
    axes.xaxis.set_minor_formatter(ticker.NullFormatter())
  else:
    ends = [x[-1] for line in shown.lines for x in (line.x, *(x for _, (x, _) in line.rest))]
    axes.set_xlim(0, max(ends) * 1.01 or 1)
    axes.xaxis.set_major_locator(ticker.MaxNLocator(6 if wide else 5, steps=[1, 2, 2.5, 5, 10]))
  units = {"examples": ticker.EngFormatter(sep=""), "bytes_sent": ticker.EngFormatter(unit="B")}
  axes.xaxis.set_major_formatter(units.get(shown.x, "{x:,.6g} s"))
  if shown.log_y:
    axes.set_yscale("log")
    axes.yaxis.set_major_locator(ticker.LogLocator(subs=_ticks(*shown.limits, dense=True)))
    axes.yaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_minor_formatter(ticker.NullFormatter())
  elif shown.y == "test_accuracy":
    axes.yaxis.set_major_formatter(lambda value, _: f"{100 * value:.4g} %")
  y_label = textwrap.fill(shown.y_label + ", log scale" * shown.log_y, 56 if wide else 36)
  axes.set(xlabel=shown.x_label + ", log scale" * shown.log_x, ylabel=y_label, ylim=shown.limits)
  axes.grid(True)
  target(axes, shown)
  if shown.target is not None:
    word = "global batch" if shown.y == "noise_scale" else "target"
    axes.annotate(
      f"{word}\n{formats.target(shown.y, shown.target)}", (1.0, shown.target), (5, 0), va="center",
      xycoords=("axes fraction", "data"), textcoords="offset points", fontsize=9, color=INK,
    )  # fmt: skip


def _log_ends(shown: Chart) -> tuple[float, float]:
  """Of a log axis: from where the first line comes onto the axes to the last end."""
  starts, ends = [], []
  for line in shown.lines:
    inside = np.flatnonzero(line.mean >= shown.limits[0])
    starts += [line.x[max(0, inside[0] - 1)]] if len(inside) else []
    ends += [line.x[-1], *(x[-1] for _, (x, _) in line.rest)]
  low, high = min(starts, default=min(line.x[0] for line in shown.lines)), max(ends)
  room = (high / low) ** 0.03 if high > low else 2.0
  return low / room, high * room


def _ticks(low: float, high: float, dense: bool) -> tuple[int, ...]:
  """The digits that have a tick on a log axis, so that their labels do not touch."""
  spans = np.log10(high / low)
  return (1,) if spans > 2.5 else (1, 2, 5) if dense or spans < 1 else (1, 3)
