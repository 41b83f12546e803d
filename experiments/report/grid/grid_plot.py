"""Pictures of a grid: a line per algorithm with 95 % bars over the seeds, a panel for each value of the other keys."""

import textwrap
from collections.abc import Sequence
from typing import Any

import numpy as np

from experiments.report import formats
from experiments.report.figures.picture import Picture
from experiments.report.figures.style import COLOURS, INK, MARKERS, MUTED, PAPER, PHONE, SLIDE, blank
from experiments.report.grid.grid_axes import LETTER, dress, limits
from experiments.report.grid.grid_data import SPEEDUP, Chart, Line

BESIDE = 3  # points between the bars of two algorithms


def picture(shown: Chart) -> Picture:
  """One chart."""
  texts = []
  for panel in shown.panels:
    for line in panel.lines:
      values = [
        f"{shown.ticks[at]}: {_figure(shown, each.mean)}" for at, each in zip(line.x, line.estimates, strict=True)
      ]
      where = f"{line.group}, {panel.title}" if panel.title else line.group
      texts.append(f"{where}: {'; '.join(values[:1] if line.level else values)}")
  alt = f"{shown.title}. {'. '.join(texts)}."
  quantity = (
    f"{SPEEDUP}_{shown.title.partition(' to ')[0].split()[-1]}" if shown.quantity == SPEEDUP else shown.quantity
  )
  name = f"grid_{quantity.removeprefix('test_').removesuffix('_sent')}_vs_{shown.x_label}".replace(" ", "_")
  low, high = limits(shown)
  bars = [each.interval for panel in shown.panels for line in panel.lines for each in line.estimates if each.interval]
  cut = any(bar[0] < low or bar[1] > high for bar in bars)
  notes = [*shown.notes, *["An arrow at the edge: the interval's bar goes on beyond the axis."] * cut]
  return Picture(name, shown.title, alt, notes, lambda wide: _draw(shown, wide), drawn_points(shown))


def drawn_points(shown: Chart) -> dict[str, list[Any]]:
  """A chart's points in columns: algorithm, the other keys' values, the key, the figure and the ends of its bar."""
  columns: dict[str, list[Any]] = {
    name: [] for name in ("algorithm", "panel", shown.x_label, shown.quantity, "low", "high")
  }
  for panel in shown.panels:
    for line in panel.lines:
      for at, each in zip(line.x, line.estimates, strict=True):
        low, high = each.interval or ("", "")
        row = (line.group, panel.title, shown.ticks[at], each.mean, low, high)
        for column, value in zip(columns.values(), row, strict=True):
          column.append(value)
  return columns


def _figure(shown: Chart, value: float) -> str:
  return f"{value:.3g}" if shown.quantity == SPEEDUP else formats.figure(shown.quantity, value)


