"""Schedules as Gantt charts of the start of a run; with a server also a histogram of the staleness of all visits."""

from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import altair as alt
import numpy as np
import pandas as pd

from ddl.events import lockstep
from ddl.events.lockstep import StepTimes
from ddl.events.record import Events, load
from ddl.report import formats
from ddl.report.figure import COLOURS, IDLE, INK, MUTED, NARROW, WIDE, Figure, label_format, specification
from ddl.report.reader import ComparisonRecord, DataFrame
from ddl.run.folder import EVENTS

if TYPE_CHECKING:
  from ddl.run.hooks import StepInfo

COMPUTING, EXCHANGING, WAITING, LOST = "computing", "exchanging", "waiting", "lost to a failure"
UNKNOWN = "computing, then possibly waiting for the reply"
FILL = {COMPUTING: COLOURS[0], EXCHANGING: COLOURS[1], WAITING: IDLE, LOST: COLOURS[3], UNKNOWN: COLOURS[5]}


class WorkerSchedule(NamedTuple):
  labels: list[str]  # of the algorithms that have it
  folder: str  # of the first one
  record: Events | StepTimes  # of an asynchronous algorithm, or of a synchronous one in virtual time


def schedules(folder: Path, comparison: ComparisonRecord) -> list[WorkerSchedule]:
  """Return the distinct schedules of a comparison in virtual time, in the order of the algorithms.

  Raises FileNotFoundError or ValueError for a missing file, or one that is no record of events.
  """
  distinct: dict[Any, WorkerSchedule] = {}
  for entry in comparison.infos:
    if not (name := entry["events"] or entry["lockstep"]):
      continue
    record = (load if entry["events"] else lockstep.load)(folder / name)
    if not len(record[0]):
      raise ValueError(f"{folder / name}: the record has no events")
    content = type(record), *((x.shape, x.tobytes()) for x in record)
    schedule = distinct.setdefault(content, WorkerSchedule([], Path(entry["runs"][0]).parts[0], record))
    schedule.labels.append(entry["label"])
  return list(distinct.values())


def spans(record: Events | StepTimes) -> DataFrame:
  """Return the spans of every worker from 0 to its last release; those of a worker do not overlap, except `beneath`.

  Columns: worker; begin, end, in seconds; kind, of FILL; beneath, a message on its way while the worker computes.
  """
  return _asynchronous(record) if isinstance(record, Events) else _synchronous(record)


def _asynchronous(events: Events) -> DataFrame:
  rounding, reply = 1e-9 * events.released.max(), events.released - events.served[events.answered - 1]
  is_sent_before = (events.arrival - events.start <= reply + rounding)[~events.dropped].all()
  begun = _service(events, rounding)
  parts = _sent_before_the_steps(events, begun, rounding) if is_sent_before else _sent_after(events, begun, reply)
  rows = _spans(events.worker, parts, rounding).sort_values(["beneath", "worker", "begin"], kind="stable")
  last = rows.shift()  # consecutive spans of one exchange are joined
  starts = (rows["worker"] != last["worker"]) | (rows["begin"] - last["end"] > rounding)
  starts |= (rows["kind"] != EXCHANGING) | (last["kind"] != EXCHANGING)
  return rows.groupby(starts.cumsum()).agg(dict.fromkeys(rows, "first") | {"end": "last"})


def _spans(worker: np.ndarray, parts: list[tuple], rounding: float) -> DataFrame:
  """Return the spans of parts (begin, end, kind, beneath) that have a length. worker: of each begin and end."""
  names = ("worker", "begin", "end", "kind", "beneath")
  rows = [zip(names, map(np.ravel, np.broadcast_arrays(worker, *part)), strict=True) for part in parts]
  frame = pd.concat(map(pd.DataFrame, map(dict, rows)), ignore_index=True)
  return frame[frame["end"] - frame["begin"] > rounding]


