"""Count the bytes that an algorithm sends by recording the collectives of its functions."""

from collections.abc import Iterable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ddl.api import Algorithm, Model, ServerAlgorithm, Tree, Visit
from ddl.engine.workers import nbytes
from ddl.group_recorder import Sent, record
from ddl.schedule import Due


class Traffic(NamedTuple):
  """The collectives in which each of p workers takes part."""

  workers: int
  local: tuple[Sent, ...]  # per step
  exchanges: tuple[tuple[Sent, ...], ...]  # for each exchange: per launch, including its merge
  evaluate: tuple[Sent, ...]
  local_uses_group: bool  # whether a local step communicates or reads the worker's rank

  def nbytes(self, due: Iterable[Due]) -> float:
    """Return a lower bound on the bytes that a worker sends in successive steps. due: the exchanges due at each."""
    total = 0.0
    for now in due:
      total += self.sent(self.local) + sum(self.sent(self.exchanges[i]) for i in (*now.launch, *now.exchange))
    return total

  def sent(self, ops: tuple[Sent, ...]) -> float:
    """Return a lower bound on the bytes that a worker sends in these collectives."""
    return sum(op.per_worker(self.workers) for op in ops)


def of(algorithm: Algorithm, params: Tree, workers: int) -> Traffic:
  """Record the collectives of a step, of each exchange and of an evaluation. params: one worker's arrays or shapes.

  Raises:
    ValueError: for a collective inside a JAX loop, conditional or jit, where repetitions cannot be counted.
  """
  _, state = record(lambda group, x: algorithm.init(group, x, jax.random.key(0)), params, workers=workers)
  local, _ = record(algorithm.local, params, state, params, workers=workers)
  evaluate, _ = record(algorithm.evaluate, state, params, workers=workers)
  exchanges = []
  for exchange in algorithm.exchanges:
    launch, (message, _) = record(exchange.launch, state, params, workers=workers)
    merge, _ = record(exchange.merge, message, state, params, workers=workers)
    exchanges.append((*launch.sent, *merge.sent))
  return Traffic(workers, tuple(local.sent), tuple(exchanges), tuple(evaluate.sent), local.used)


def visit_nbytes(algorithm: ServerAlgorithm, params: Tree) -> tuple[int, int]:
  """Return the bytes of a visit's (message, reply); for a peer-to-peer algorithm, of the models (pushed, pulled).

  For a peer-to-peer algorithm, one visit is run with a peer and one without. If their replies differ, a model is
  pulled. If the peer's models after the two visits differ, a model is pushed.
  """
  state, _, reply = jax.eval_shape(algorithm.init, params)
  if algorithm.arrivals.peers == "none":
    return nbytes(jax.eval_shape(algorithm.request, state, params)), nbytes(reply)
  keys = iter(jax.random.split(jax.random.key(0), 1000))

  def some(x: jax.Array) -> jax.Array:
    return jax.random.uniform(next(keys), x.shape, x.dtype, 1, 2) if jnp.issubdtype(x.dtype, jnp.floating) else x

  tiny = jnp.ones(2)  # stands for the parameters; their shapes do not decide which models are sent
  state, board, _ = algorithm.init(tiny)
  board, message = jax.tree.map(some, board), algorithm.request(state, tiny)
  (met, pulled), (single, unchanged) = (
    algorithm.serve(board, message, Visit(jnp.int32(0), jnp.int32(peer))) for peer in (1, -1)
  )
  peer_met, peer_single = jax.tree.map(lambda x: x[1], (met, single))
  return nbytes(params) * _differ(peer_met, peer_single), nbytes(params) * _differ(pulled, unchanged)


def relayed_nbytes(algorithm: ServerAlgorithm, params: Tree) -> float:
  """Return the bytes that servers send to each other per visit, on average."""
  return algorithm.relayed * nbytes(params)


def exchange_nbytes(algorithm: ServerAlgorithm, model: Model) -> float:
  """Return the total bytes of a visit: its message, its reply and what servers relay; see `visit_nbytes`."""
  params = jax.eval_shape(model.init, jax.random.key(0))[0]
  return sum(visit_nbytes(algorithm, params)) + relayed_nbytes(algorithm, params)


def _differ(a: Tree, b: Tree) -> bool:
  return any(not np.array_equal(x, y) for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True))
