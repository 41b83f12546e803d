"""A schedule as spans of time, from the record of its events: when each worker computes, waits and exchanges."""

from pathlib import Path
from typing import NamedTuple

import numpy as np

from ddl.events import lockstep
from ddl.events.lockstep import Step
from ddl.events.record import Events, load, previous
from experiments.report.reader import Comparison

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
  record: Events | Step  # of an asynchronous algorithm, or of a synchronous one beside it


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


def _equal(first: Events | Step, second: Events | Step) -> bool:
  return type(first) is type(second) and all(
    np.array_equal(a, b, equal_nan=a.dtype.kind == "f") for a, b in zip(first, second, strict=True)
  )


def spans(record: Events | Step) -> Spans:
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


def _synchronous(record: Step) -> Spans:
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


def _absent(record: Step) -> tuple[np.ndarray, np.ndarray]:
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


def _beneath(message: np.ndarray, record: Step) -> np.ndarray:
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