def _sent_after(events: Events, begun: np.ndarray, reply: np.ndarray) -> list[tuple]:
  """Return parts of worker rounds as (begin, end, kind, beneath). A request is taken to travel as long as its reply."""
  start, arrival, served, released = events.start, events.arrival, events.served, events.released
  is_served = ~events.dropped
  free = pd.Series(released).groupby(events.worker).shift(fill_value=0.0).to_numpy()
  in_turn = (start[1:] >= released[:-1]).all()  # each worker waits for the one before
  turn = np.maximum(free, np.append(0.0, released[:-1])) if in_turn else free
  leaves = np.where(is_served, np.maximum(start, arrival - reply), released)
  replied = np.where(is_served, released - reply, released)
  return [
    (free, turn, WAITING, False),
    (turn, start, np.where(events.restarted | events.dropped, LOST, WAITING), False),
    (start, leaves, COMPUTING, False),
    (leaves, arrival, EXCHANGING, False),
    (arrival, begun, WAITING, False),
    (begun, np.where(is_served, served, begun), EXCHANGING, False),
    (np.where(is_served, served, released), replied, WAITING, False),
    (replied, released, EXCHANGING, False),
  ]


def _sent_before_the_steps(events: Events, begun: np.ndarray, rounding: float) -> list[tuple]:
  """Return the same with a delay.

  The record does not contain when a worker began to wait for a reply that came after its steps; nor a wait at a barrier
  after the round, which counts as computing; nor when a failure ended the steps after the reply, which count as lost.
  """
  start, arrival, released = events.start, events.arrival, events.released
  reached = np.minimum(events.served + (arrival - start), released)  # there and back takes the same
  visits = pd.DataFrame({"start": start, "restarted": events.restarted}).groupby(events.worker)
  following = visits.shift(-1)  # the same worker's next round
  return [
    (np.zeros(len(start)), np.where(visits.cumcount() == 0, start, 0.0), LOST, False),
    (start, released, np.where(reached >= released - rounding, UNKNOWN, COMPUTING), False),
    (released, following["start"], np.where(following["restarted"] == 1, LOST, COMPUTING), False),
    (start, arrival, EXCHANGING, True),
    (arrival, begun, WAITING, True),
    (begun, reached, EXCHANGING, True),
  ]


def _service(events: Events, rounding: float) -> np.ndarray:
  """Return when the server begins with each message: on arrival, or in a queue after the one before."""
  rows, begun = np.flatnonzero(~events.dropped), events.arrival.copy()
  arrival, served = events.arrival[rows], events.served[rows]
  if np.ptp(served - arrival) > rounding:  # without a queue all visits take the same
    begun[rows[1:]] = np.maximum(arrival[1:], served[:-1])
  return begun


def _synchronous(record: StepTimes) -> DataFrame:
  """Return the spans of lockstep steps; `record` has arrays [steps, workers], of messages [steps, n, 2].

  The time of an absent worker is lost, until the end of the record if it does not rejoin.
  """
  shape, computes = record.free.shape, record.begun + record.lost
  launched, met = (
    [np.where(np.isnan(record.free)[:, None], np.nan, messages[:, i, :, None]) for i in range(messages.shape[1])]
    for messages in (record.launched, record.met)
  )
  parts = [
    *_meetings(record.free, [np.where(_beneath(sent, record), np.nan, sent) for sent in launched], record.begun),
    (record.begun, computes, LOST, False),
    (computes, record.done, COMPUTING, False),
    *_meetings(record.done, met, record.released),
    *((np.where(_beneath(sent, record)[:, 0], sent[:, 0], sent[:, 1]), sent[:, 1], EXCHANGING, True)
      for sent in launched),
    (*_absent(record), LOST, False),
  ]  # fmt: skip
  return _spans(np.broadcast_to(np.arange(shape[1]), shape), parts, 1e-9 * np.nanmax(record.released))


def _absent(record: StepTimes) -> tuple[np.ndarray, np.ndarray]:
  """Return when workers leave before steps in which they are absent, and rejoin: [steps, workers], else NaN."""
  is_present = np.isfinite(record.free)
  leaves = ~is_present & np.vstack([np.ones_like(is_present[:1]), is_present[:-1]])
  before = np.vstack([np.zeros_like(record.free[:1]), record.released[:-1]])
  back = pd.DataFrame(record.free).shift(-1).bfill().fillna(np.nanmax(record.released)).to_numpy()
  return np.where(leaves, before, np.nan), np.where(leaves, back, np.nan)


def _beneath(message: np.ndarray, record: StepTimes) -> np.ndarray:
  """Return whether a worker computes while the message, [steps, 2, workers], is on its way."""
  return (record.begun < message[:, 1])[:, None]


