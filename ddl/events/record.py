"""The event record of an asynchronous run, in virtual or real time: one row per visit to the server."""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ddl.errors import OptionError
from ddl.events import arrays


class Events(NamedTuple):
  """Visits in the order in which the server finished them, as arrays [events]; times in seconds since the run's start.

  A dropped message never arrives: `served` is when the server stopped waiting, `arrival` when the worker abandoned its
  round.
  """

  worker: np.ndarray  # int32
  round: np.ndarray  # int32: each worker's rounds are 0, 1, 2, ...
  start: np.ndarray  # float64: the round's computation begins
  arrival: np.ndarray  # float64: the request reaches the server
  served: np.ndarray  # float64: the service ends
  answered: np.ndarray  # int32: number of events served before the reply: index + 1, or more after waiting at a barrier
  released: np.ndarray  # float64: the worker continues with the reply; with delay 0 its next round starts
  staleness: np.ndarray  # int32: visits of other workers since the worker's last reply
  peer: np.ndarray  # int32: the other worker of a peer-to-peer exchange, -1 for none
  dropped: np.ndarray  # bool: a quorum barrier did not wait for this message
  restarted: np.ndarray  # bool: the worker had died and restarted from the server's state at the start of this round
  period: np.ndarray  # int32: steps in each of this worker's rounds


TYPES: dict[str, Any] = dict.fromkeys(("worker", "round", "answered", "staleness", "peer", "period"), np.int32)
TYPES |= dict.fromkeys(("start", "arrival", "served", "released"), np.float64)
TYPES |= dict.fromkeys(("dropped", "restarted"), np.bool_)


def previous(worker: np.ndarray) -> np.ndarray:
  """Return, for each event, the index of the previous event of the same worker, or -1 for none: [events]."""
  before = np.full(len(worker), -1)
  order = np.argsort(worker, kind="stable")
  same = np.flatnonzero(worker[order][1:] == worker[order][:-1])
  before[order[same + 1]] = order[same]
  return before


def known(
  worker: np.ndarray, start: np.ndarray, served: np.ndarray, answered: np.ndarray, restarted: np.ndarray
) -> np.ndarray:
  """Return, for each worker round, how many events had been applied to the center that it started from: [events]."""
  before = previous(worker)
  version = np.where(before < 0, 0, answered[before])
  at_start = np.minimum(
    np.searchsorted(served, start, side="right"), np.arange(len(worker))
  )  # includes events served at the same time
  return np.where(restarted, np.maximum(at_start, version), version)


@dataclass(slots=True)
class VisitRow:
  """A row of `Events`, without the columns that are derived from all rows."""

  worker: int
  round: int
  start: float
  arrival: float
  served: float
  answered: int
  released: float
  dropped: bool
  restarted: bool
  period: int


ROW = tuple(field.name for field in fields(VisitRow))


def make_events(rows: Sequence[VisitRow], *, quorum: bool = False) -> Events:
  """Convert rows to `Events` without peers, and compute the staleness (0 in quorum rounds)."""
  columns: Any = {name: np.array([getattr(row, name) for row in rows], TYPES[name]) for name in ROW}
  seen = known(*(columns[name] for name in ("worker", "start", "served", "answered", "restarted")))
  staleness = np.zeros(len(rows)) if quorum else np.arange(len(rows)) - seen
  return Events(**columns, staleness=staleness.astype(np.int32), peer=np.full(len(rows), -1, np.int32))


def save(path: str | Path, events: Events) -> None:
  """Atomically write the record as an .npz file to this path, without adding a suffix."""
  arrays.save(path, events._asdict())


def load(path: str | Path) -> Events:
  """Load a record written by `save`. Raises the errors of `arrays.load`."""
  return Events(**arrays.load(path, TYPES, "events"))


def check(events: Events, workers: int) -> None:
  """Raise a one-line ValueError if the arrays differ in length, or an event is impossible (the message names it)."""
  count = len(events.worker)
  for name, array in events._asdict().items():
    if array.shape != (count,):
      raise OptionError(f"the shape of events.{name}", f"[{count}] like events.worker", list(array.shape))
  for name in ("start", "arrival", "served", "released"):
    times = getattr(events, name)
    _refuse(~np.isfinite(times) | (times < 0), times, f"{name} must be a finite number of seconds >= 0")
  _refuse((events.worker < 0) | (events.worker >= workers), events.worker, f"worker must be in 0..{workers - 1}")
  bad = (events.peer < -1) | (events.peer >= workers) | (events.peer == events.worker)
  _refuse(bad, events.peer, f"peer must be -1 (none) or another worker in 0..{workers - 1}")
  before = previous(events.worker)
  first = before < 0
  count_of_worker = np.where(first, -1, events.round[before]) + 1
  _refuse(events.round != count_of_worker, events.round, "round must count the worker's events from 0")
  _refuse(events.period < 1, events.period, "period must be >= 1")
  _refuse(
    ~first & (events.period != events.period[before]),
    events.period,
    "period must be the same in all rounds of a worker",
  )
  _refuse(np.diff(events.served, prepend=0.0) < 0, events.served, "served must not decrease")
  wrong = (events.answered <= np.arange(count)) | (events.answered > count)
  _refuse(wrong, events.answered, f"answered must be from the event's index + 1 to {count}")
  arrives = ~events.dropped
  _refuse(events.arrival < events.start, events.arrival, "arrival must not be before start")
  _refuse(arrives & (events.served < events.arrival), events.served, "served must not be before arrival")
  _refuse(events.arrival > events.released, events.released, "released must not be before arrival")
  _refuse(events.released < events.served, events.released, "released must not be before served")
  _refuse(
    ~first & (events.start < events.released[before]),
    events.start,
    "start must not be before `released` of the worker's previous event",
  )


def _refuse(bad: np.ndarray, values: np.ndarray, why: str) -> None:
  if bad.any():
    index = int(np.argmax(bad))
    raise ValueError(f"event {index}: {why}, got {values[index]}.")
