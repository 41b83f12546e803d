"""Schedules as Gantt charts of the start of the run; with a server also a histogram of the staleness of all visits."""

import textwrap
from pathlib import Path
from typing import Any

import numpy as np

from ddl.events.record import Events
from experiments.report import formats
from experiments.report.figures.schedule import KINDS, SYNCHRONOUS, WAITING, Schedule, Spans, schedules, shares, spans
from experiments.report.figures.style import COLOURS, IDLE, INK, MUTED, PAPER, Picture, blank, rendered
from experiments.report.reader import Comparison

TURNS, ROWS, BARS = 6, 16, 40  # shown at most: turns of a worker, workers, bars of the histogram
FILL: tuple[dict[str, Any], ...] = (  # of KINDS
  {"facecolor": COLOURS[0], "edgecolor": PAPER, "linewidth": 0.6},
  {"facecolor": COLOURS[1]},
  {"facecolor": IDLE},
  {"facecolor": PAPER, "edgecolor": MUTED, "hatch": "/////", "linewidth": 0},
  {"facecolor": COLOURS[5], "edgecolor": PAPER, "linewidth": 0.6},
)


def pictures(folder: Path, comparison: Comparison) -> list[Picture]:
  """One picture for each schedule that differs from the others. Raises as `schedules` does."""
  return [_picture(each) for each in schedules(folder, comparison)]


def lone(label: str, events: Events, clock: str) -> bytes:
  """One run's schedule as PNG. clock: the name of its time."""
  shown = Schedule([label], "", events)
  return rendered(lambda wide: _draw(shown, spans(events), end_of(shown), wide, clock))[2]


def _picture(shown: Schedule) -> Picture:
  events = shown.record if isinstance(shown.record, Events) else None
  found = spans(shown.record)
  names, end, workers = formats.listed(shown.labels, 12), end_of(shown), int(found.worker.max()) + 1
  told = ", ".join(f"{kind.partition(':')[0]} {formats.share(part)}" for kind, part in shares(found).items())
  caption = [f"{_shown(shown)} First seed.", "A row is a worker."]
  caption += _asynchronous(events, found) if events else _synchronous(found)
  part = "over the whole run" if events else f"in the first {len(shown.record[0])} steps"
  part += ", bars beneath left out" * bool(found.beneath.any())
  caption.append(f"The workers' time {part}: {told}.")
  if workers > ROWS:
    caption.append(f"The first {ROWS} of {workers} workers are drawn.")
  alt = f"Schedule of {names}: one row per worker from 0 to {end:.3g} s. {caption[-1]}"
  title = _title(events) if events else f"waiting {formats.share(shares(found).get(KINDS[WAITING], 0.0))}"
  summary = f"{names} ({title[0].lower()}{title[1:]})"
  drawn = rendered(lambda wide: _draw(shown, found, end, wide))
  return Picture(f"schedule_{shown.folder}", summary, alt, caption, *drawn)


def _asynchronous(events: Events, found: Spans) -> list[str]:
  """What the marks mean, and what the record does not contain."""
  told = []
  if found.beneath.any():
    told.append(
      "A turn's request leaves when its computing begins: the thin bar beneath the row is that message: the way to the "
      "server, in grey the wait there for earlier messages, the server's work and the way back. The cut inside "
      "a turn is where the reply is merged. The record does not contain when a worker began to wait for a reply that "
      "came after its steps, nor a wait at a barrier after it."
    )
  else:
    told.append(
      "An exchange is the request's way to the server, its work and the reply's way back; grey between them is the "
      "wait at the server for earlier messages."
    )
  told.append(f"Staleness is that of {(~events.dropped).sum():,} visits, the whole run's.")
  for what, count in (("dropped messages", events.dropped.sum()), ("failures", events.restarted.sum())):
    told += [f"{what[0].upper()}{what[1:]}: {count:,}."] if count else []
  return told


def _synchronous(found: Spans) -> list[str]:
  if found.beneath.any():
    return [
      "A message leaves when all workers have reached the start of a round: the thin bar beneath the row is that "
      "message. Grey is the wait for it: it cannot leave before the slowest worker has reached that point."
    ]
  return ["A worker that has done a round's steps waits for the slowest one, then all exchange."]


