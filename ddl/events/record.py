"""The record of an asynchronous run, virtual or real: one row for each message that a server dealt with."""

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ddl.events import arrays


class Events(NamedTuple):
  """Equally long arrays [events], in the order in which the server is done with them; times in seconds from 0.

  A dropped message never came: `served` is when the server stopped waiting, `arrival` when its worker gave up.
  """

  worker: np.ndarray  # int32
  round: np.ndarray  # int32: each worker's rounds are 0, 1, 2, ...
  start: np.ndarray  # float64: the worker round's computing begins
  arrival: np.ndarray  # float64: the request reaches the server
  served: np.ndarray  # float64: the server is done with it
  answered: (
    np.ndarray
  )  # int32: events done when the server answered: index + 1, more where a barrier held the answer back
  released: np.ndarray  # float64: the worker goes on with the answer, delay 0: to its next worker round
  staleness: np.ndarray  # int32: visits of others since the worker last learnt the center
  peer: np.ndarray  # int32: the other worker of a peer-to-peer exchange, -1 for none
  dropped: np.ndarray  # bool: a quorum barrier went on without this message
  restarted: np.ndarray  # bool: the worker had died, and came back from the server's state at this worker round's start


TYPES: dict[str, Any] = dict.fromkeys(("worker", "round", "answered", "staleness", "peer"), np.int32)
TYPES |= dict.fromkeys(("start", "arrival", "served", "released"), np.float64)
TYPES |= dict.fromkeys(("dropped", "restarted"), np.bool_)


def previous(worker: np.ndarray) -> np.ndarray:
  """The index of the same worker's event before each event, -1 for none: [events]."""
  before = np.full(len(worker), -1)
  order = np.argsort(worker, kind="stable")
  same = np.flatnonzero(worker[order][1:] == worker[order][:-1])
  before[order[same + 1]] = order[same]
  return before


def known(
  worker: np.ndarray, start: np.ndarray, served: np.ndarray, answered: np.ndarray, restarted: np.ndarray
) -> np.ndarray:
  """How many events the center held that each event's worker started from: [events], 0 for the initial center."""
  before = previous(worker)
  learnt = np.where(before < 0, 0, answered[before])
  back = np.minimum(np.searchsorted(served, start, side="right"), np.arange(len(worker)))  # equal times: it knows them
  return np.where(restarted, np.maximum(back, learnt), learnt)


def save(path: str | Path, events: Events) -> None:
  """Writes the record as one npz file, at exactly this path, which never holds half of it."""
  arrays.save(path, events._asdict())


def load(path: str | Path) -> Events:
  """Reads what `save` wrote. ValueError, one line, for another kind of file; FileNotFoundError where there is none."""
  return Events(**arrays.load(path, TYPES, "events"))


def check(events: Events, workers: int) -> None:
  """Raises ValueError, one line that names the first event which can't be, where the record is not one of a run."""
  count = len(events.worker)
  for name, array in events._asdict().items():
    if array.shape != (count,):
      raise ValueError(f"events: {name} has shape {list(array.shape)}, but worker has [{count}]")
  for name in ("start", "arrival", "served", "released"):
    times = getattr(events, name)
    _refuse(~np.isfinite(times) | (times < 0), times, f"{name} must be finite and not negative, seconds")
  _refuse((events.worker < 0) | (events.worker >= workers), events.worker, f"worker lies in 0..{workers - 1}")
  bad = (events.peer < -1) | (events.peer >= workers) | (events.peer == events.worker)
  _refuse(bad, events.peer, f"peer is another worker in 0..{workers - 1}, or -1 for none")
  before = previous(events.worker)
  first = before < 0
  _refuse(
    events.round != np.where(first, -1, events.round[before]) + 1, events.round, "a worker's rounds are 0, 1, 2, ..."
  )
  _refuse(np.diff(events.served, prepend=0.0) < 0, events.served, "served goes back; events are sorted by it")
  wrong = (events.answered <= np.arange(count)) | (events.answered > count)
  _refuse(wrong, events.answered, f"answered counts events done, from its own to all {count}")
  came = ~events.dropped
  _refuse(events.arrival < events.start, events.arrival, "arrival is before start")
  _refuse(came & (events.served < events.arrival), events.served, "served is before arrival")
  _refuse(events.arrival > events.released, events.released, "released is before arrival")
  _refuse(events.released < events.served, events.released, "released is before served")
  _refuse(
    ~first & (events.start < events.released[before]), events.start, "start is before the last worker round's release"
  )


def _refuse(bad: np.ndarray, values: np.ndarray, why: str) -> None:
  if bad.any():
    index = int(np.argmax(bad))
    raise ValueError(f"event {index}: {why}; here it is {values[index]}")
