"""Schedules as Gantt charts of the start of a run; with a server also a histogram of the staleness of all visits."""

from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ddl.events import lockstep
from ddl.events.lockstep import StepTimes
from ddl.events.record import Events, load, previous
from ddl.report import formats
from ddl.report.figure import COLOURS, IDLE, INK, MUTED, NARROW, WIDE, Figure, label_format, specification
from ddl.report.reader import ComparisonRecord, DataFrame
from ddl.run.folder import EVENTS

if TYPE_CHECKING:
  import altair as alt

  from ddl.run.hooks import StepInfo

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


class WorkerSchedule(NamedTuple):
  labels: list[str]  # of the algorithms that have it
  folder: str  # of the first one
  record: Events | StepTimes  # of an asynchronous algorithm, or of a synchronous one beside it


def schedules(folder: Path, comparison: ComparisonRecord) -> list[WorkerSchedule]:
  """Return the schedules of a comparison in virtual time, each once, in the order of the algorithms.

  Raises:
    FileNotFoundError, ValueError: if a file that the comparison names is missing, or is no record of events.
  """
  distinct: list[WorkerSchedule] = []
  for entry in (result.info for result in comparison.results):
    if not (name := entry["events"] or entry["lockstep"]):
      continue
    record = (load if entry["events"] else lockstep.load)(folder / name)
    if not len(record[0]):
      raise ValueError(f"{folder / name}: the record has no events")
    same = next((each for each in distinct if _equal(each.record, record)), None)
    if same:
      same.labels.append(entry["label"])
    else:
      distinct.append(WorkerSchedule([entry["label"]], Path(entry["runs"][0]).parts[0], record))
  return distinct


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


def _joined(timeline: Spans, rounding: float) -> Spans:
  """Sort the spans by worker and time, and join the consecutive ones of one exchange."""
  order = np.lexsort((timeline.begin, timeline.worker, timeline.beneath))
  worker, begin, end, kind, beneath = (column[order] for column in timeline)
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


def shares(timeline: Spans) -> dict[str, float]:
  """Share of the workers' time by kind, the largest first."""
  length = np.where(timeline.beneath, 0.0, timeline.end - timeline.begin)
  parts = np.bincount(timeline.kind, length, len(KINDS)) / length.sum()
  return {KINDS[index]: float(parts[index]) for index in np.argsort(-parts, kind="stable") if parts[index] > 0}


ROUNDS, ROWS, BARS = 6, 16, 40  # shown at most: rounds of a worker, workers, bars of the histogram
FILL = (COLOURS[0], COLOURS[1], IDLE, COLOURS[3], COLOURS[5])  # of KINDS
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
PICTURE = "schedule.png"


def draw(info: "StepInfo") -> None:
  """Save the picture of a run's recorded visits in its folder when the run is complete; a hook."""
  from ddl import hosts  # which needs JAX, as reports do not

  if not info.last or not hosts.is_main() or not (info.folder / EVENTS).exists():
    return
  is_real = info.options.runtime != "simulator" or info.options.replay
  label, events = info.components.experiment.spec.title, load(info.folder / EVENTS)
  single_run(label, events, "time" if is_real else "virtual time").save(info.folder / PICTURE)


def pictures(folder: Path, comparison: ComparisonRecord) -> list[Figure]:
  """Return one figure for each schedule that differs from the others. Raises as `schedules` does."""
  return [_picture(each) for each in schedules(folder, comparison)]


def single_run(label: str, events: Events, clock: str) -> Figure:
  """Return the figure of one run's schedule. clock: the name of its time."""
  return _picture(WorkerSchedule([label], "", events), clock)


def _picture(shown: WorkerSchedule, clock: str = "virtual time") -> Figure:
  events = shown.record if isinstance(shown.record, Events) else None
  timeline = spans(shown.record)
  beneath, parts = bool(timeline.beneath.any()), shares(timeline)
  caption = ["The start of the run. First seed.", "A row is a worker.", MARKS[events is not None, beneath]]
  waiting = f"waiting {formats.share(parts.get(KINDS[WAITING], 0.0))}"
  title, part = f"{waiting} of the time", f"in the first {len(shown.record[0])} steps"
  if events:
    part, rounds = "over the whole run", int(events.round.max()) + 1
    title = f"{waiting} of the time, {staleness_text(events)}"
    whole = "The whole run." if rounds <= ROUNDS else f"The start of the run, up to about round {ROUNDS} of {rounds:,}."
    caption[0] = f"{whole} First seed."
    caption.append(f"Staleness is that of {(~events.dropped).sum():,} visits, the whole run's.")
    counts = {"Dropped messages": events.dropped.sum(), "Failures": events.restarted.sum()}
    caption += [f"{name}: {count:,}." for name, count in counts.items() if count]
  times = ", ".join(f"{kind} {formats.share(value)}" for kind, value in parts.items())
  caption.append(f"The workers' time {part}{', bars beneath left out' * beneath}: {times}.")
  workers, names = int(timeline.worker.max()) + 1, formats.listed(shown.labels)
  if workers > ROWS:
    caption.append(f"The first {ROWS} of {workers} workers are drawn.")
  subtitle = f"Schedule of {names}"
  alt = f"{subtitle}: one row per worker from 0 to {end_of(shown):.3g} s. {caption[-1]}"
  return Figure(f"schedule_{shown.folder}", f"{names}: {title}", subtitle, alt, caption,
                lambda narrow: _drawn(shown, timeline, narrow, clock), drawn_spans(shown, timeline))  # fmt: skip


