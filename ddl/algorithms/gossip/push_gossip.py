"""Push-gossip SGD."""

from typing import Any

import jax
import optax

from ddl.algorithms.gossip.pull_gossip import mix_on_board, pull_gossip
from ddl.api import ServerAlgorithm, Spec, Taxonomy
from ddl.ranges import PositiveInt, checked


@checked
def push_gossip(inner: optax.GradientTransformation, *, workers: PositiveInt) -> ServerAlgorithm:
  """Average a worker's model into that of a random other worker after each step (push-gossip SGD).

  x_i <- x_i + u, u = inner(g); x_j <- (x_j + x_i) / 2

  Jin, Yuan, Iandola, Keutzer 2016, arXiv 1611.04581. Here workers have no common clock; j is uniform among the other
  workers. A push that arrives while j computes is not lost: j's change is added to the averaged model.

  Args:
    inner: optimizer of each worker; its state stays local.
    workers: number of workers (p).
  """

  def push(x: jax.Array, u: jax.Array, i: Any, j: Any) -> jax.Array:
    x = x.at[i].add(u)  # x_i <- x_i + u
    return x.at[j].set(0.5 * (x[j] + x[i]))  # x_j <- (x_j + x_i) / 2

  return pull_gossip(inner, workers=workers)._replace(serve=mix_on_board(push))  # all else is as in pull gossip


SPEC = Spec(
  factory=push_gossip,
  title="Push-gossip SGD",
  citation="Jin et al. 2016, arXiv 1611.04581",
  taxonomy=Taxonomy("data", "decentralized", "asynchronous", "peer to peer", "parameters"),
)
