"""Bytes that a worker sends: recorded from the algorithm's functions, so that nothing is declared by hand."""

from collections.abc import Iterable
from typing import NamedTuple

import jax

from ddl.api import Algorithm, Tree
from ddl.group import Sent, record
from ddl.schedule import Due


class Traffic(NamedTuple):
  """What one worker of p takes part in."""

  workers: int
  local: tuple[Sent, ...]  # at each step
  exchanges: tuple[tuple[Sent, ...], ...]  # at each launch with its merge
  evaluate: tuple[Sent, ...]
  local_asks: bool  # whether a step asks the group anything, its rank included

  def nbytes(self, due: Iterable[Due]) -> float:
    """Bytes that a worker sends in these steps, as few as can be."""
    total = 0.0
    for now in due:
      total += self.sent(self.local) + sum(self.sent(self.exchanges[i]) for i in (*now.launch, *now.exchange))
    return total

  def sent(self, ops: tuple[Sent, ...]) -> float:
    """Bytes of these."""
    return sum(op.per_worker(self.workers) for op in ops)


def of(algorithm: Algorithm, params: Tree, workers: int) -> Traffic:
  """Records a step, each exchange and a test. params: one worker's, as arrays or shapes.

  Raises:
    ValueError: for a collective inside a loop of JAX, whose repetitions are not seen.
  """
  _, state = record(lambda group, x: algorithm.init(group, x, jax.random.key(0)), params, workers=workers)
  local, _ = record(algorithm.local, params, state, params, workers=workers)
  evaluate, _ = record(algorithm.evaluate, state, params, workers=workers)
  exchanges = []
  for exchange in algorithm.exchanges:
    launch, (message, _) = record(exchange.launch, state, params, workers=workers)
    merge, _ = record(exchange.merge, message, state, params, workers=workers)
    exchanges.append((*launch.sent, *merge.sent))
  return Traffic(workers, tuple(local.sent), tuple(exchanges), tuple(evaluate.sent), local.asked)