def _meetings(since: np.ndarray, messages: list[np.ndarray], until: np.ndarray) -> list[tuple]:
  """Return parts of the time between `since` and `until`: waiting, and messages during which no worker computes."""
  parts = []
  for message in messages:
    leaves, arrives = message[:, 0], message[:, 1]
    parts += [(since, leaves, WAITING, False), (leaves, arrives, EXCHANGING, False)]
    since = np.where(np.isnan(arrives), since, arrives)
  return [*parts, (since, until, WAITING, False)]


def shares(timeline: DataFrame) -> dict[str, float]:
  """Return the share of the workers' time by kind, the largest first."""
  own = timeline[~timeline["beneath"]]
  parts = (own["end"] - own["begin"]).groupby(own["kind"]).sum().sort_values(ascending=False)
  return (parts / parts.sum()).to_dict()


ROUNDS, ROWS, BARS = 6, 16, 40  # shown at most: rounds of a worker, workers, bars of the histogram
SHAPES = {"back from a failure": "triangle-up", "message dropped": "cross"}
PICTURE = "schedule.png"


def draw(info: "StepInfo") -> None:
  """Save the picture of a run's recorded visits in its folder, on the first process."""
  from ddl import hosts  # needs JAX, which reports do not

  if hosts.is_main():
    is_real = info.options.runtime != "simulator" or info.options.replay
    shown = WorkerSchedule([info.components.experiment.spec.title], "", load(info.folder / EVENTS))
    _picture(shown, "time" if is_real else "virtual time").save(info.folder / PICTURE)


def pictures(folder: Path, comparison: ComparisonRecord) -> list[Figure]:
  """Return one figure for each schedule that differs from the others. Raises as `schedules` does."""
  return [_picture(schedule) for schedule in schedules(folder, comparison)]


def _picture(shown: WorkerSchedule, clock: str = "virtual time") -> Figure:
  """Return the figure of a schedule. clock: the name of its time."""
  events = shown.record if isinstance(shown.record, Events) else None
  timeline, names = spans(shown.record), formats.listed(shown.labels)
  beneath, parts, workers = bool(timeline["beneath"].any()), shares(timeline), int(timeline["worker"].max()) + 1
  caption = ["The start of the run. First seed.", "A row is a worker."]
  title = f"waiting {formats.share(parts.get(WAITING, 0.0))} of the time"
  part = f"in the first {len(shown.record[0])} steps"
  if events:
    part, rounds, visits = "over the whole run", int(events.round.max()) + 1, events.staleness[~events.dropped]
    high = np.percentile(visits, 99, method="inverted_cdf")
    title += f", staleness {visits.mean():.3g} on average, 99th percentile {high}"
    whole = "The whole run." if rounds <= ROUNDS else f"The start of the run, up to about round {ROUNDS} of {rounds:,}."
    caption[0] = f"{whole} First seed."
    caption.append(f"Staleness is that of {len(visits):,} visits, the whole run's.")
    counts = {"Dropped messages": events.dropped.sum(), "Failures": events.restarted.sum()}
    caption += [f"{name}: {count:,}." for name, count in counts.items() if count]
  times = ", ".join(f"{kind} {formats.share(value)}" for kind, value in parts.items())
  caption.append(f"The workers' time {part}{', bars beneath left out' * beneath}: {times}.")
  if workers > ROWS:
    caption.append(f"The first {ROWS} of {workers} workers are drawn.")
  subtitle, end = f"Schedule of {names}", end_of(shown)
  description = f"{subtitle}: one row per worker from 0 to {end:.3g} s. {caption[-1]}"
  drawn = timeline[(timeline["begin"] < end) & (timeline["worker"] < ROWS)]
  drawn = drawn[["worker", "kind", "begin", "end", "beneath"]]
  return Figure(f"schedule_{shown.folder}", f"{names}: {title}", subtitle, description, caption,
                lambda narrow: _drawn(events, drawn, end, narrow, clock), drawn)  # fmt: skip


def end_of(shown: WorkerSchedule) -> float:
  """Return the last release of a run of few rounds, else when half of the workers completed their first ROUNDS."""
  if not isinstance(shown.record, Events):
    sent = np.concatenate([shown.record.launched, shown.record.met], axis=1)  # [steps, messages, 2]
    exchanges = np.nanmax(shown.record.released[np.isfinite(sent).any(axis=(1, 2))], axis=1)
    return float(exchanges[:ROUNDS][-1] if len(exchanges) else np.nanmax(shown.record.released))
  visits: DataFrame = pd.DataFrame(shown.record._asdict())
  if visits["round"].max() < ROUNDS:
    return float(visits["released"].max())
  return float(visits[visits["round"] < ROUNDS].groupby("worker")["released"].max().median())


