"""Draw worker schedules: Gantt charts of the start of a run."""

from pathlib import Path
from typing import Any, NamedTuple

import altair as alt
import numpy as np
import pandas as pd

from ddl.events import lockstep
from ddl.events.lockstep import StepTimes
from ddl.events.record import Events, load
from ddl.report import formats
from ddl.report.figure import COLOURS, IDLE, MUTED, NARROW, WIDE, Figure, by_label, label_format, specification
from ddl.report.reader import ComparisonRecord, DataFrame
from ddl.run.folder import EVENTS

COMPUTING, EXCHANGING, WAITING, LOST = "computing", "exchanging", "waiting", "lost to a failure"
UNKNOWN = "computing, then possibly waiting for the reply"
FILL = {COMPUTING: COLOURS[0], EXCHANGING: COLOURS[1], WAITING: IDLE, LOST: COLOURS[3], UNKNOWN: COLOURS[5]}


class WorkerSchedule(NamedTuple):
  labels: list[str]  # the labels with this schedule
  record: Events | StepTimes  # Events of an asynchronous algorithm, StepTimes of a collective one in virtual time


def schedules(folder: Path, comparison: ComparisonRecord) -> list[WorkerSchedule]:
  """Return the distinct worker schedules of a comparison in virtual time, in the order of its algorithms.

  Raises FileNotFoundError for a missing file, and ValueError for a malformed one.
  """
  distinct: dict[Any, WorkerSchedule] = {}
  for entry in comparison.infos:
    if not (name := entry["events"] or entry["lockstep"]):
      continue
    record = (load if entry["events"] else lockstep.load)(folder / name)
    if not len(record[0]):
      raise ValueError(f"{folder / name}: the record is empty")
    content = type(record), *((x.shape, x.tobytes()) for x in record)
    distinct.setdefault(content, WorkerSchedule([], record)).labels.append(entry["label"])
  return list(distinct.values())


def spans(record: Events | StepTimes) -> DataFrame:
  """Return each worker's time spans from 0 to the end of its last round; only spans with `beneath` overlap others.

  Columns: worker; begin and end, in seconds; kind, a key of FILL; beneath, whether the span belongs to a message that
  is in flight while the worker computes.
  """
  if not isinstance(record, Events):
    return _synchronous(record)
  rounding, reply = 1e-9 * record.released.max(), record.released - record.served[record.answered - 1]
  is_sent_before = (record.arrival - record.start <= reply + rounding)[~record.dropped].all()
  begun = _service(record, rounding)
  parts = _sent_before_the_steps(record, begun, rounding) if is_sent_before else _sent_after(record, begun, reply)
  return _spans(record.worker, parts, rounding)


def _spans(worker: np.ndarray, parts: list[tuple], rounding: float) -> DataFrame:
  """Return a frame with a row for each nonempty span.

  worker: the worker of each span, an array; parts: tuples of arrays (begin, end, kind, beneath) that broadcast with
  `worker`; rounding: spans of at most this many seconds count as empty.
  """
  names = ("worker", "begin", "end", "kind", "beneath")
  rows = [zip(names, map(np.ravel, np.broadcast_arrays(worker, *part)), strict=True) for part in parts]
  frame = pd.concat(map(pd.DataFrame, map(dict, rows)), ignore_index=True)
  return frame[frame["end"] - frame["begin"] > rounding]


