"""Schedules as Gantt charts of the start of a run; with a server also a histogram of the staleness of all visits."""

import textwrap
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ddl.events import lockstep
from ddl.events.lockstep import StepTimes
from ddl.events.record import Events, load, previous
from ddl.report import formats
from ddl.report.figures.picture import Picture
from ddl.report.figures.style import COLOURS, IDLE, INK, MUTED, PAPER, blank
from ddl.report.reader import Comparison

COMPUTING, EXCHANGING, WAITING, LOST, UNKNOWN = range(5)
KINDS = (
  "computing", "exchanging", "waiting", "lost to a failure", "computing, then possibly waiting for the reply"
)  # fmt: skip


class Spans(NamedTuple):
  """Spans of the workers' time: arrays [spans], seconds. Those of a worker do not overlap, except `beneath`."""

  worker: np.ndarray
  begin: np.ndarray
  end: np.ndarray
  kind: np.ndarray  # index into KINDS
  beneath: np.ndarray  # bool: a message on its way while the worker computes


class Schedule(NamedTuple):
  labels: list[str]  # of the algorithms that have it
  folder: str  # of the first one
  record: Events | StepTimes  # of an asynchronous algorithm, or of a synchronous one beside it


def schedules(folder: Path, comparison: Comparison) -> list[Schedule]:
  """The schedules of a comparison in virtual time, each once: of all algorithms, in their order.

  Raises:
    FileNotFoundError, ValueError: if a file that the comparison names is missing, or is no record of events.
  """
  found: list[Schedule] = []
  for entry in (result.info for result in comparison.results):
    if not (name := entry["events"] or entry["lockstep"]):
      continue
    record = (load if entry["events"] else lockstep.load)(folder / name)
    if not len(record[0]):
      raise ValueError(f"{folder / name}: the record has no events")
    same = next((each for each in found if _equal(each.record, record)), None)
    if same:
      same.labels.append(entry["label"])
    else:
      found.append(Schedule([entry["label"]], Path(entry["runs"][0]).parts[0], record))
  return found


def _equal(first: Events | StepTimes, second: Events | StepTimes) -> bool:
  return type(first) is type(second) and all(
    np.array_equal(a, b, equal_nan=a.dtype.kind == "f") for a, b in zip(first, second, strict=True)
  )


def spans(record: Events | StepTimes) -> Spans:
  """Return the spans of every worker from 0 to its last release."""
  return _asynchronous(record) if isinstance(record, Events) else _synchronous(record)


def _asynchronous(events: Events) -> Spans:
  rounding = 1e-9 * events.released.max()
  reply = events.released - events.served[events.answered - 1]
  begun = _service(events, rounding)
  before = previous(events.worker)
  free = np.where(before < 0, 0.0, events.released[before])
  travels_first = (events.arrival - events.start <= reply + rounding)[~events.dropped].all()
  if travels_first:
    parts = _sent_before_the_steps(events, before, begun, rounding)
  else:
    parts = _sent_after_the_steps(events, free, begun, reply)
  return _joined(_spans(events.worker, parts, rounding), rounding)


def _spans(worker: np.ndarray, parts: list[tuple], rounding: float) -> Spans:
  """Return the spans of parts (begin, end, kind, beneath) that have a length. worker: of each begin and end."""
  rows = [np.broadcast_arrays(worker, *part) for part in parts]
  columns = [np.concatenate([each.ravel() for each in column]) for column in zip(*rows, strict=True)]
  real = columns[2] - columns[1] > rounding
  return Spans(*(column[real] for column in columns))


def _joined(found: Spans, rounding: float) -> Spans:
  """Sort the spans by worker and time, and join the consecutive ones of one exchange."""
  order = np.lexsort((found.begin, found.worker, found.beneath))
  worker, begin, end, kind, beneath = (column[order] for column in found)
  first = np.ones(len(order), bool)
  first[1:] = (worker[1:] != worker[:-1]) | (kind[1:] != EXCHANGING) | (kind[:-1] != EXCHANGING)
  first[1:] |= begin[1:] - end[:-1] > rounding
  last = np.append(first[1:], True)
  return Spans(worker[first], begin[first], end[last], kind[first], beneath[first])


def _sent_after_the_steps(events: Events, free: np.ndarray, begun: np.ndarray, reply: np.ndarray) -> list[tuple]:
  """Parts of worker rounds as (begin, end, kind, beneath). A request is taken to travel as long as its reply."""
  start, arrival, served, released, came = events.start, events.arrival, events.served, events.released, ~events.dropped
  in_turn = (start[1:] >= released[:-1]).all()  # each worker waits for the one before
  may = np.maximum(free, np.append(0.0, released[:-1])) if in_turn else free
  leaves = np.where(came, np.maximum(start, arrival - reply), released)
  replied = np.where(came, released - reply, released)
  return [
    (free, may, WAITING, False),
    (may, start, np.where(events.restarted | events.dropped, LOST, WAITING), False),
    (start, leaves, COMPUTING, False),
    (leaves, arrival, EXCHANGING, False),
    (arrival, begun, WAITING, False),
    (begun, np.where(came, served, begun), EXCHANGING, False),
    (np.where(came, served, released), replied, WAITING, False),
    (replied, released, EXCHANGING, False),
  ]


