"""Whether an algorithm can go on with each number of workers that comes."""

from collections.abc import Callable
from itertools import pairwise

import jax

from ddl.api import Algorithm, Tree
from ddl.events.presence import Presence
from ddl.group_recorder import record
from ddl.schedule import Schedule


def check(make: Callable[[int], Algorithm], params: Tree, presence: Presence) -> None:
  """Check that the algorithm can be made for every number of workers that comes, which can go on from each other.

  Args:
    make: number of workers -> the algorithm.
    params: of one worker, as shapes.
    presence: who is there.

  Raises:
    ValueError: one line; also of `make`.
  """

  def shapes(count: int) -> Tree:
    algorithm = make(count)
    state = record(lambda group, x: algorithm.init(group, x, jax.random.key(0)), params, workers=count)[1]
    return jax.tree.map(lambda x: (x.shape, x.dtype), state)

  whole = shapes(presence.workers)
  for count in sorted({len(ids) for _, ids in presence.changes}, reverse=True):
    if shapes(count) != whole:
      raise ValueError(
        f"a worker's state depends on how many there are: with {count} it is another than with {presence.workers}, so "
        "that nobody can go on from it"
      )
  for (_, before), (step, now) in pairwise(presence.changes):
    under_way = [Schedule(make(len(ids)).exchanges).in_flight(step) for ids in (before, now)]
    if under_way[0] != under_way[1] and any(map(any, under_way)):
      raise ValueError(f"messages of {len(before)} workers are in flight at step {step}, and no use to {len(now)}")
