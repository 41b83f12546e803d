"""The messages of an algorithm as plain data, recorded by `ddl.costs.cluster_clock.pattern_of`, and their seconds.

All layers are packed into one message. Collectives of one step or exchange are issued one after the other, so that
their seconds add up.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from ddl.perf import collectives
from ddl.perf.cluster import NetworkModel

LATE = 1000  # the round whose period stands for all where the period changes


class Op(NamedTuple):
  """A collective of all workers."""

  kind: str  # all_reduce, permute, or one of collectives.ONE_WAY
  nbytes: float  # of the whole vector, before it is cut or after it is put together
  sources: tuple[int | None, ...] = ()  # of a permute: the rank from which each worker receives; (): all in other nodes
  senders: int | None = None  # of an all-reduce: workers whose values are summed; None: all


class ExchangePattern(NamedTuple):
  """A message among all workers and its clock, in steps: launched at offset + period, offset + 2 period, ..."""

  ops: tuple[Op, ...]
  period: int | Callable[[int], int] = 1  # or that of round k = 0, 1, ...
  delay: int = 0  # steps in flight
  offset: int = 0

  @property
  def steady(self) -> int:
    """The period; where it changes, that of round LATE."""
    return self.period(LATE) if callable(self.period) else self.period


class Visits(NamedTuple):
  """Messages of one worker to a server or another worker, and back."""

  up: float  # bytes
  down: float
  period: int = 1  # steps
  delay: int = 0
  peers: bool = False  # between two workers
  probability: float = 1.0  # of visiting a peer at all
  round_robin: bool = False  # one worker after the other


class Pattern(NamedTuple):
  """All messages of an algorithm."""

  local: tuple[Op, ...] = ()  # at each step, which waits for them
  exchanges: tuple[ExchangePattern, ...] = ()
  visits: Visits | None = None
  evaluate: tuple[Op, ...] = ()  # before a test, for the model that is tested


def seconds(ops: Sequence[Op], workers: int, network: NetworkModel) -> float:
  """Seconds of these collectives, each the cheapest of its kind, one after the other; ValueError if one is invalid.

  A sum over some of the workers takes as long as one over all: each of them still sends and receives the whole vector.
  """

  def cost(op: Op) -> float:
    if op.kind == "permute":
      return collectives.permute(op.nbytes, workers, network, op.sources)
    if op.kind == "all_reduce":
      return collectives.all_reduce(op.nbytes, workers, network)
    return collectives.one_way(op.kind, op.nbytes, workers, network)

  return sum(map(cost, ops), 0.0)