def _sent_after(events: Events, begun: np.ndarray, reply: np.ndarray) -> list[tuple]:
  """Return the parts (see `_spans`) of rounds that send the request after their local steps.

  begun: the times of `_service`; reply: seconds from the server to the worker. A request is assumed to take as long as
  its reply.
  """
  start, arrival, served, released = events.start, events.arrival, events.served, events.released
  is_served = ~events.dropped
  free = pd.Series(released).groupby(events.worker).shift(fill_value=0.0).to_numpy()
  is_sequential = (start[1:] >= released[:-1]).all()  # each worker waits for the previous one
  turn = np.maximum(free, np.append(0.0, released[:-1])) if is_sequential else free
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
  """Return the parts (see `_spans`) of rounds that send the request before their local steps.

  The record does not say when a worker waits. So the whole span before a reply is UNKNOWN if the worker may have waited
  for the reply, else COMPUTING; the whole span from the reply to the next round is LOST if the worker failed, else
  COMPUTING, even if it waited at a barrier.
  """
  start, arrival, released = events.start, events.arrival, events.released
  reached = np.minimum(events.served + (arrival - start), released)  # assumes that a reply takes as long as a request
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
  """Return the time at which the server starts to process each message [events], in seconds.

  It is the message's arrival or, if messages queue, the end of the previous message's service if that is later.
  """
  rows, begun = np.flatnonzero(~events.dropped), events.arrival.copy()
  arrival, served = events.arrival[rows], events.served[rows]
  if np.ptp(served - arrival) > rounding:  # equal durations mean that no message queues
    begun[rows[1:]] = np.maximum(arrival[1:], served[:-1])
  return begun


def _synchronous(record: StepTimes) -> DataFrame:
  """Return the time spans of every worker of a collective algorithm.

  The arrays of `record` are [steps, workers], or [steps, n, 2] for the start and arrival of n messages. An absent
  worker's time counts as lost until the worker rejoins or the record ends.
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
  """Return the times at which workers leave and rejoin, both [steps, workers]; NaN except where an absence begins.

  A worker that does not rejoin gets the end of the record.
  """
  is_present = np.isfinite(record.free)
  leaves = ~is_present & np.vstack([np.ones_like(is_present[:1]), is_present[:-1]])
  before = np.vstack([np.zeros_like(record.free[:1]), record.released[:-1]])
  back = pd.DataFrame(record.free).shift(-1).bfill().fillna(np.nanmax(record.released)).to_numpy()
  return np.where(leaves, before, np.nan), np.where(leaves, back, np.nan)


def _beneath(message: np.ndarray, record: StepTimes) -> np.ndarray:
  """Return a mask [steps, 1, workers]: whether the worker computes while `message` [steps, 2, workers] is in flight."""
  return (record.begun < message[:, 1])[:, None]


def _meetings(since: np.ndarray, messages: list[np.ndarray], until: np.ndarray) -> list[tuple]:
  """Divide the workers' time from `since` to `until`, in which they do not compute, into messages and waiting."""
  parts = []
  for message in messages:
    leaves, arrives = message[:, 0], message[:, 1]
    parts += [(since, leaves, WAITING, False), (leaves, arrives, EXCHANGING, False)]
    since = np.where(np.isnan(arrives), since, arrives)
  return [*parts, (since, until, WAITING, False)]


def shares(timeline: DataFrame) -> dict[str, float]:
  """Return the share of each kind of span in the workers' time, largest first."""
  spans = timeline[~timeline["beneath"]]
  parts = (spans["end"] - spans["begin"]).groupby(spans["kind"]).sum().sort_values(ascending=False)
  return (parts / parts.sum()).to_dict()


ROUNDS, ROWS = 6, 16  # in a figure: approximate rounds per worker, and maximum workers


def draw(folder: Path, title: str, clock: str) -> None:
  """Save the figure of a run's schedule in its folder. clock: the title of the time axis."""
  _picture(WorkerSchedule([title], load(folder / EVENTS)), clock).save(folder / "schedule.png")


def pictures(folder: Path, comparison: ComparisonRecord) -> list[Figure]:
  """Return a figure for each distinct schedule. Raises the errors of `schedules`."""
  return [_picture(schedule) for schedule in schedules(folder, comparison)]


