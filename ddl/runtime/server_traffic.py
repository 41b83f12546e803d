"""What the visits of a server algorithm exchange: bytes, from its functions."""

import jax
import jax.numpy as jnp
import numpy as np

from ddl.api import Model, ServerAlgorithm, Tree, Visit
from ddl.runtime.workers import nbytes


def exchange_nbytes(algorithm: ServerAlgorithm, model: Model) -> int:
  """What a worker sends and is told in a visit; peer to peer: the models that move between the two."""
  return sum(visit_nbytes(algorithm, jax.eval_shape(model.init, jax.random.key(0))[0]))


def visit_nbytes(algorithm: ServerAlgorithm, params: Tree) -> tuple[int, int]:
  """(what a worker sends, what it is told) in a visit; peer to peer: the models that move. params: arrays or shapes.

  Whether a model moves is found by trying: with a peer, does the reply differ (it was pulled), does the peer's model
  (it was pushed)?
  """
  state, _, reply = jax.eval_shape(algorithm.init, params)
  if algorithm.arrivals.peers == "none":
    return nbytes(jax.eval_shape(algorithm.request, state, params)), nbytes(reply)
  keys = iter(jax.random.split(jax.random.key(0), 1000))

  def some(x: jax.Array) -> jax.Array:
    return jax.random.uniform(next(keys), x.shape, x.dtype, 1, 2) if jnp.issubdtype(x.dtype, jnp.floating) else x

  tiny = jnp.ones(2)  # the rules are the same for any parameters
  state, board, _ = algorithm.init(tiny)
  board, message = jax.tree.map(some, board), algorithm.request(state, tiny)
  (met, told), (alone, kept) = (
    algorithm.serve(board, message, Visit(jnp.int32(0), jnp.int32(peer))) for peer in (1, -1)
  )
  pulled = _differ(told, kept)
  pushed = _differ(jax.tree.map(lambda x: x[1], met), jax.tree.map(lambda x: x[1], alone))
  return nbytes(params) * pushed, nbytes(params) * pulled


def reply_nbytes(algorithm: ServerAlgorithm, model: Model) -> int:
  """What a worker is told in a visit, or where a quorum ends its turn."""
  params, _ = jax.eval_shape(model.init, jax.random.key(0))
  return nbytes(jax.eval_shape(algorithm.init, params)[2])


def extra_nbytes(model: Model) -> int:
  """Of a model's non-trained state, which the messages of a quorum bring along, and its answers to those it drops."""
  return nbytes(jax.eval_shape(model.init, jax.random.key(0))[1])


def _differ(a: Tree, b: Tree) -> bool:
  return any(not np.array_equal(x, y) for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True))
