"""AD-PSGD."""

from typing import Any

import jax
import optax

from ddl.algorithms.gossip.pull_gossip import mix_on_board, pull_gossip
from ddl.api import Arrivals, ServerAlgorithm, Spec, Taxonomy
from ddl.ranges import PositiveInt, checked


@checked
def ad_psgd(inner: optax.GradientTransformation, *, workers: PositiveInt) -> ServerAlgorithm:
  """Average a worker's model with a neighbor's atomically, then add the step that the worker has computed (AD-PSGD).

  x_i, x_j <- (x_i + x_j) / 2; x_i <- x_i + u, u = inner(g)

  Lian, Zhang, Zhang, Liu 2017, arXiv 1710.06952. g is the gradient at the worker's model before the average. Neighbors
  form a bipartite graph (even ranks with odd ones on a ring), so that no two workers wait for each other. Averaging
  conserves the mean of all models. Here a server stores every worker's model, [workers, ...].

  Args:
    inner: optimizer of each worker; its state stays local.
    workers: number of workers (p).
  """

  def average(x: jax.Array, u: jax.Array, i: Any, j: Any) -> jax.Array:
    mean = 0.5 * (x[i] + x[j])  # (x_i + x_j) / 2
    return x.at[j].set(mean).at[i].set(mean + u)  # x_j <- mean; x_i <- mean + u

  arrivals = Arrivals(peers="bipartite")
  return pull_gossip(inner, workers=workers)._replace(serve=mix_on_board(average), arrivals=arrivals)


SPEC = Spec(
  factory=ad_psgd,
  title="AD-PSGD",
  citation="Lian et al. 2017, arXiv 1710.06952",
  taxonomy=Taxonomy("data", "decentralized", "asynchronous", "peer to peer", "parameters"),
)