def _picture(shown: WorkerSchedule, clock: str = "virtual time") -> Figure:
  """Return the figure of a schedule. clock: the title of the time axis."""
  events = shown.record if isinstance(shown.record, Events) else None
  timeline, names = spans(shown.record), formats.listed(shown.labels)
  beneath, parts, workers = bool(timeline["beneath"].any()), shares(timeline), int(timeline["worker"].max()) + 1
  caption = ["The start of the run. First seed.", "Each row is a worker."]
  title = f"waiting {formats.share(parts.get(WAITING, 0.0))} of the time"
  part = f"in the first {len(shown.record[0])} steps"
  if events:
    part, rounds, visits = "over the whole run", int(events.round.max()) + 1, events.staleness[~events.dropped]
    high = np.percentile(visits, 99, method="inverted_cdf")
    title += f", staleness {visits.mean():.3g} on average, 99th percentile {high}"
    extent = "The whole run." if rounds <= ROUNDS else f"The start of the run, to about round {ROUNDS} of {rounds:,}."
    caption[0] = f"{extent} First seed."
    caption.append(f"Staleness is over the {len(visits):,} visits of the run whose message arrived.")
    counts = {"Dropped messages": events.dropped.sum(), "Failures": events.restarted.sum()}
    caption += [f"{name}: {count:,}." for name, count in counts.items() if count]
  times = ", ".join(f"{kind} {formats.share(value)}" for kind, value in parts.items())
  caption.append(f"The workers' time {part}{', without the bars beneath' * beneath}: {times}.")
  if workers > ROWS:
    caption.append(f"The first {ROWS} of {workers} workers are drawn.")
  subtitle, end = f"Schedule of {names}", end_of(shown)
  description = f"{subtitle}: one row per worker from 0 to {end:.3g} s. {caption[-1]}"
  drawn = timeline[(timeline["begin"] < end) & (timeline["worker"] < ROWS)]
  drawn = drawn[["worker", "kind", "begin", "end", "beneath"]]
  return Figure(f"schedule_{shown.labels[0]}", f"{names}: {title}", subtitle, description, caption,
                lambda narrow: _drawn(drawn, end, narrow, clock), drawn)  # fmt: skip


def end_of(shown: WorkerSchedule) -> float:
  """Return the end of the time axis in seconds: the end of about ROUNDS rounds, or of the run if it has fewer.

  In an asynchronous run, half of the workers have then completed ROUNDS rounds; in a collective one, all workers have
  completed the first ROUNDS steps with an exchange.
  """
  if not isinstance(shown.record, Events):
    sent = np.concatenate([shown.record.launched, shown.record.met], axis=1)  # [steps, messages, 2]
    exchanges = np.nanmax(shown.record.released[np.isfinite(sent).any(axis=(1, 2))], axis=1)
    return float(exchanges[:ROUNDS][-1] if len(exchanges) else np.nanmax(shown.record.released))
  first = shown.record.round < ROUNDS
  ends: DataFrame = pd.Series(shown.record.released[first]).groupby(shown.record.worker[first]).max()
  return float(ends.max() if first.all() else ends.median())


def _drawn(spans: DataFrame, end: float, narrow: bool, clock: str) -> dict[str, Any]:
  """Return the Vega-Lite specification: a row of bars per worker."""
  rows, beneath = int(spans["worker"].max()) + 1, spans["beneath"]
  top = spans["worker"] + np.where(beneath, 0.24, -0.34)
  bottom = top + np.where(beneath, 0.16, 0.56 if beneath.any() else 0.68)
  kinds = [kind for kind in FILL if kind in set(spans["kind"])]
  bars = spans[["begin", "kind"]].assign(end=spans["end"].clip(upper=end), top=top, bottom=bottom)
  legend = alt.Legend(columns=1 if narrow else 2, symbolType="square", symbolStrokeColor=MUTED, symbolStrokeWidth=0.5,
                      labelLimit=360)  # fmt: skip
  colour = by_label("kind", kinds, [FILL[kind] for kind in kinds], legend=legend)["color"]
  x = alt.X("begin:Q", scale=alt.Scale(domain=[0, end], nice=False),
            axis=alt.Axis(title=clock, labelExpr=label_format("seconds"), tickCount=5, grid=False))  # fmt: skip
  y = alt.Y("top:Q", scale=alt.Scale(domain=[rows - 0.5, -0.5], nice=False),
            axis=alt.Axis(title="worker", values=list(range(rows)), format="d", grid=False, ticks=False,
                          domain=False))  # fmt: skip
  rects = alt.Chart(alt.NamedData("bars")).mark_rect(stroke="white", strokeWidth=0.6)
  rects = rects.encode(x=x, x2="end:Q", y=y, y2="bottom:Q", color=colour)
  width = NARROW - 50 if narrow else WIDE - 60
  return specification(rects.properties(width=width, height=max(120, 22 * rows)), bars=bars)
