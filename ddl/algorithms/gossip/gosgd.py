"""GoSGD."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from ddl.algorithms.gossip.pull_gossip import PeerState, partner, pull_gossip
from ddl.api import ServerAlgorithm, Spec, Taxonomy, Tree, Visit
from ddl.ranges import PositiveInt, Share, checked


class Weighted(NamedTuple):
  board: Tree  # [workers, ...]: every worker's model
  weights: jax.Array  # [workers]: a


@checked
def gosgd(inner: optax.GradientTransformation, *, probability: Share = 0.1, workers: PositiveInt) -> ServerAlgorithm:
  """Push the model with half of its weight at random steps; the receiver averages by weight (GoSGD).

  x_i <- x_i + inner(g); then, with probability p_s:
  a_i <- a_i / 2, x_j <- (a_j x_j + a_i x_i) / (a_i + a_j), a_j <- a_j + a_i

  Blot, Picard, Cord, Thome 2016, arXiv 1611.09726. Weights start as a_i = 1/p and always sum to 1; j is uniform among
  the other workers. Exchanges conserve sum_i a_i x_i, the evaluated model.

  Args:
    inner: optimizer of each worker; its state stays local.
    probability: probability of a push after a step (p_s).
    workers: number of workers (p).
  """
  plain = pull_gossip(inner, workers=workers)

  def init(params: Tree) -> tuple[PeerState, Weighted, Tree]:
    state, board, reply = plain.init(params)
    return state, Weighted(board, jnp.full(workers, 1 / workers, jnp.result_type(float))), reply  # a_i = 1/p

  def serve(server: Weighted, message: Tree, visit: Visit) -> tuple[Weighted, Tree]:
    i, j, a = visit.worker, partner(visit), server.weights
    sent = 0.5 * a[i]  # a_i / 2
    share = sent / (a[j] + sent)  # a_i / (a_i + a_j)

    def push(x: jax.Array, u: jax.Array) -> jax.Array:
      x = x.at[i].add(u)  # x_i <- x_i + u
      return x.at[j].add(share.astype(x.dtype) * (x[i] - x[j]))  # x_j <- (a_j x_j + a_i x_i) / (a_i + a_j)

    weights = a.at[i].add(-sent).at[j].add(sent)  # a_i <- a_i / 2, a_j <- a_j + a_i
    return read(Weighted(jax.tree.map(push, server.board, message), weights), message, visit)

  def evaluate(server: Weighted) -> Tree:
    def mean(x: jax.Array) -> jax.Array:
      weights = server.weights.astype(x.dtype).reshape(-1, *[1] * (x.ndim - 1))
      return jnp.sum(weights * x, axis=0)  # sum_i a_i x_i

    return jax.tree.map(mean, server.board)

  def read(server: Weighted, reply: Tree, visit: Visit) -> tuple[Weighted, Tree]:
    return server, jax.tree.map(lambda x: x[visit.worker], server.board)  # x_i

  arrivals = plain.arrivals._replace(peer_probability=probability)
  return plain._replace(init=init, serve=serve, evaluate=evaluate, read=read, arrivals=arrivals)


SPEC = Spec(
  factory=gosgd,
  title="GoSGD",
  citation="Blot et al. 2016, arXiv 1611.09726",
  taxonomy=Taxonomy("data", "decentralized", "asynchronous", "peer to peer", "parameters"),
  symbols={"probability": "p_s"},
)
