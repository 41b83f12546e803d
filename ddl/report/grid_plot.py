"""Figures of a grid: a line per algorithm with 95 % bars over the seeds, a panel for each value of the other keys."""

import textwrap
from collections.abc import Sequence
from typing import Any

import numpy as np

from ddl.report import formats
from ddl.report.figures.picture import Picture
from ddl.report.figures.style import COLOURS, INK, MARKERS, MUTED, PAPER, PHONE, SLIDE, blank
from ddl.report.grid_data import SPEEDUP, Chart, Line
from ddl.report.reader import SCORES

BEYOND = 1.0  # times the range of the means: how far an axis goes for the ends of bars; arrows mark those cut there
FIGURE, LETTER = 0.088, 0.072  # inches of a tick label's and of a title's character, on average


def limits(shown: Chart) -> tuple[float, float]:
  """Of y: around all means, and as far as the bars go unless that hides the means."""
  estimates = [each for panel in shown.panels for line in panel.lines for each in line.estimates]
  means = np.array([each.mean for each in estimates])
  ends = np.array([each.interval or (each.mean, each.mean) for each in estimates])
  if shown.ideal is not None:
    means = np.append(means, [1.0, max(shown.ticks) / shown.ideal])
  if shown.log_y:
    means, ends = np.log(means), np.log(np.maximum(ends, 1e-300))
  low, high = float(means.min()), float(means.max())
  room = high - low or 0.1 * abs(high) or 1.0
  low, high = max(float(ends.min()), low - BEYOND * room), min(float(ends.max()), high + BEYOND * room)
  low, high = min(low, float(means.min())) - 0.06 * room, max(high, float(means.max())) + 0.06 * room
  if shown.log_y:
    return float(np.exp(low)), float(np.exp(high))
  at_most = 1.0 + 0.02 * room if shown.quantity == "test_accuracy" else np.inf
  return (max(low, 0.0) if shown.quantity != "test_loss" else low), min(high, at_most)


def dress(axes: Any, shown: Chart, limits: tuple[float, float], inches: float) -> None:
  """Scales, ticks and limits of a panel that is about so wide."""
  from matplotlib import ticker

  places = np.array([*shown.ticks])
  if shown.log_x:
    axes.set_xscale("log")
    reach = (places.max() / places.min()) ** 0.06
    axes.set_xlim(places.min() / reach, places.max() * reach)
  else:
    room = 0.06 * (places.max() - places.min())
    axes.set_xlim(places.min() - room, places.max() + room)
  axes.xaxis.set_minor_locator(ticker.NullLocator())
  labels = _room(shown, inches)
  if "" in labels and not shown.numbers:  # names are all needed
    axes.set_xticks(places, [*shown.ticks.values()], rotation=30, ha="right", rotation_mode="anchor")
  else:
    axes.set_xticks(places, labels)
  if shown.log_y:
    axes.set_yscale("log")
    axes.yaxis.set_major_locator(ticker.LogLocator(subs=(1,) if limits[1] > 300 * limits[0] else (1, 2, 5)))
    axes.yaxis.set_minor_formatter(ticker.NullFormatter())
  if shown.quantity == "test_accuracy":
    axes.yaxis.set_major_formatter(lambda value, _: f"{100 * value:.4g} %")
  elif shown.quantity in SCORES or shown.quantity == SPEEDUP:
    axes.yaxis.set_major_formatter("{x:g}")
  elif shown.quantity in ("bytes_sent", "step", "examples"):
    unit = "B" if shown.quantity == "bytes_sent" else ""
    axes.yaxis.set_major_formatter(ticker.EngFormatter(unit=unit, sep=" " if unit else ""))
  else:
    axes.yaxis.set_major_formatter("{x:,.6g} s")
  axes.set_ylim(*limits)
  axes.grid(True)


def _room(shown: Chart, inches: float) -> list[str]:
  """The labels of the ticks, empty where they would touch another; the first and the last are kept."""
  places = np.array([*shown.ticks])
  along = np.log(places) if shown.log_x else places
  middle = (along - along[0]) / max(float(np.ptp(along)), 1e-12) * 0.89 * inches
  half = np.array([(len(label) + 1) / 2 * FIGURE for label in shown.ticks.values()])
  last, kept = len(half) - 1, [0]
  for number in range(1, last):
    if all(abs(middle[number] - middle[other]) > half[number] + half[other] for other in (kept[-1], last)):
      kept.append(number)
  kept += [last] if middle[last] - middle[0] > half[last] + half[0] else []
  return [label if number in kept else "" for number, label in enumerate(shown.ticks.values())]


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
