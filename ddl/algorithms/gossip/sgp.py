"""SGP, and push-sum on any sequence of directed graphs."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from ddl.algorithms.gossip.graphs import hops, own_zero
from ddl.api import Algorithm, Exchange, Spec, Taxonomy, Tree
from ddl.group import Group
from ddl.ranges import PositiveInt, checked


class PushSumState(NamedTuple):
  inner: optax.OptState
  weight: jax.Array  # w_i; x_i = w_i z_i is not stored


class Push(NamedTuple):
  """The weighted sums over the messages that worker i receives from its in-neighbors j."""

  x: Tree  # sum_j P_ij x_j over j != i
  weight: jax.Array  # sum_j P_ij w_j over j != i


@checked
def sgp(inner: optax.GradientTransformation, *, workers: PositiveInt) -> Algorithm:
  """Average models along a directed graph by push-sum, with weights that correct the bias (SGP).

  x_i <- x_i + inner(g_i(z_i)); then x_i <- (x_i + x_j) / 2, w_i <- (w_i + w_j) / 2, j = i - 2^k; z_i = x_i / w_i

  Assran, Loizou, Ballas, Rabbat 2018, arXiv 1811.10792, on the paper's graph: worker i receives from i - 2^k in
  round k = 0..ceil(log2 p) - 1, and the rounds repeat. If p is a power of two, then without gradients all workers reach
  the mean after log2 p rounds. The params are z_i; workers send x_i and w_i, and the evaluated model is the mean of the
  z_i.

  Args:
    inner: optimizer of each worker, called with g_i and z_i; its state stays local.
    workers: number of workers (p).
  """
  return push_sum(inner, one_peer_exponential(workers), overlap=0)


def push_sum(inner: optax.GradientTransformation, rounds: Sequence[np.ndarray], *, overlap: int) -> Algorithm:
  """Return `sgp` on a repeated sequence of graphs; `rounds` has a column-stochastic matrix P [p, p] for each.

  x_i <- sum_j P_ij x_j,  w_i <- sum_j P_ij w_j,  z_i = x_i / w_i,  so that sum_i w_i = p

  With an overlap tau > 0, workers send before every tau-th step and add the received messages tau steps later.
  """

  def init(group: Group, params: Tree, key: Any) -> PushSumState:
    return PushSumState(inner.init(params), 1 + own_zero(params, jnp.result_type(float)))  # w_i = 1

  def local(group: Group, grads: Tree, state: PushSumState, params: Tree) -> tuple[Tree, PushSumState]:
    updates, inner_state = inner.update(grads, state.inner, params)
    params = jax.tree.map(lambda z, u: z + u / state.weight.astype(z.dtype), params, updates)  # x_i <- x_i - eta g_i
    return params, state._replace(inner=inner_state)

  def exchange(k: int) -> Exchange:
    messages, diagonal = hops(rounds[k]), np.diag(rounds[k])

    def launch(group: Group, state: PushSumState, params: Tree) -> tuple[Push, PushSumState]:
      message = Push(jax.tree.map(lambda z: state.weight.astype(z.dtype) * z, params), state.weight)  # x_i, w_i
      push = jax.tree.map(jnp.zeros_like, message)
      for hop in messages:
        received = group.permute(message, hop.sources) if hop.shift is None else group.shift(message, hop.shift)
        share = jnp.asarray(hop.weights)[group.index()]  # P_ij
        push = jax.tree.map(lambda s, x, share=share: s + share.astype(x.dtype) * x, push, received)
      # z_i = x_i / w_i does not change when both x_i and w_i are scaled by P_ii.
      return push, state._replace(weight=jnp.asarray(diagonal, state.weight.dtype)[group.index()] * state.weight)

    if overlap:
      return Exchange(launch, merge, len(rounds) * overlap, overlap, offset=(k - len(rounds)) * overlap)
    return Exchange(launch, merge, len(rounds), offset=k + 1 - len(rounds))

  def merge(group: Group, message: Push, state: PushSumState, params: Tree) -> tuple[Tree, PushSumState]:
    weight = state.weight + message.weight  # w_i <- sum_j P_ij w_j

    def one(z: jax.Array, pushed: jax.Array) -> jax.Array:  # z_i <- sum_j P_ij x_j / w_i
      return (state.weight.astype(z.dtype) * z + pushed) / weight.astype(z.dtype)

    return jax.tree.map(one, params, message.x), state._replace(weight=weight)

  def evaluate(group: Group, state: PushSumState, params: Tree) -> Tree:
    return group.mean(params)

  return Algorithm(init, local, tuple(map(exchange, range(len(rounds)))), evaluate)


def one_peer_exponential(workers: int) -> list[np.ndarray]:
  """Return the matrix P [p, p] of each round of the one-peer exponential graph.

  In round k, worker i keeps half of x_i and receives half of x_(i - 2^k).
  """
  ranks, identity = np.arange(workers), np.eye(workers)
  return [(identity + identity[ranks - 2**k]) / 2 for k in range((workers - 1).bit_length())]


SPEC = Spec(
  factory=sgp,
  title="SGP (stochastic gradient push)",
  citation="Assran et al. 2018, arXiv 1811.10792",
  taxonomy=Taxonomy("data", "decentralized", "synchronous", "peer to peer", "parameters"),
)