def drawn_spans(shown: WorkerSchedule, timeline: Spans) -> DataFrame:
  """Return the spans of the rows, those that cross the end of the axis whole; seconds."""
  import pandas as pd

  frame = pd.DataFrame(timeline._asdict())
  frame = frame[(frame["begin"] < end_of(shown)) & (frame["worker"] < ROWS)]
  frame.insert(1, "kind", [KINDS[kind] for kind in frame.pop("kind")])
  return frame


def staleness_text(events: Events) -> str:
  """Return the mean and the 99th percentile of the staleness of every message that was served."""
  visits = events.staleness[~events.dropped]
  return f"staleness {visits.mean():.3g} on average, 99th percentile {np.percentile(visits, 99, method='inverted_cdf')}"


def end_of(shown: WorkerSchedule) -> float:
  """Return the last release of a run of few rounds, else when half of the workers completed their first ROUNDS."""
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


def _drawn(shown: WorkerSchedule, timeline: Spans, narrow: bool, clock: str) -> dict[str, Any]:
  """Return a row of bars per worker; beside it, or below it, the histogram of the staleness."""
  import altair as alt
  import pandas as pd

  events = shown.record if isinstance(shown.record, Events) else None
  end, frame = end_of(shown), drawn_spans(shown, timeline)
  rows = min(ROWS, int(timeline.worker.max()) + 1)
  beneath = frame["beneath"].astype(bool)
  top = frame["worker"] + np.where(beneath, 0.24, -0.34)
  bottom = top + np.where(beneath, 0.16, 0.56 if beneath.any() else 0.68)
  bars = pd.DataFrame({"kind": frame["kind"], "begin": frame["begin"], "end": frame["end"].clip(upper=end),
                       "top": top, "bottom": bottom})  # fmt: skip
  details: dict[str, str] = dict(zip(KINDS, ASYNCHRONOUS if events else SYNCHRONOUS, strict=True))
  kinds = [kind for kind in KINDS if kind in set(bars["kind"])]
  legend = alt.Legend(orient="bottom", columns=1 if narrow else 2, symbolType="square", symbolStrokeColor=MUTED,
                      symbolStrokeWidth=0.5, labelLimit=360)  # fmt: skip
  colour = alt.Color("text:N", legend=legend, scale=alt.Scale(
    domain=[kind + details[kind] for kind in kinds], range=[FILL[KINDS.index(kind)] for kind in kinds]))  # fmt: skip
  x = alt.X("begin:Q", scale=alt.Scale(domain=[0, end], nice=False),
            axis=alt.Axis(title=clock, labelExpr=label_format("seconds"), tickCount=5, grid=False))  # fmt: skip
  y = alt.Y("top:Q", scale=alt.Scale(domain=[rows - 0.5, -0.5], nice=False),
            axis=alt.Axis(title="worker", values=list(range(rows)), format="d", grid=False, ticks=False,
                          domain=False))  # fmt: skip
  bars = bars.assign(text=[kind + details[kind] for kind in bars["kind"]])
  rects = alt.Chart(alt.NamedData("bars")).mark_rect(stroke="white", strokeWidth=0.6)
  layers = [rects.encode(x=x, x2="end:Q", y=y, y2="bottom:Q", color=colour)]
  if events:
    layers += _marks(events, end, rows)
  width = NARROW - 50 if narrow else WIDE - (230 if events else 60)
  gantt = alt.layer(*layers).properties(width=width, height=max(120, 22 * rows))
  if events is None:
    return specification(gantt, bars=bars)
  histogram = _histogram(events).properties(width=NARROW - 60 if narrow else 130, height=max(120, min(200, 22 * rows)))
  return specification(gantt & histogram if narrow else gantt | histogram, bars=bars)


def _marks(events: Events, end: float, rows: int) -> list[Any]:
  """Return marks where messages were dropped and where workers are back from a failure."""
  import altair as alt
  import pandas as pd

  marks = []
  for text, flag, when, shape in (
    ("back from a failure", events.restarted, events.start, "triangle-up"),
    ("message dropped", events.dropped, events.released, "cross"),
  ):
    drawn = flag & (when <= end) & (events.worker < rows)
    if drawn.any():
      data = pd.DataFrame({"begin": when[drawn], "top": events.worker[drawn], "mark": text})
      mark = alt.Chart(data).mark_point(shape=shape, size=50, filled=True, color=INK, stroke="white", strokeWidth=0.7)
      marks.append(mark.encode(x="begin:Q", y="top:Q", shape=alt.Shape("mark:N", scale=alt.Scale(
        domain=[text], range=[shape]), legend=alt.Legend(orient="bottom", symbolType=shape))))  # fmt: skip
  return [alt.layer(*marks).resolve_scale(shape="independent")] if marks else []


def _histogram(events: Events) -> "alt.Chart":
  """Return the shares of visits by staleness."""
  import altair as alt
  import pandas as pd

  visits = events.staleness[~events.dropped]
  width = -(-(int(visits.max()) + 1) // BARS)
  parts = np.bincount(visits // width) / len(visits)
  data = pd.DataFrame({"staleness": np.arange(len(parts)) * width, "share": parts})
  data["to"] = data["staleness"] + 0.9 * width
  return alt.Chart(data).mark_rect(color=COLOURS[0]).encode(
    x=alt.X("staleness:Q", title="visits of others in between", axis=alt.Axis(format="d", tickMinStep=1, tickCount=4)),
    x2="to:Q", y=alt.Y("share:Q", title="share of visits", axis=alt.Axis(format=".0%", tickCount=4)), y2=alt.datum(0),
  )  # fmt: skip