def _draw(shown: Chart, wide: bool) -> Any:
  count = len(shown.panels)
  columns = min(count, (shown.columns or (4 if count > 6 or count == 4 else 3)) if wide else 2)
  rows = -(-count // columns)
  if wide:
    size = SLIDE if count == 1 else (SLIDE[0], 1.3 + 2.7 * rows)
  else:
    size = PHONE if count == 1 else (PHONE[0], 1.6 + 2.1 * rows)
  figure = blank(size)
  ends, first = limits(shown), None
  inches = (size[0] - (1.5 if wide else 1.0)) / columns - 0.15 * (columns > 1)  # of a panel, about
  for number, panel in enumerate(shown.panels):
    axes = figure.add_subplot(rows, columns, number + 1, sharex=first, sharey=first)
    first = first or axes
    dress(axes, shown, ends, inches)
    lowest = number + columns >= count
    axes.tick_params(labelleft=number % columns == 0, labelbottom=lowest)
    if lowest:
      axes.set_xlabel(textwrap.fill(shown.x_label + ", log scale" * shown.log_x, int(inches / LETTER)))
    if panel.title:
      axes.set_title(textwrap.fill(panel.title, int(inches / LETTER)), size=10, weight="normal", loc="left")
    for line in panel.lines:
      _line(axes, line, len(_groups(shown)), ends)
    if shown.ideal is not None:
      least, most = np.array([min(shown.ticks), max(shown.ticks)])
      axes.plot(
        (least, most),
        (least / shown.ideal, most / shown.ideal),
        color=MUTED,
        linewidth=1.1,
        linestyle=(0, (1, 2)),
        zorder=1.5,
      )
  figure.supylabel(_fill(shown.y_label + ", log scale" * shown.log_y, wide), size=11 if wide else 10)
  _legend(figure, shown, wide)
  title = shown.title if wide else textwrap.fill(shown.title, 34)
  figure.suptitle(title, x=0.012, ha="left", size=14 if wide else 12, weight="bold")
  return figure


def _fill(label: str, wide: bool) -> str:
  return textwrap.fill(label, 50 if wide else 36)


def _groups(shown: Chart) -> dict[str, int]:
  """The groups that are drawn, with their places in the comparison, which fix colour and marker."""
  found = {line.group: line.number for panel in shown.panels for line in panel.lines}
  return dict(sorted(found.items(), key=lambda each: each[1]))


def _line(axes: Any, line: Line, count: int, limits: tuple[float, float]) -> None:
  """A line with bars, a little aside of the others'; a level one is dashed, without markers."""
  from matplotlib.transforms import ScaledTranslation

  colour, means = COLOURS[line.number % len(COLOURS)], np.array([each.mean for each in line.estimates])
  if line.level:
    axes.axhline(means[0], color=colour, linewidth=1.6, linestyle=(0, (5, 3)), zorder=2)
    if ends := line.estimates[0].interval:
      axes.axhspan(*ends, color=colour, alpha=0.1, linewidth=0, zorder=1)
    return
  aside = (line.number - (count - 1) / 2) * BESIDE / 72
  placed = axes.transData + ScaledTranslation(aside, 0, axes.figure.dpi_scale_trans)
  ends = np.array([each.interval or (each.mean, each.mean) for each in line.estimates])
  axes.vlines(line.x, ends[:, 0], ends[:, 1], color=colour, linewidth=1.4, alpha=0.75, transform=placed, zorder=2.5)
  for edge, marker, beyond in ((limits[0], "v", ends[:, 0] < limits[0]), (limits[1], "^", ends[:, 1] > limits[1])):
    cut = np.array(line.x)[beyond]
    if len(cut):  # an empty line that is not clipped counts as one at the figure's corner, and all axes shrink
      axes.plot(
        cut, np.full(len(cut), edge), marker, color=colour, markersize=5, transform=placed, zorder=5, clip_on=False
      )
  axes.plot(line.x, means, color=colour, linewidth=1.8, transform=placed, zorder=3)
  for x, mean, partial in zip(line.x, means, line.partial, strict=True):
    axes.plot(
      [x], [mean], marker=MARKERS[line.number % len(MARKERS)], color=colour, markersize=6.5, transform=placed, zorder=4,
      markerfacecolor=PAPER if partial else colour, markeredgecolor=colour if partial else PAPER,
      markeredgewidth=1.4 if partial else 0.7,
    )  # fmt: skip


def _legend(figure: Any, shown: Chart, wide: bool) -> None:
  from matplotlib.lines import Line2D

  level = {line.group for panel in shown.panels for line in panel.lines if line.level}
  keys: list[Any] = []
  for group, number in _groups(shown).items():
    colour = COLOURS[number % len(COLOURS)]
    marker = None if group in level else MARKERS[number % len(MARKERS)]
    dashes = (0, (5, 3)) if group in level else "-"
    label = f"{group} (no {shown.x_label})" if group in level else group
    keys.append(Line2D([], [], color=colour, marker=marker, markersize=6.5, linewidth=1.8, linestyle=dashes,
                       markeredgecolor=PAPER, label=textwrap.fill(label, 34)))  # fmt: skip
  if shown.ideal is not None:
    keys.append(Line2D([], [], color=MUTED, linewidth=1.1, linestyle=(0, (1, 2)), label="ideal"))
  figure.legend(
    handles=keys, loc="outside lower left", ncols=_columns([key.get_label() for key in keys], 100 if wide else 34),
    frameon=False, fontsize=9.5, labelcolor=INK, handlelength=2.2, columnspacing=1.2,
  )  # fmt: skip


def _columns(labels: Sequence[str], characters: int) -> int:
  """As many as fit beside each other."""
  return max(1, min(len(labels), characters // (max(map(len, labels)) + 6)))
