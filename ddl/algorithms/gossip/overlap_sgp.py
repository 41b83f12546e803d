"""Overlap-SGP."""

import optax

from ddl.algorithms.gossip.sgp import one_peer_exponential, push_sum
from ddl.api import Algorithm, Spec, Taxonomy
from ddl.ranges import PositiveInt, checked


@checked
def overlap_sgp(inner: optax.GradientTransformation, *, overlap: PositiveInt = 1, workers: PositiveInt) -> Algorithm:
  """Average models by push-sum, with messages that arrive tau steps later (overlap stochastic gradient push).

  This is `sgp` with a round every tau steps; each message is in flight for tau steps.

  Assran, Loizou, Ballas, Rabbat 2018, arXiv 1811.10792. As in the authors' code, a worker sends before a step; in the
  paper's algorithm 2 it sends after the step. While messages are in flight, w_i = 1/2, and a step moves z_i twice as
  far as x_i: a learning rate near the stability limit of plain SGD is too high for tau > 1. With tau = 1 this is D-PSGD
  on SGP's graph. The params are z_i; workers send x_i and w_i, and the evaluated model is the mean of the z_i.

  Args:
    inner: optimizer of each worker, called with g_i and z_i; its state stays local.
    overlap: steps for which a message is in flight, and steps between messages (tau); 1 in the paper.
    workers: number of workers (p).
  """
  return push_sum(inner, one_peer_exponential(workers), overlap=overlap)


SPEC = Spec(
  factory=overlap_sgp,
  title="Overlap-SGP",
  citation="Assran et al. 2018, arXiv 1811.10792",
  taxonomy=Taxonomy("data", "decentralized", "delayed", "peer to peer", "parameters"),
  symbols={"overlap": "tau"},
)
