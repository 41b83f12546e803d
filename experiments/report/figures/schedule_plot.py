"""Schedules as Gantt charts of the start of the run; with a server also a histogram of the staleness of all visits."""

import textwrap
from pathlib import Path
from typing import Any

import numpy as np

from ddl.events import record
from ddl.events.record import Events
from ddl.runtime import hosts
from experiments.report import formats
from experiments.report.figures.picture import Picture
from experiments.report.figures.schedule import KINDS, WAITING, Schedule, Spans, schedules, shares, spans
from experiments.report.figures.style import COLOURS, IDLE, INK, MUTED, PAPER, blank
from experiments.report.reader import Comparison
from experiments.train.folder.run_dir import EVENTS
from experiments.train.hooks import StepInfo

PICTURE = "schedule.png"
ROUNDS, ROWS, BARS = 6, 16, 40  # shown at most: rounds of a worker, workers, bars of the histogram
FILL: tuple[dict[str, Any], ...] = (  # of KINDS
  {"facecolor": COLOURS[0], "edgecolor": PAPER, "linewidth": 0.6},
  {"facecolor": COLOURS[1]},
  {"facecolor": IDLE},
  {"facecolor": PAPER, "edgecolor": MUTED, "hatch": "/////", "linewidth": 0},
  {"facecolor": COLOURS[5], "edgecolor": PAPER, "linewidth": 0.6},
)
ASYNCHRONOUS = (  # what KINDS are with a server or peers
  ": cut where a round begins or a reply is merged", ": messages and the server's work",
  ": for others, the server or a reply", "", "",
)  # fmt: skip
SYNCHRONOUS = (  # and without
  ": cut between two steps", ": a message between all workers", ": for the slowest worker, or for the message", "", "",
)  # fmt: skip
MARKS = {  # by whether all of a record is asynchronous, and whether messages travel beneath the computing
  (True, True): "The request of a worker round leaves when its computing begins: the thin bar beneath the row is that "
  "message: the way to the server, in grey the wait there for earlier messages, the server's work and the way back. "
  "The cut inside a round is where the reply is merged. The record does not contain when a worker began to wait for a "
  "reply that came after its steps, nor a wait at a barrier after it.",
  (True, False): "An exchange is the request's way to the server, its work and the reply's way back; grey between them "
  "is the wait at the server for earlier messages.",
  (False, True): "A message leaves when all workers have reached the start of a round: the thin bar beneath the row is "
  "that message. Grey is the wait for it: it cannot leave before the slowest worker has reached that point.",
  (False, False): "A worker that has done a round's steps waits for the slowest one, then all exchange.",
}


def pictures(folder: Path, comparison: Comparison) -> list[Picture]:
  """One picture for each schedule that differs from the others. Raises as `schedules` does."""
  return [_picture(each) for each in schedules(folder, comparison)]


def draw(info: StepInfo) -> None:
  """Save a picture of an asynchronous run's schedule in its folder, at the end of the run. A hook."""
  if not info.last or not hosts.is_main() or not (info.folder / EVENTS).exists():
    return
  events, real = record.load(info.folder / EVENTS), info.options.runtime != "simulator"
  clock = "time" if real or info.options.replay else "virtual time"
  shown, found = Schedule([info.components.experiment.spec.title], "", events), spans(events)
  picture = Picture(
    "schedule", shown.labels[0], "", [], lambda wide: _draw(shown, found, wide, clock), _drawn(shown, found)
  )
  picture.save(info.folder / PICTURE)


def _picture(shown: Schedule) -> Picture:
  events = shown.record if isinstance(shown.record, Events) else None
  found = spans(shown.record)
  beneath, parts = bool(found.beneath.any()), shares(found)
  caption = ["The start of the run. First seed.", "A row is a worker.", MARKS[events is not None, beneath]]
  title, part = f"waiting {formats.share(parts.get(KINDS[WAITING], 0.0))}", f"in the first {len(shown.record[0])} steps"
  if events:
    title, part, rounds = _staleness(events)[1], "over the whole run", int(events.round.max()) + 1
    whole = "The whole run." if rounds <= ROUNDS else f"The start of the run, up to about round {ROUNDS} of {rounds:,}."
    caption[0] = f"{whole} First seed."
    caption.append(f"Staleness is that of {(~events.dropped).sum():,} visits, the whole run's.")
    counts = {"Dropped messages": events.dropped.sum(), "Failures": events.restarted.sum()}
    caption += [f"{name}: {count:,}." for name, count in counts.items() if count]
  times = ", ".join(f"{kind} {formats.share(value)}" for kind, value in parts.items())
  caption.append(f"The workers' time {part}{', bars beneath left out' * beneath}: {times}.")
  workers, names = int(found.worker.max()) + 1, formats.listed(shown.labels)
  if workers > ROWS:
    caption.append(f"The first {ROWS} of {workers} workers are drawn.")
  alt = f"Schedule of {names}: one row per worker from 0 to {end_of(shown):.3g} s. {caption[-1]}"
  summary = f"{names} ({title[0].lower()}{title[1:]})"
  name, drawn = f"schedule_{shown.folder}", _drawn(shown, found)
  return Picture(name, summary, alt, caption, lambda wide: _draw(shown, found, wide), drawn)