def _sent_before_the_steps(events: Events, before: np.ndarray, begun: np.ndarray, rounding: float) -> list[tuple]:
  """The same with a delay. The record does not contain when a worker began to wait for a reply that came after its
  steps; nor a wait at a barrier after the round, which counts as computing; nor when a failure ended the steps after
  the reply, which count as lost.
  """
  start, arrival, released = events.start, events.arrival, events.released
  reached = np.minimum(events.served + (arrival - start), released)  # there and back takes the same
  after, again = np.full(len(start), np.nan), np.zeros(len(start), bool)  # the same worker's next round, NaN for none
  after[before[before >= 0]] = start[before >= 0]
  again[before[before >= 0]] = events.restarted[before >= 0]
  return [
    (np.zeros(len(start)), np.where(before < 0, start, 0.0), LOST, False),
    (start, released, np.where(reached >= released - rounding, UNKNOWN, COMPUTING), False),
    (released, after, np.where(again, LOST, COMPUTING), False),
    (start, arrival, EXCHANGING, True),
    (arrival, begun, WAITING, True),
    (begun, reached, EXCHANGING, True),
  ]


def _service(events: Events, rounding: float) -> np.ndarray:
  """When the server begins with each message: when it is done with the one before, unless there is never a queue."""
  came = np.flatnonzero(~events.dropped)
  arrival, served = events.arrival[came], events.served[came]
  begun = events.arrival.copy()
  if np.ptp(served - arrival) > rounding:  # without a queue all visits take the same
    begun[came[1:]] = np.maximum(arrival[1:], served[:-1])
  return begun


def _synchronous(record: StepTimes) -> Spans:
  """Spans of lockstep steps; `record` has arrays [steps, workers], of messages [steps, n, 2].

  The time of a worker that is absent is lost, until the end of the record if it does not come back.
  """
  shape, computes = record.free.shape, record.begun + record.lost
  launched, met = (
    [np.where(np.isnan(record.free)[:, None], np.nan, each[:, i, :, None]) for i in range(each.shape[1])]
    for each in (record.launched, record.met)
  )
  parts = [
    *_meetings(record.free, [np.where(_beneath(each, record), np.nan, each) for each in launched], record.begun),
    (record.begun, computes, LOST, False),
    (computes, record.done, COMPUTING, False),
    *_meetings(record.done, met, record.released),
    *((np.where(_beneath(each, record)[:, 0], each[:, 0], each[:, 1]), each[:, 1], EXCHANGING, True)
      for each in launched),
    (*_absent(record), LOST, False),
  ]  # fmt: skip
  return _spans(np.broadcast_to(np.arange(shape[1]), shape), parts, 1e-9 * np.nanmax(record.released))


def _absent(record: StepTimes) -> tuple[np.ndarray, np.ndarray]:
  """When each worker leaves before a step in which it is absent, and when it is back, [steps, workers]; else NaN."""
  here = np.isfinite(record.free)
  leaves = ~here & np.vstack([np.ones_like(here[:1]), here[:-1]])
  before = np.vstack([np.zeros_like(record.free[:1]), record.released[:-1]])
  back = np.vstack([record.free[1:], np.full_like(record.free[:1], np.nan)])
  end = np.nanmax(record.released)
  for step in reversed(range(len(back))):
    later = back[step + 1] if step + 1 < len(back) else end
    back[step] = np.where(np.isnan(back[step]), later, back[step])
  return np.where(leaves, before, np.nan), np.where(leaves, back, np.nan)


def _beneath(message: np.ndarray, record: StepTimes) -> np.ndarray:
  """Whether a worker computes while the message, [steps, 2, workers], is on its way."""
  return (record.begun < message[:, 1])[:, None]


def _meetings(since: np.ndarray, messages: list[np.ndarray], until: np.ndarray) -> list[tuple]:
  """Parts of the time between `since` and `until`: waiting, and messages during which no worker computes."""
  parts = []
  for message in messages:
    leaves, arrives = message[:, 0], message[:, 1]
    parts += [(since, leaves, WAITING, False), (leaves, arrives, EXCHANGING, False)]
    since = np.where(np.isnan(arrives), since, arrives)
  return [*parts, (since, until, WAITING, False)]


def shares(found: Spans) -> dict[str, float]:
  """Share of the workers' time by kind, the largest first."""
  length = np.where(found.beneath, 0.0, found.end - found.begin)
  parts = np.bincount(found.kind, length, len(KINDS)) / length.sum()
  return {KINDS[index]: float(parts[index]) for index in np.argsort(-parts, kind="stable") if parts[index] > 0}


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


def lone(label: str, events: Events, clock: str) -> Picture:
  """Return the picture of one run's schedule. clock: the name of its time."""
  shown, found = Schedule([label], "", events), spans(events)
  return Picture("schedule", label, "", [], lambda wide: _draw(shown, found, wide, clock), _drawn(shown, found))


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
