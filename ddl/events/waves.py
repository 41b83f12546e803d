"""Waves: runs of operations whose worker rounds are independent, so that they can be computed in parallel.

Between two visits a worker's round depends on its own last reply alone. Operations are taken in order until one needs a
round whose reply came within the same wave. All before it are one wave: its rounds are computed first, in any order,
then its operations are carried out one after the other.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from ddl.events.operations import READ, RESTART, Operations


class Wave(NamedTuple):
  """Operations first..last-1, and the visits whose worker rounds must be computed before."""

  first: int
  last: int
  visits: tuple[int, ...]  # indices into Events


def waves(operations: Operations, stops: Sequence[int], widest: int) -> list[list[Wave]]:
  """Return the operations between successive stops (numbers of operations, from 0), each in as few waves as possible.

  A visit that the end of a wave interrupts goes on in the next one. widest: most visits of a wave; 1 makes every visit
  a wave of its own.
  """
  begins, workers, events = _begins(operations), operations.worker.tolist(), operations.event.tolist()
  found, last = [], 0
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
    found.append(part)
    last = max(stop, last)
  return found


def stops(operations: Operations, counts: Sequence[int]) -> list[int]:
  """Return, for each count, the number of operations after which the first `count` visits are finished."""
  work = np.flatnonzero(_is_work(operations))
  ends = np.zeros(int(operations.event.max(initial=-1)) + 2, np.int64)
  np.maximum.at(ends, operations.event[work] + 1, work + 1)
  ends = np.maximum.accumulate(ends)
  return [int(ends[min(count, len(ends) - 1)]) for count in counts]


def _is_work(operations: Operations) -> np.ndarray:
  return ~np.isin(operations.kind, (READ, RESTART))


def _begins(operations: Operations) -> np.ndarray:
  """[operations] bool: the first of a visit's own operations, which needs its worker round."""
  where = np.flatnonzero(_is_work(operations))
  _, first = np.unique(operations.event[where], return_index=True)
  out = np.zeros(len(operations.kind), bool)
  out[where[first]] = True
  return out
