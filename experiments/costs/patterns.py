"""The messages of any algorithm, recorded from its functions: the one place that connects cost model and algorithms."""

import math

import jax
import numpy as np

from ddl.api import Algorithm, ServerAlgorithm, Tree
from ddl.group_recorder import Sent
from ddl.perf.comm.patterns import Exchange, Op, Pattern, Visits
from ddl.runtime import traffic
from ddl.schedule import Schedule


def pattern_of(
  algorithm: Algorithm | ServerAlgorithm, params: Tree, workers: int, visit: tuple[float, float] | None = None
) -> Pattern:
  """Return the algorithm's pattern on so many workers.

  Args:
    params: one worker's, as arrays or shapes; nothing is allocated.
    visit: bytes up and down of a visit among several workers, where these are known; to find them takes seconds.

  Raises:
    ValueError: for a clock that does not fit, or a collective inside a loop of JAX, whose repetitions are not seen.
  """
  if isinstance(algorithm, Algorithm):
    Schedule(algorithm.exchanges)
    sent = traffic.of(algorithm, params, workers)
    exchanges = (
      Exchange(_ops(ops), each.period, each.delay, each.offset)
      for each, ops in zip(algorithm.exchanges, sent.exchanges, strict=True)
    )
    return Pattern(_ops(sent.local), tuple(exchanges), evaluate=_ops(sent.evaluate))
  peers = algorithm.arrivals.peers != "none"
  up, down = (0, 0) if peers and workers == 1 else visit or traffic.visit_nbytes(algorithm, params)
  chance, in_turn = algorithm.arrivals.peer_probability, algorithm.arrivals.round_robin
  return Pattern(visits=Visits(up, down, algorithm.period, algorithm.delay, peers, chance, in_turn))


def vector(nbytes: float, *more: float) -> Tree:
  """Return shapes of so many bytes of float32 parameters, a vector per layer: a model by its sizes alone."""
  sizes = {"w": nbytes} | {f"w{i:04d}": each for i, each in enumerate(more)}
  return {name: jax.ShapeDtypeStruct((math.ceil(each / 4),), np.float32) for name, each in sizes.items()}


def _ops(sent: tuple[Sent, ...]) -> tuple[Op, ...]:
  return tuple(Op(each.kind, each.nbytes, each.sources, each.senders) for each in sent)
