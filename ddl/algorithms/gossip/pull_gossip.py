"""Pull-gossip SGD, and the server that stores every worker's model."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from ddl.api import Arrivals, ServerAlgorithm, Spec, Taxonomy, Tree, Visit, descend
from ddl.ranges import PositiveInt, checked


class PeerState(NamedTuple):
  inner: optax.OptState
  start: Tree  # the model of the last reply, from which the worker's change u is measured


def mix_on_board(mix: Callable[[jax.Array, jax.Array, Any, Any], jax.Array]) -> Callable[..., tuple[Tree, Tree]]:
  """Return the function `serve` of a server that stores the models of all workers, x [workers, ...].

  For one array, mix(x, u, i, j) returns the new x after worker i has sent its change u and averaged with worker j. If
  the visit has no peer, j = i, and `mix` only adds u to x_i. The reply is x_i.
  """

  def serve(board: Tree, message: Tree, visit: Visit) -> tuple[Tree, Tree]:
    i, j = visit.worker, partner(visit)
    board = jax.tree.map(lambda x, u: mix(x, u, i, j), board, message)
    return board, jax.tree.map(lambda x: x[i], board)

  return serve


def partner(visit: Visit) -> jax.Array:
  """Return the rank j of the visit's peer, or the rank of the visiting worker if it has none."""
  return jnp.where(visit.peer < 0, visit.worker, visit.peer)


@checked
def pull_gossip(inner: optax.GradientTransformation, *, workers: PositiveInt) -> ServerAlgorithm:
  """Average a worker's model with that of a random other worker after each step (pull-gossip SGD).

  x_i <- x_i + u, u = inner(g); x_i <- (x_i + x_j) / 2

  Jin, Yuan, Iandola, Keutzer 2016, arXiv 1611.04581. Here workers have no common clock: j is uniform among the other
  workers, and x_j is its current model. A pull does not conserve the mean of all models; a simultaneous push and pull
  does. A server stores every worker's model, [workers, ...]. A worker sends its change u instead of its model, because
  other workers may have changed the stored model in the meantime.

  Args:
    inner: optimizer of each worker; its state stays local.
    workers: number of workers (p).
  """

  def init(params: Tree) -> tuple[PeerState, Tree, Tree]:
    board = jax.tree.map(lambda x: jnp.broadcast_to(x, (workers, *x.shape)), params)
    return PeerState(inner.init(params), params), board, params

  def local(grads: Tree, state: PeerState, params: Tree) -> tuple[Tree, PeerState]:
    params, inner_state = descend(inner, grads, state.inner, params)  # x_i <- x_i - eta g
    return params, state._replace(inner=inner_state)

  def request(state: PeerState, params: Tree) -> Tree:
    return jax.tree.map(lambda x, start: x - start, params, state.start)  # u

  def pull(x: jax.Array, u: jax.Array, i: Any, j: Any) -> jax.Array:
    x = x.at[i].add(u)  # x_i <- x_i + u
    return x.at[i].set(0.5 * (x[i] + x[j]))  # x_i <- (x_i + x_j) / 2

  def merge(reply: Tree, state: PeerState, params: Tree) -> tuple[Tree, PeerState]:
    return reply, state._replace(start=reply)

  def evaluate(board: Tree) -> Tree:
    return jax.tree.map(lambda x: jnp.mean(x, axis=0), board)  # (1/p) sum_i x_i

  def read(board: Tree, reply: Tree, visit: Visit) -> tuple[Tree, Tree]:
    return board, jax.tree.map(lambda x: x[visit.worker], board)  # x_i

  serve, arrivals = mix_on_board(pull), Arrivals(peers="uniform")
  return ServerAlgorithm(init, local, request, serve, merge, evaluate, read=read, arrivals=arrivals)


SPEC = Spec(
  factory=pull_gossip,
  title="Pull-gossip SGD",
  citation="Jin et al. 2016, arXiv 1611.04581",
  taxonomy=Taxonomy("data", "decentralized", "asynchronous", "peer to peer", "parameters"),
)
