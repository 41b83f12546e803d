"""Describe the communication patterns of algorithms as plain data, and predict their seconds.

`ddl.costs.cluster_clock.pattern_of` traces the pattern of an algorithm. All layers are packed into one message. The
collectives of a step or an exchange run one after the other, so their seconds add up.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from ddl.perf import collectives
from ddl.perf.cluster import NetworkModel

LATE = 1000  # a changing period is replaced by its value in this round


class Op(NamedTuple):
  """A collective among all workers."""

  kind: str  # all_reduce, permute, or one of collectives.ONE_WAY
  nbytes: float  # bytes of the whole vector: the input of a reduce_scatter, the output of an all_gather
  sources: tuple[int | None, ...] = ()  # permute: each worker's source (None: none); (): all in other nodes
  senders: int | None = None  # all_reduce: number of workers in the sum; None: all


class ExchangePattern(NamedTuple):
  """The collectives of an exchange, which is launched after offset + period, offset + 2 period, ... steps."""

  ops: tuple[Op, ...]
  period: int | Callable[[int], int] = 1  # steps; or a function of the round k = 0, 1, ...
  delay: int = 0  # steps between launch and merge
  offset: int = 0
  ends: bool = False  # whether no message is sent after some step

  @property
  def steady(self) -> int:
    """Period in steps; if it changes from round to round, its value in round LATE."""
    return self.period(LATE) if callable(self.period) else self.period

  def launched(self, step: int) -> bool:
    """Return whether the exchange is launched after `step` steps, with the steady period."""
    return step >= self.offset + self.steady and (step - self.offset) % self.steady == 0


class Visits(NamedTuple):
  """The visits of each worker to servers or to peers: the bytes of request and reply, and the schedule."""

  up: float  # bytes of the request
  down: float  # bytes of the reply
  period: int = 1  # steps
  delay: int = 0  # steps between the request and the merge of the reply
  peers: bool = False  # whether visits are between two workers instead of a worker and a server
  probability: float = 1.0  # probability that a worker visits a peer at the end of a period
  round_robin: bool = False  # whether only one worker at a time computes and exchanges


class Pattern(NamedTuple):
  """The communication pattern of an algorithm: all its messages."""

  local: tuple[Op, ...] = ()  # collectives of every step; the step waits for them
  exchanges: tuple[ExchangePattern, ...] = ()
  visits: Visits | None = None
  evaluate: tuple[Op, ...] = ()  # collectives that form the consensus model for an evaluation


def seconds(ops: Sequence[Op], workers: int, network: NetworkModel) -> float:
  """Return the seconds of collectives that run one after the other, each with its cheapest algorithm.

  A sum over some workers (`Op.senders`) takes as long as one over all, because all send and receive the whole vector.
  """

  def cost(op: Op) -> float:
    if op.kind == "permute":
      return collectives.permute(op.nbytes, workers, network, op.sources)
    if op.kind == "all_reduce":
      return collectives.all_reduce(op.nbytes, workers, network)
    return collectives.one_way(op.kind, op.nbytes, workers, network)

  return sum(map(cost, ops), 0.0)


def hops(ops: Sequence[Any]) -> tuple[tuple[int | None, ...], ...]:
  """Return the sources of each permute; () unless all operations are permutes with known sources."""
  return tuple(op.sources for op in ops) if all(op.kind == "permute" and op.sources for op in ops) else ()
