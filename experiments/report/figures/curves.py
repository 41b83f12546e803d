"""The learning curves of a comparison: all means in one plot, and beside it each algorithm alone with its 95 % band."""

import textwrap
from collections.abc import Sequence
from typing import Any

import numpy as np

from experiments.report import formats
from experiments.report.figures import panels
from experiments.report.figures.line_data import ACROSS, Chart, chart
from experiments.report.figures.line_styles import LineStyle, line_styles
from experiments.report.figures.picture import Picture
from experiments.report.figures.style import INK, MUTED
from experiments.report.reader import Comparison
from experiments.report.table_rows import scores

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
  plan = panels.plan(shown, styles, wide)
  width, height = plan.width, plan.height + above + below
  figure = Figure(figsize=(width, height))
  axes = figure.add_subplot()
  for line in sorted(shown.lines, key=lambda line: styles[line.number].front):
    panels.mean(axes, line, styles[line.number], (2.2 if wide else 1.8), alone=False)
  _axes(axes, shown, wide)
  left, bottom, right, top = plan.large
  _fit(axes, (left, bottom + below, right, top + below))
  panels.draw(figure, axes, shown, styles, plan, below)
  _words(figure, title, note, wide)
  return figure


def _column(shown: Chart, styles: Sequence[LineStyle]) -> Any:
  """The large axes alone, for a paper: of the lines in front the bands too, and a key below."""
  from matplotlib.figure import Figure

  title, note = textwrap.wrap(shown.title, 34), textwrap.wrap(shown.absent, 60)
  front = [line for line in shown.lines if styles[line.number].front]
  if rest := len(shown.lines) - len(front):
    note = [f"thin: {rest} others", *note]
  short = max(len(line.label) for line in front) <= panels.SHORT
  texts = [textwrap.shorten(line.label, panels.SHORT * (1 if short else 2), placeholder=" …") for line in front]
  rows = -(-len(front) // (1 + short))
  above, below = 0.2 + 0.22 * len(title), 0.08 + LINE * len(note)
  keys = below + 0.08 + 0.2 * rows
  width, height = panels.PHONE[0], keys + 2.75 + above
  figure = Figure(figsize=(width, height))
  axes = figure.add_subplot()
  for line in sorted(shown.lines, key=lambda line: styles[line.number].front):
    if styles[line.number].front:
      panels.band(axes, line, styles[line.number], 0.15)
    panels.mean(axes, line, styles[line.number], 1.8, alone=False)
  _axes(axes, shown, wide=False)
  _fit(axes, (0.05, keys, 4.25, keys + 2.75))
  for number, (line, text) in enumerate(zip(front, texts, strict=True)):
    row, side = number % rows, number // rows
    panels.key(figure, 0.2 + 2.05 * side, keys - 0.14 - 0.2 * row, styles[line.number], text, 9.5)
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
  axes.set_position(panels.share(axes.figure, left + 0.8, bottom + 0.6, right - left - 1.2, top - bottom - 0.7))
  seen, inner = axes.get_tightbbox(bbox_extra_artists=axes.texts), axes.bbox
  left, bottom, right, top = np.array(box) + (inner.extents - seen.extents) / axes.figure.dpi
  axes.set_position(panels.share(axes.figure, left, bottom, right - left, top - bottom))


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
  panels.target(axes, shown)
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
