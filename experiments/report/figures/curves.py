"""The learning curves of a comparison: all means in one plot, and beside it each algorithm alone with its 95 % band."""

import textwrap
from typing import Any

import numpy as np

from experiments.report import formats
from experiments.report.figures.line_data import ACROSS, Chart, Line, chart
from experiments.report.figures.style import COLOURS, IDLE, INK, MARKERS, PAPER, PHONE, SLIDE, Picture, blank, rendered
from experiments.report.reader import Comparison

SHORT = 22  # characters of a label that has room beside another
FEW = 4  # algorithms that have room below each other


def pictures(comparison: Comparison) -> list[Picture]:
  """The metric against examples, time and bytes; test loss, distance and noise scale against examples."""
  metric = comparison.metric
  across = [x for x in ACROSS if x == comparison.seconds or not x.endswith("seconds")]
  others = [y for y in ("test_loss", "distance", "noise_scale") if y != metric]
  charts = [chart(comparison, x, metric) for x in across] + [chart(comparison, "examples", y) for y in others]
  return [picture(each, comparison) for each in charts if each is not None]


def picture(shown: Chart, comparison: Comparison) -> Picture:
  """One chart, drawn."""
  last = [(line.label, line.mean[np.isfinite(line.mean)][-1]) for line in shown.lines]
  ends = ", ".join(f"{label} {formats.figure(shown.y, value)}" for label, value in last)
  seeds = len(comparison.info["seeds"])
  lines = "one seed" if seeds == 1 else "mean over seeds" + ", each alone with a 95 % band" * (seeds > 2)
  alt = f"{shown.title}: one line per algorithm, {lines}. The lines end at: {ends}. {shown.absent}".strip()
  name = f"{shown.y.removeprefix('test_')}_vs_{shown.x.removesuffix('_sent')}"
  caption = [sentence for sentence in (shown.absent, *shown.notes) if sentence]
  return Picture(name, shown.title, alt, caption, *rendered(lambda wide: _draw(shown, wide), shown.absent))


def _draw(shown: Chart, wide: bool) -> Any:
  short = max(len(line.label) for line in shown.lines) <= SHORT
  columns = 2 if short and len(shown.lines) > FEW * wide else 1
  rows = -(-len(shown.lines) // columns)
  if wide:
    picture = blank((SLIDE[0], max(SLIDE[1], 0.6 + 0.95 * rows)))
    share = 1.8 if columns == 2 else 2.4  # of the large axes
    large, small = picture.subfigures(1, 2, width_ratios=(share, columns))
    grid = small.add_gridspec(max(rows, 3), columns)
  else:
    picture = blank((PHONE[0], 4.4 + 1.05 * rows))
    large, small = picture.subfigures(2, 1, height_ratios=(3.4, 0.3 + rows))
    grid = small.add_gridspec(rows, columns)
  axes = large.add_subplot()
  for line in shown.lines:
    _mean(axes, line, 2.2 if wide else 1.8)
  _axes(axes, shown, wide)
  for number, line in enumerate(shown.lines):
    cell = grid[number // columns, number % columns]
    _alone(small.add_subplot(cell, sharex=axes, sharey=axes), line, shown, SHORT if short else 2 * SHORT)
  small.supxlabel(f"{shown.title.partition(' against ')[2]}, as in the large axes", size=9)
  small.supylabel(formats.NAMES[shown.y], size=9)
  title = shown.title if wide else textwrap.fill(shown.title, 34)
  picture.suptitle(title, x=0.012, ha="left", size=14 if wide else 12, weight="bold")
  return picture


def _mean(axes: Any, line: Line, width: float) -> Any:
  """The mean, with crosses where seeds ended early; return the mean's artist."""
  # Eight markers per curve, shifted from line to line so that they do not cover each other.
  every = max(1, len(line.x) // 8)
  (drawn,) = axes.plot(
    line.x, line.mean, color=_colour(line), linewidth=width, marker=MARKERS[line.number % len(MARKERS)],
    markevery=(line.number * every // 5 % every, every), markersize=6, markeredgecolor=PAPER, markeredgewidth=0.7,
    zorder=3, solid_capstyle="round",
  )  # fmt: skip
  for x, y in line.stopped:
    axes.plot([x], [y], marker="x", color=_colour(line), markersize=9, markeredgewidth=2.2, zorder=4, clip_on=False)
  return drawn


def _alone(axes: Any, line: Line, shown: Chart, width: int) -> None:
  """One algorithm with its band or its seeds in front of the others in grey; its legend is the plot's title."""
  for other in shown.lines:
    if other is not line:
      axes.plot(other.x, other.mean, color=IDLE, linewidth=0.8, zorder=1.5)
  if line.band is not None:
    axes.fill_between(line.x, *line.band, color=_colour(line), alpha=0.28, linewidth=0, zorder=2)
  for x, y in line.rest:
    axes.plot(x, y, color=_colour(line), linewidth=0.8, alpha=0.8, zorder=2)
  key = _mean(axes, line, 1.6)
  key.set_markevery((0, len(line.x)))  # one, for the key; the line needs none here
  axes.legend(
    [key], [textwrap.fill(line.label, width)], loc="lower left", bbox_to_anchor=(0, 1), frameon=False, fontsize=9.5,
    borderpad=0.2, borderaxespad=0, handlelength=1.8, handletextpad=0.5,
  )  # fmt: skip
  _target(axes, shown)
  axes.tick_params(which="both", length=0, labelbottom=False, labelleft=False)
  axes.grid(True, linewidth=0.5)


def _colour(line: Line) -> str:
  return COLOURS[line.number % len(COLOURS)]


def _target(axes: Any, shown: Chart) -> None:
  if shown.target is not None:
    axes.axhline(shown.target, color=INK, linewidth=1.1, linestyle=(0, (1, 2)), zorder=2.5)


def _axes(axes: Any, shown: Chart, wide: bool) -> None:
  from matplotlib import ticker

  if shown.log_x:
    axes.set_xscale("log")
    axes.xaxis.set_major_locator(ticker.LogLocator(subs=_ticks(*axes.get_xlim(), dense=False)))
    axes.xaxis.set_minor_formatter(ticker.NullFormatter())
  else:
    ends = [x[-1] for line in shown.lines for x in (line.x, *(x for x, _ in line.rest))]
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
  _target(axes, shown)
  if shown.target is not None:
    word = "global batch" if shown.y == "noise_scale" else "target"
    axes.annotate(
      f"{word}\n{formats.target(shown.y, shown.target)}", (1.0, shown.target), (5, 0), va="center",
      xycoords=("axes fraction", "data"), textcoords="offset points", fontsize=9, color=INK,
    )  # fmt: skip


def _ticks(low: float, high: float, dense: bool) -> tuple[int, ...]:
  """The digits that have a tick on a log axis, so that their labels do not touch."""
  spans = np.log10(high / low)
  return (1,) if spans > 2.5 else (1, 2, 5) if dense or spans < 1 else (1, 3)
