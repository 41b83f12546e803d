"""The pictures of asynchronous schedules: workers as rows at the start of the run, and the staleness of all visits."""

import textwrap
from pathlib import Path
from typing import Any, cast

import numpy as np

from ddl.events.record import Events
from experiments import report_format
from experiments.plots import COLOURS, GRID, INK, MUTED, PAPER, Picture, blank, png, style, svg
from experiments.report_data import Comparison
from experiments.report_schedule import KINDS, Schedule, Spans, schedules, shares, spans

TURNS, ROWS, BARS = 6, 16, 40  # shown at most: turns of a worker, workers, bars of the histogram
FILL: tuple[dict[str, Any], ...] = (  # of KINDS
  {"facecolor": COLOURS[0], "edgecolor": PAPER, "linewidth": 0.6},
  {"facecolor": COLOURS[1]},
  {"facecolor": GRID},
  {"facecolor": PAPER, "edgecolor": MUTED, "hatch": "/////", "linewidth": 0},
  {"facecolor": COLOURS[5], "edgecolor": PAPER, "linewidth": 0.6},
)


def pictures(folder: Path, comparison: Comparison) -> list[Picture]:
  """One picture for each schedule that differs from the others. Raises as `report_schedule.schedules` does."""
  return [_picture(each) for each in schedules(folder, comparison)]


def _picture(shown: Schedule) -> Picture:
  events, found = shown.events, spans(shown.events)
  names, visits, title = report_format.listed(shown.labels, 12), staleness(events), _title(events)
  end, workers = _end(events), int(events.worker.max()) + 1
  told = ", ".join(f"{kind.partition(':')[0]} {part:.1%}" for kind, part in shares(found).items())
  caption = [
    f"{_shown(events)} {len(visits):,} visits to the server were served; first seed.",
    f"The workers' time over the whole run: {told}.".replace("%", " %"),
  ]
  for what, count in (("dropped messages", events.dropped.sum()), ("deaths", events.restarted.sum())):
    caption += [f"{what[0].upper()}{what[1:]}: {count:,}."] if count else []
  if found.beneath.any():
    caption.append(
      "The request leaves before the steps; the thin bar beneath shows it on its way. The record does not tell when a "
      "worker began to wait for a reply that came last, nor a wait at a barrier after it."
    )
  if workers > ROWS:
    caption.append(f"The first {ROWS} of {workers} workers are drawn.")
  alt = f"Schedule of {names}: one row per worker from 0 to {end:.3g} s. {caption[1]} {title}."
  wide, narrow = (_draw(shown, found, end, wide) for wide in (True, False))
  summary = f"{names} ({title[0].lower()}{title[1:]})"
  return Picture(f"schedule_{shown.folder}", summary, alt, caption, wide[0], narrow[0], wide[1])


def staleness(events: Events) -> np.ndarray:
  """Of every message that was served: [visits]."""
  return events.staleness[~events.dropped]


def _title(events: Events) -> str:
  visits = staleness(events)
  return f"Staleness: mean {visits.mean():.3g}, 99th percentile {np.percentile(visits, 99, method='inverted_cdf')}"


def _shown(events: Events) -> str:
  """What `_end` lets the picture show, as a sentence."""
  turns = int(events.turn.max()) + 1
  return "The whole run." if turns <= TURNS else f"The start of the run, up to about turn {TURNS} of {turns:,}."


def _end(events: Events) -> float:
  """The last release of a run of few turns; of a longer one, when half of the workers have made their first turns."""
  if events.turn.max() < TURNS:
    return float(events.released.max())
  last = np.full(int(events.worker.max()) + 1, np.nan)
  early = events.turn < TURNS
  np.fmax.at(last, events.worker[early], events.released[early])
  return float(np.nanmedian(last))


def _draw(shown: Schedule, found: Spans, end: float, wide: bool) -> tuple[str, bytes]:
  import matplotlib

  rows = min(ROWS, int(shown.events.worker.max()) + 1)
  with matplotlib.rc_context(cast(Any, style(wide))):
    if wide:
      picture = blank((9.6, max(4.2, 1.9 + 0.3 * rows)))
      left, right = picture.subplots(1, 2, width_ratios=(2.4, 1))
    else:
      picture = blank((4.3, 5.4 + 0.22 * rows))
      left, right = picture.subplots(2, 1, height_ratios=(1.2 + 0.22 * rows, 2.0))
    _rows(left, shown.events, found, end, rows)
    _histogram(right, shown.events)
    handles = [*left.containers, *left.get_lines()]
    picture.legend(
      handles, [each.get_label() for each in handles], frameon=False, loc="outside lower left", ncols=2 if wide else 1,
      fontsize=10 if wide else 9.5, handlelength=1.6,
    )  # fmt: skip
    left.set_title(
      textwrap.fill(f"Schedule of {report_format.listed(shown.labels, 12)}", 48 if wide else 30), loc="left"
    )
    return svg(picture), png(picture) if wide else b""


def _rows(axes: Any, events: Events, found: Spans, end: float, rows: int) -> None:
  from matplotlib import ticker

  low = np.where(found.beneath, 0.24, -0.34)
  height = np.where(found.beneath, 0.16, 0.56 if found.beneath.any() else 0.68)
  length = np.minimum(found.end, end) - found.begin
  for number, kind in enumerate(KINDS):
    mine = (found.kind == number) & (length > 0) & (found.worker < rows)
    if mine.any():
      y = found.worker[mine] + low[mine]
      axes.barh(y, length[mine], height[mine], found.begin[mine], align="edge", label=kind, **FILL[number])
  for what, flag, when, marker in (
    ("back from a death", events.restarted, events.start, "^"),
    ("message dropped", events.dropped, events.released, "X"),
  ):
    mine = flag & (when <= end) & (events.worker < rows)
    if mine.any():
      axes.plot(
        when[mine], events.worker[mine], marker, color=INK, markersize=7, markeredgecolor=PAPER, label=what, zorder=4,
        clip_on=False,
      )  # fmt: skip
  axes.set(xlim=(0, end), ylim=(rows - 0.5, -0.5), xlabel="virtual time", ylabel="worker", yticks=range(rows))
  axes.xaxis.set_major_locator(ticker.MaxNLocator(5))
  axes.xaxis.set_major_formatter(ticker.EngFormatter(unit="s"))
  axes.tick_params(axis="y", length=0)


def _histogram(axes: Any, events: Events) -> None:
  from matplotlib import ticker

  visits = staleness(events)
  width = -(-(int(visits.max()) + 1) // BARS)
  parts = np.bincount(visits // width) / len(visits)
  axes.bar(
    np.arange(len(parts)) * width, parts, 0.9 * width, color=COLOURS[0], align="center" if width == 1 else "edge"
  )
  axes.set(xlabel="visits of others in between", ylabel="share of visits")
  axes.set_title(_title(events).replace(": ", "\n"), loc="left", fontsize=11, weight="normal")
  axes.set_xlim(-0.7 * width, max(len(parts), 4) * width - 0.3 * width)
  axes.xaxis.set_major_locator(ticker.MaxNLocator(5, integer=True))
  axes.yaxis.set_major_formatter(ticker.PercentFormatter(1.0, decimals=0, symbol=" %"))
  axes.grid(True, axis="y")