def _drawn(events: Events | None, spans: DataFrame, end: float, narrow: bool, clock: str) -> dict[str, Any]:
  """Return a row of bars per worker; beside it, or below it, the histogram of the staleness."""
  rows, beneath = int(spans["worker"].max()) + 1, spans["beneath"]
  top = spans["worker"] + np.where(beneath, 0.24, -0.34)
  bottom = top + np.where(beneath, 0.16, 0.56 if beneath.any() else 0.68)
  kinds = [kind for kind in FILL if kind in set(spans["kind"])]
  bars = pd.DataFrame({"begin": spans["begin"], "end": spans["end"].clip(upper=end), "top": top, "bottom": bottom,
                       "kind": spans["kind"]})  # fmt: skip
  legend = alt.Legend(columns=1 if narrow else 2, symbolType="square", symbolStrokeColor=MUTED, symbolStrokeWidth=0.5,
                      labelLimit=360)  # fmt: skip
  colours = alt.Scale(domain=kinds, range=[FILL[kind] for kind in kinds])
  x = alt.X("begin:Q", scale=alt.Scale(domain=[0, end], nice=False),
            axis=alt.Axis(title=clock, labelExpr=label_format("seconds"), tickCount=5, grid=False))  # fmt: skip
  y = alt.Y("top:Q", scale=alt.Scale(domain=[rows - 0.5, -0.5], nice=False),
            axis=alt.Axis(title="worker", values=list(range(rows)), format="d", grid=False, ticks=False,
                          domain=False))  # fmt: skip
  rects = alt.Chart(alt.NamedData("bars")).mark_rect(stroke="white", strokeWidth=0.6)
  rects = rects.encode(x=x, x2="end:Q", y=y, y2="bottom:Q", color=alt.Color("kind:N", legend=legend, scale=colours))
  width, height = NARROW - 50 if narrow else WIDE - (230 if events else 60), max(120, 22 * rows)
  gantt = alt.layer(rects, *(_marks(events, end, rows) if events else [])).properties(width=width, height=height)
  if events is None:
    return specification(gantt, bars=bars)
  histogram = _histogram(events).properties(width=NARROW - 60 if narrow else 130, height=min(200, height))
  return specification(gantt & histogram if narrow else gantt | histogram, bars=bars)


def _marks(events: Events, end: float, rows: int) -> list[alt.Chart]:
  """Return marks where messages were dropped and where workers restarted after a failure."""
  visits: DataFrame = pd.DataFrame(events._asdict())
  marks = pd.concat([visits[visits["restarted"]].assign(mark="back from a failure", begin=visits["start"]),
                     visits[visits["dropped"]].assign(mark="message dropped", begin=visits["released"])])  # fmt: skip
  marks = marks[(marks["begin"] <= end) & (marks["worker"] < rows)][["begin", "worker", "mark"]]
  shapes = {mark: shape for mark, shape in SHAPES.items() if mark in set(marks["mark"])}
  if not shapes:
    return []
  shape = alt.Shape("mark:N", scale=alt.Scale(domain=list(shapes), range=list(shapes.values())))
  drawn = alt.Chart(marks).mark_point(size=50, filled=True, color=INK, stroke="white", strokeWidth=0.7)
  return [drawn.encode(x="begin:Q", y="worker:Q", shape=shape)]


def _histogram(events: Events) -> alt.Chart:
  """Return the shares of visits by staleness."""
  visits = events.staleness[~events.dropped]
  width = -(-(int(visits.max()) + 1) // BARS)
  parts = np.bincount(visits // width) / len(visits)
  data = pd.DataFrame({"staleness": np.arange(len(parts)) * width, "share": parts})
  data["to"] = data["staleness"] + 0.9 * width
  return alt.Chart(data).mark_rect(color=COLOURS[0]).encode(
    x=alt.X("staleness:Q", title="visits of others in between", axis=alt.Axis(format="d", tickMinStep=1, tickCount=4)),
    x2="to:Q", y=alt.Y("share:Q", title="share of visits", axis=alt.Axis(format=".0%", tickCount=4)), y2=alt.datum(0),
  )  # fmt: skip
