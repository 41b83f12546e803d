"""Pull-gossip SGD: after its step a worker averages with the model of one other, which does not notice.

Jin, Yuan, Iandola, Keutzer 2016, arXiv 1611.04581 (Gossiping SGD), without a clock common to the workers.
x_i <- x_i - eta g(x_i); then x_i <- (x_i + x_j) / 2, j uniform among the others, x_j as it stands at that moment.
A pull alone does not conserve the mean of all models; a push and a pull together do.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from ddl.api import Arrivals, ServerAlgorithm, Spec, Taxonomy, Tree, Visit, descend


class PeerState(NamedTuple):
  inner: optax.OptState
  start: Tree  # the model at the start of the worker round


def partner(visit: Visit) -> jax.Array:
  """j: the peer, or without one the worker itself; to mix with oneself changes nothing."""
  return jnp.where(visit.peer < 0, visit.worker, visit.peer)


def pull_gossip(inner: optax.GradientTransformation, *, workers: int) -> ServerAlgorithm:
  """x_i <- x_i + u, u = inner(g); x_i <- (x_i + x_j) / 2.

  Args:
    inner: optimizer of each worker; its state stays there.
    workers: number of workers p.

  Returns:
    A `ServerAlgorithm` of one step a worker round. The server is the board with every worker's model, [workers, ...]; a worker
    sends its change u, since others may have moved its model meanwhile.
  """

  def init(params: Tree) -> tuple[PeerState, Tree, Tree]:
    board = jax.tree.map(lambda x: jnp.broadcast_to(x, (workers, *x.shape)), params)
    return PeerState(inner.init(params), params), board, params

  def local(grads: Tree, state: PeerState, params: Tree) -> tuple[Tree, PeerState]:
    params, inner_state = descend(inner, grads, state.inner, params)  # x_i <- x_i - eta g
    return params, state._replace(inner=inner_state)

  def request(state: PeerState, params: Tree) -> Tree:
    return jax.tree.map(lambda x, start: x - start, params, state.start)  # u

  def serve(board: Tree, message: Tree, visit: Visit) -> tuple[Tree, Tree]:
    i, j = visit.worker, partner(visit)

    def pull(x: jax.Array, u: jax.Array) -> jax.Array:
      x = x.at[i].add(u)  # x_i <- x_i + u
      return x.at[i].set(0.5 * (x[i] + x[j]))  # x_i <- (x_i + x_j) / 2

    return read(jax.tree.map(pull, board, message), message, visit)

  def merge(reply: Tree, state: PeerState, params: Tree) -> tuple[Tree, PeerState]:
    del params
    return reply, state._replace(start=reply)

  def evaluate(board: Tree) -> Tree:
    return jax.tree.map(lambda x: jnp.mean(x, axis=0), board)  # (1/p) sum_i x_i

  def read(board: Tree, reply: Tree, visit: Visit) -> tuple[Tree, Tree]:
    del reply
    return board, jax.tree.map(lambda x: x[visit.worker], board)  # x_i

  return ServerAlgorithm(init, local, request, serve, merge, evaluate, read=read, arrivals=Arrivals(peers="uniform"))


SPEC = Spec(
  factory=pull_gossip,
  title="Pull-gossip SGD",
  citation="Jin et al. 2016, arXiv 1611.04581",
  taxonomy=Taxonomy("data", "decentralized", "asynchronous", "peer to peer", "parameters"),
  hyper={},
)