def _drawn(shown: Schedule, found: Spans) -> dict[str, list[Any]]:
  """The spans of the rows, those that cross the end of the axis whole; seconds."""
  rows = (found.begin < end_of(shown)) & (found.worker < ROWS)
  kinds = [KINDS[kind] for kind in found.kind[rows]]
  columns = {name: getattr(found, name)[rows].tolist() for name in ("worker", "begin", "end", "beneath")}
  return {"worker": columns.pop("worker"), "kind": kinds, **columns}


def _staleness(events: Events) -> tuple[np.ndarray, str]:
  """Of every message that was served, [visits]; and its mean and percentile as text."""
  visits = events.staleness[~events.dropped]
  high = np.percentile(visits, 99, method="inverted_cdf")
  return visits, f"Staleness: mean {visits.mean():.3g}, 99th percentile {high}"


def end_of(shown: Schedule) -> float:
  """The last release of a run of few rounds; of a longer one, when half of the workers have made their first ROUNDS."""
  if not isinstance(shown.record, Events):
    sent = np.concatenate([shown.record.launched, shown.record.met], axis=1)  # [steps, messages, 2]
    exchanges = np.nanmax(shown.record.released[np.isfinite(sent).any(axis=(1, 2))], axis=1)
    return float(exchanges[:ROUNDS][-1] if len(exchanges) else np.nanmax(shown.record.released))
  events = shown.record
  if events.round.max() < ROUNDS:
    return float(events.released.max())
  last = np.full(int(events.worker.max()) + 1, np.nan)
  early = events.round < ROUNDS
  np.fmax.at(last, events.worker[early], events.released[early])
  return float(np.nanmedian(last))


def _draw(shown: Schedule, found: Spans, wide: bool, clock: str = "virtual time") -> Any:
  end = end_of(shown)
  events = shown.record if isinstance(shown.record, Events) else None
  rows = min(ROWS, int(found.worker.max()) + 1)
  picture = blank((9.6, max(4.2, 1.9 + 0.3 * rows)) if wide else (4.3, (5.4 if events else 2.6) + 0.22 * rows))
  if not events:
    left = picture.add_subplot()
  elif wide:
    left, right = picture.subplots(1, 2, width_ratios=(2.4, 1))
  else:
    left, right = picture.subplots(2, 1, height_ratios=(1.2 + 0.22 * rows, 2.0))
  _rows(left, found, end, rows, ASYNCHRONOUS if events else SYNCHRONOUS)
  left.set_xlabel(clock)
  if events:
    _marks(left, events, end, rows)
    _histogram(right, events)
  handles = [*left.containers, *left.get_lines()]
  picture.legend(
    handles, [each.get_label() for each in handles], frameon=False, loc="outside lower left", ncols=2 if wide else 1,
    fontsize=10 if wide else 9, handlelength=1.6,
  )  # fmt: skip
  left.set_title(textwrap.fill(f"Schedule of {formats.listed(shown.labels)}", 48 if wide else 30), loc="left")
  return picture


def _rows(axes: Any, found: Spans, end: float, rows: int, details: tuple[str, ...]) -> None:
  from matplotlib import ticker

  low = np.where(found.beneath, 0.24, -0.34)
  height = np.where(found.beneath, 0.16, 0.56 if found.beneath.any() else 0.68)
  length = np.minimum(found.end, end) - found.begin
  for number, kind in enumerate(map(str.__add__, KINDS, details)):
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

  visits, title = _staleness(events)
  width = -(-(int(visits.max()) + 1) // BARS)
  parts = np.bincount(visits // width) / len(visits)
  axes.bar(
    np.arange(len(parts)) * width, parts, 0.9 * width, color=COLOURS[0], align="center" if width == 1 else "edge"
  )
  axes.set(xlabel="visits of others in between", ylabel="share of visits")
  axes.set_title(title.replace(": ", "\n"), loc="left", fontsize=11, weight="normal")
  axes.set_xlim(-0.7 * width, max(len(parts), 4) * width - 0.3 * width)
  axes.xaxis.set_major_locator(ticker.MaxNLocator(5, integer=True))
  axes.yaxis.set_major_formatter(ticker.PercentFormatter(1.0, decimals=0, symbol=" %"))
  axes.grid(True, axis="y")
