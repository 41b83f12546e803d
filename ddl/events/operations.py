"""Convert a schedule to operations on the server's state, and group them into waves of parallel worker rounds.

Between two visits a worker's round depends only on its own last reply. A wave is the longest sequence of operations in
which no round needs a reply from the same wave: its rounds are computed first, in any order, then its operations run
one after the other.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from ddl.errors import OptionError
from ddl.events.barriers import Barrier, Quorum, describe
from ddl.events.cluster import Rule
from ddl.events.record import Events, known

SERVE, COLLECT, APPLY, DROP, READ, RESTART, LOOK, ADD = range(8)


class Operations(NamedTuple):
  """The operations on the server's state in order, as arrays [operations], and the number of workers.

  The center is the server's model.

  SERVE: the server applies a message.
  READ: a worker that waited at a barrier, or that takes part in a quorum, receives a new reply from the center.
  COLLECT: weight times the message is added to the sum of a quorum round.
  APPLY: the server applies the sum; `event` is that of the last collected message.
  DROP: a worker that the quorum did not wait for abandons its round.
  RESTART: a worker that died restarts from the center before its round.
  LOOK, ADD: a lock-free visit reads, or adds to, one block of coordinates.
  """

  kind: np.ndarray  # int8
  worker: np.ndarray  # int32
  event: np.ndarray  # int32: index into the events
  block: np.ndarray  # int32: the block of LOOK and ADD, else 0
  weight: np.ndarray  # float64: 1 / (number of messages collected in the round) for COLLECT, else 1
  workers: int


def operations(algorithm: Rule, events: Events, *, workers: int, barrier: Barrier, seed: int) -> Operations:
  """Return the server's operations, in order, for a computed or recorded schedule.

  A worker that waited at a barrier READs if the algorithm has `read`; otherwise the reply of its visit stays valid.
  With a quorum all workers READ. Without a lock each visit LOOKs at, and ADDs to, `arrivals.blocks` blocks of the
  center between its arrival and the end of its service, concurrently with other visits and at random times determined
  by `seed`.

  Raises:
    ValueError: if the number of blocks is negative, if there are blocks without a lock-free rule, or if a quorum is
      combined with blocks or with an algorithm without `read` or `averages`.
  """
  quorum, blocks, rule = isinstance(barrier, Quorum), algorithm.arrivals.blocks, algorithm.lock_free
  if blocks and not rule:
    raise OptionError("arrivals.blocks", "0 for an algorithm without a lock-free rule", blocks)
  if quorum and algorithm.read is None:
    advice = "Use a quorum only with an algorithm that starts each round from the server's reply, such as async_sgd."
    raise OptionError(
      "config.barrier.name", "asp, bsp, ssp or psp for an algorithm without `read`", describe(barrier), advice
    )
  if quorum and not algorithm.averages:
    condition = "asp, bsp, ssp or psp for a server that counts messages or depends on their workers"
    advice = "A quorum averages a round's messages: set the number of messages per update to 1, if there is one."
    raise OptionError("config.barrier.name", condition, describe(barrier), advice)
  if blocks < 0 or (quorum and blocks):
    raise OptionError("arrivals.blocks", "0 with a backup or cutoff barrier" if quorum else ">= 0", blocks)
  index = np.arange(len(events.worker))
  seen = known(events.worker, events.start, events.served, events.answered, events.restarted)[events.restarted]
  parts = [_part(RESTART, index[events.restarted], seen - 0.25, events.start[events.restarted])]
  if quorum:
    parts += _rounds(events)
  elif algorithm.read is not None:
    waited = events.answered > index + 1
    parts.append(_part(READ, index[waited], events.answered[waited] - 0.5, events.served[events.answered[waited] - 1]))
  if blocks:
    parts += _lock_free(events, blocks, rule.reads_first, seed)
  elif not quorum:
    parts.append(_part(SERVE, index, index, events.served))
  kind, event, place, moment, block, weight = map(np.concatenate, zip(*parts, strict=True))
  order = np.lexsort((place, moment) if blocks else (place,))  # stable; the last key is the primary one
  event = event[order]
  return Operations(
    kind[order].astype(np.int8),
    events.worker[event].astype(np.int32),
    event.astype(np.int32),
    block[order].astype(np.int32),
    weight[order].astype(np.float64),
    workers,
  )


_Part = tuple[np.ndarray, ...]  # kind, event, position among the events, time in seconds, block, weight: [k] each


def _part(
  kind: int,
  event: np.ndarray,
  place: np.ndarray,
  moment: np.ndarray,
  block: np.ndarray | int = 0,
  weight: np.ndarray | float = 1.0,
) -> _Part:
  return tuple(np.broadcast_to(column, event.shape) for column in (kind, event, place, moment, block, weight))


def _rounds(events: Events) -> list[_Part]:
  index = np.arange(len(events.worker))
  served, dropped = index[~events.dropped], index[events.dropped]
  count = np.bincount(events.round[served])
  last = np.zeros_like(count)
  np.maximum.at(last, events.round[served], served)
  all_workers = np.lexsort((events.worker, events.round))
  return [
    _part(COLLECT, served, served, events.served[served], weight=1 / count[events.round[served]]),
    _part(APPLY, last, last + 0.25, events.served[last]),
    _part(DROP, dropped, dropped, events.served[dropped]),
    _part(READ, all_workers, events.answered[all_workers] - 0.5, events.served[events.answered[all_workers] - 1]),
  ]


def _lock_free(events: Events, blocks: int, reads_first: bool, seed: int) -> list[_Part]:
  """Return the LOOKs and ADDs of all visits; their times during a visit are drawn from a Poisson process."""
  rng = np.random.default_rng(np.random.SeedSequence((seed, 3)))
  gaps = rng.exponential(size=(len(events.worker), 2 * blocks)).cumsum(axis=1)
  share = gaps / gaps[:, -1:]  # in (0, 1]: the last operation ends the visit
  moment = events.arrival[:, None] + share * (events.served - events.arrival)[:, None]
  first, second = moment[:, :blocks].ravel(), moment[:, blocks:].ravel()
  event = np.repeat(np.arange(len(events.worker)), blocks)
  block = np.tile(np.arange(blocks), len(events.worker))
  look, add = (LOOK, ADD) if reads_first else (ADD, LOOK)
  return [_part(look, event, event, first, block), _part(add, event, event, second, block)]


class Wave(NamedTuple):
  """Operations first..last-1, and the visits whose worker rounds must be computed before these operations."""

  first: int
  last: int
  visits: tuple[int, ...]  # indices into Events


def waves(operations: Operations, stops: Sequence[int], widest: int) -> list[list[Wave]]:
  """Split the operations between successive stops into as few waves as possible.

  Return a list of waves for each stop. If a wave ends between two operations of a lock-free visit, the later operations
  run in the next wave.

  Args:
    operations: all operations.
    stops: increasing numbers of operations at which the parts of the run end; the first part starts at operation 0.
    widest: the largest number of visits in a wave; 1 puts each visit into its own wave.
  """
  begins, workers, events = _begins(operations), operations.worker.tolist(), operations.event.tolist()
  parts, last = [], 0
  for stop in stops:
    part: list[Wave] = []
    start, touched, visits = last, set[int](), list[int]()
    for i in range(last, stop):
      if begins[i] and (workers[i] in touched or len(visits) == widest):
        part.append(Wave(start, i, tuple(visits)))
        start, touched, visits = i, set(), []
      if begins[i]:
        visits.append(events[i])
      touched.add(workers[i])
    if start < stop:
      part.append(Wave(start, stop, tuple(visits)))
    parts.append(part)
    last = max(stop, last)
  return parts


def stops(operations: Operations, counts: Sequence[int]) -> list[int]:
  """Return, for each n in `counts`, the number of operations after which the first n visits are finished."""
  work = np.flatnonzero(_is_work(operations))
  ends = np.zeros(int(operations.event.max(initial=-1)) + 2, np.int64)
  np.maximum.at(ends, operations.event[work] + 1, work + 1)
  ends = np.maximum.accumulate(ends)
  return [int(ends[min(count, len(ends) - 1)]) for count in counts]


def _is_work(operations: Operations) -> np.ndarray:
  return ~np.isin(operations.kind, (READ, RESTART))


def _begins(operations: Operations) -> np.ndarray:
  """Return a mask [operations] of the first operation of each visit; the visit's worker round must run before it."""
  where = np.flatnonzero(_is_work(operations))
  _, first = np.unique(operations.event[where], return_index=True)
  out = np.zeros(len(operations.kind), bool)
  out[where[first]] = True
  return out
