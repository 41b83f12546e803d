"""A synchronous algorithm's schedule as spans of time: all workers wait for the last one at every exchange."""

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
  """Every worker's time from 0 to its last release; `record` has arrays [steps, workers], of messages [steps]."""
  shape = record.free.shape
  leaves, arrives = (np.broadcast_to(each[:, None], shape) for each in (record.leaves, record.arrives))
  after = np.broadcast_to((record.leaves == record.done.max(axis=1))[:, None], shape)  # launched when all are done
  meanwhile = np.isfinite(leaves) & ~after  # launched when all have come to the steps
  computes = record.begun + record.lost
  # Without overlap the workers stand still from when the last one has come until the message is there.
  sent = np.where(meanwhile, np.minimum(leaves, record.begun), record.begun)
  met = np.where(after, leaves, record.released)
  beneath = meanwhile & (record.begun < arrives)
  parts = [
    (record.free, sent, WAITING, False),
    (sent, record.begun, EXCHANGING, False),
    (record.begun, computes, LOST, False),
    (computes, record.done, COMPUTING, False),
    (record.done, met, WAITING, False),
    (met, record.released, EXCHANGING, False),
    (np.where(beneath, leaves, 0.0), np.where(beneath, arrives, 0.0), EXCHANGING, True),
  ]
  worker = np.broadcast_to(np.arange(shape[1]), shape)
  rows = [np.broadcast_arrays(worker, *part) for part in parts]
  columns = [np.concatenate([each.ravel() for each in column]) for column in zip(*rows, strict=True)]
  real = columns[2] - columns[1] > 1e-9 * record.released.max()
  return Spans(*(column[real] for column in columns))
