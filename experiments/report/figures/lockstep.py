"""A collective algorithm's schedule as spans of time: all workers wait for the last one at every exchange."""

import numpy as np

from ddl.events.lockstep import Step
from experiments.report.figures.schedule import COMPUTING, EXCHANGING, LOST, WAITING, Spans

KINDS = (  # what those of report_schedule are here
  "computing: cut between two steps",
  "exchanging: a message between all",
  "waiting: for the slowest, or for the message",
  "lost to a death",
  "",
)


def spans(record: Step) -> Spans:
  """Every worker's time from 0 to its last release; `record` has arrays [steps, workers], of messages [steps, n, 2]."""
  shape, computes = record.free.shape, record.begun + record.lost
  launched, met = (
    [np.broadcast_to(each[:, i, :, None], (len(each), 2, shape[1])) for i in range(each.shape[1])]
    for each in (record.launched, record.met)
  )
  parts = [
    *_meetings(record.free, [np.where(_beneath(each, record), np.nan, each) for each in launched], record.begun),
    (record.begun, computes, LOST, False),
    (computes, record.done, COMPUTING, False),
    *_meetings(record.done, met, record.released),
    *((np.where(_beneath(each, record)[:, 0], each[:, 0], each[:, 1]), each[:, 1], EXCHANGING, True)
      for each in launched),
  ]  # fmt: skip
  worker = np.broadcast_to(np.arange(shape[1]), shape)
  rows = [np.broadcast_arrays(worker, *part) for part in parts]
  columns = [np.concatenate([each.ravel() for each in column]) for column in zip(*rows, strict=True)]
  real = columns[2] - columns[1] > 1e-9 * record.released.max()
  return Spans(*(column[real] for column in columns))


def _beneath(message: np.ndarray, record: Step) -> np.ndarray:
  """Whether a worker computes while the message, [steps, 2, workers], is on its way."""
  return (record.begun < message[:, 1])[:, None]


def _meetings(since: np.ndarray, messages: list[np.ndarray], until: np.ndarray) -> list[tuple]:
  """Parts of the time in between: waiting, but for the messages, during which all stand still."""
  parts = []
  for message in messages:
    leaves, arrives = message[:, 0], message[:, 1]
    parts += [(since, leaves, WAITING, False), (leaves, arrives, EXCHANGING, False)]
    since = np.where(np.isnan(arrives), since, arrives)
  return [*parts, (since, until, WAITING, False)]