def staleness(events: Events) -> np.ndarray:
  """Of every message that was served: [visits]."""
  return events.staleness[~events.dropped]


def _title(events: Events) -> str:
  visits = staleness(events)
  return f"Staleness: mean {visits.mean():.3g}, 99th percentile {np.percentile(visits, 99, method='inverted_cdf')}"


def _shown(shown: Schedule) -> str:
  """What `_end` lets the picture show, as a sentence."""
  if not isinstance(shown.record, Events):
    return "The start of the run."
  turns = int(shown.record.round.max()) + 1
  return "The whole run." if turns <= TURNS else f"The start of the run, up to about turn {TURNS} of {turns:,}."


def end_of(shown: Schedule) -> float:
  """The last release of a run of few turns; of a longer one, when half of the workers have made their first turns."""
  if not isinstance(shown.record, Events):
    sent = np.concatenate([shown.record.launched, shown.record.met], axis=1)  # [steps, messages, 2]
    exchanges = shown.record.released[np.isfinite(sent).any(axis=(1, 2))].max(axis=1)
    return float(exchanges[:TURNS][-1] if len(exchanges) else shown.record.released.max())
  events = shown.record
  if events.round.max() < TURNS:
    return float(events.released.max())
  last = np.full(int(events.worker.max()) + 1, np.nan)
  early = events.round < TURNS
  np.fmax.at(last, events.worker[early], events.released[early])
  return float(np.nanmedian(last))


def _draw(shown: Schedule, found: Spans, end: float, wide: bool, clock: str = "virtual time") -> Any:
  events = shown.record if isinstance(shown.record, Events) else None
  rows = min(ROWS, int(found.worker.max()) + 1)
  picture = blank((9.6, max(4.2, 1.9 + 0.3 * rows)) if wide else (4.3, (5.4 if events else 2.6) + 0.22 * rows))
  if not events:
    left = picture.add_subplot()
  elif wide:
    left, right = picture.subplots(1, 2, width_ratios=(2.4, 1))
  else:
    left, right = picture.subplots(2, 1, height_ratios=(1.2 + 0.22 * rows, 2.0))
  _rows(left, found, end, rows, KINDS if events else SYNCHRONOUS)
  left.set_xlabel(clock)
  if events:
    _marks(left, events, end, rows)
    _histogram(right, events)
  handles = [*left.containers, *left.get_lines()]
  picture.legend(
    handles, [each.get_label() for each in handles], frameon=False, loc="outside lower left", ncols=2 if wide else 1,
    fontsize=10 if wide else 9, handlelength=1.6,
  )  # fmt: skip
  left.set_title(textwrap.fill(f"Schedule of {formats.listed(shown.labels, 12)}", 48 if wide else 30), loc="left")
  return picture


def _rows(axes: Any, found: Spans, end: float, rows: int, kinds: tuple[str, ...]) -> None:
  from matplotlib import ticker

  low = np.where(found.beneath, 0.24, -0.34)
  height = np.where(found.beneath, 0.16, 0.56 if found.beneath.any() else 0.68)
  length = np.minimum(found.end, end) - found.begin
  for number, kind in enumerate(kinds):
    mine = (found.kind == number) & (length > 0) & (found.worker < rows)
    if mine.any():
      y = found.worker[mine] + low[mine]
      axes.barh(y, length[mine], height[mine], found.begin[mine], align="edge", label=kind, **FILL[number])
  axes.set(xlim=(0, end), ylim=(rows - 0.5, -0.5), ylabel="worker", yticks=range(rows))
  axes.xaxis.set_major_locator(ticker.MaxNLocator(5))
  axes.xaxis.set_major_formatter(ticker.EngFormatter(unit="s"))
  axes.tick_params(axis="y", length=0)


def _marks(axes: Any, events: Events, end: float, rows: int) -> None:
  for what, flag, when, marker in (
    ("back from a failure", events.restarted, events.start, "^"),
    ("message dropped", events.dropped, events.released, "X"),
  ):
    mine = flag & (when <= end) & (events.worker < rows)
    if mine.any():
      axes.plot(
        when[mine], events.worker[mine], marker, color=INK, markersize=7, markeredgecolor=PAPER, label=what, zorder=4,
        clip_on=False,
      )  # fmt: skip


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
