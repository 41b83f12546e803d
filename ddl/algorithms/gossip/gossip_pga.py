"""Gossip-PGA."""

import optax

from ddl.algorithms.collective.local_sgd import local_sgd
from ddl.algorithms.gossip.d_psgd import mixing_while_computing
from ddl.api import Algorithm, Spec, Taxonomy
from ddl.ranges import PositiveInt, checked


@checked
def gossip_pga(
  inner: optax.GradientTransformation, *, graph: str = "ring", period: PositiveInt = 6, workers: PositiveInt
) -> Algorithm:
  """Mix models with those of the neighbors in each step, and average all models rarely (Gossip-PGA).

  x_i <- sum_j W_ij x_j + inner(g_i), with x_j from before the step; after every tau-th step x_i <- (1/p) sum_j x_j

  Chen, Yuan, Zhang, Pan, Xu, Yin 2021, arXiv 2105.09080. The averages limit the differences between workers on large
  and sparse graphs. Messages to neighbors are sent while the gradient is computed, as in `d_psgd`; the paper mixes
  after the step. With tau = 1 this is local SGD with period 1. A worker sends its model (n bytes) to each neighbor in
  each step, and takes part in an all-reduce of n bytes every tau steps. The evaluated model is the mean of the models.

  Args:
    inner: optimizer of each worker; its state stays local.
    graph: a graph with mixing matrix W, as in `d_psgd`.
    period: steps between averages over all workers (tau).
    workers: number of workers (p).
  """
  algorithm = local_sgd(inner, period=period)
  return algorithm._replace(exchanges=(*mixing_while_computing("gossip_pga", graph, workers), *algorithm.exchanges))


SPEC = Spec(
  factory=gossip_pga,
  title="Gossip-PGA (periodic global averaging)",
  citation="Chen et al. 2021, arXiv 2105.09080",
  taxonomy=Taxonomy("data", "decentralized", "synchronous", "peer to peer", "parameters"),
  symbols={"graph": "W", "period": "tau"},
)
