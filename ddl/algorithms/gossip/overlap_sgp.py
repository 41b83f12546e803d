"""Overlap-SGP: stochastic gradient push whose messages are in flight for tau steps.

Assran, Loizou, Ballas, Rabbat 2018, arXiv 1811.10792, with overlap. Before every tau-th step worker i sends half of x_i
and of its weight w_i, and keeps the other half; tau steps later it adds what was sent to it:
x_i <- x_i / 2,  w_i <- w_i / 2;  tau times x_i <- x_i - eta g_i(z_i),  z_i = x_i / w_i;
x_i <- x_i + x_j / 2,  w_i <- w_i + w_j / 2, of j = i - 2^k as they left.
This is the order of the authors' code. In the paper's algorithm 2 a worker first takes its step and then sends the
result, so that each message is one gradient newer, and the first leaves after a step.
While they are in flight w_i = 1/2, and a step moves z_i twice as far as x_i: a rate that is near the limit of stability
of plain SGD is too high for tau > 1. With tau = 1 this is D-PSGD on the same graph. The weights, those in flight
included, sum to p.
"""

import optax

from ddl.algorithms.gossip.sgp import one_peer_exponential, push_sum
from ddl.api import Algorithm, Hyper, Spec, Taxonomy
from ddl.ranges import PositiveInt, checked


@checked
def overlap_sgp(inner: optax.GradientTransformation, *, overlap: PositiveInt, workers: PositiveInt) -> Algorithm:
  """`sgp` with a round every tau steps, in flight during all of them.

  Args:
    inner: optimizer of each worker, handed g_i and z_i; its state stays there.
    overlap: steps that a message is in flight, and steps between two of them (tau).
    workers: number of workers p.

  Returns:
    An `Algorithm` whose params are z_i, which sends x_i and w_i to one other every tau steps, tested at the mean of
    the z_i.

  Raises:
    ValueError: if overlap is below 1.
  """
  return push_sum(inner, one_peer_exponential(workers), overlap=overlap)


SPEC = Spec(
  factory=overlap_sgp,
  title="Overlap-SGP",
  citation="Assran et al. 2018, arXiv 1811.10792",
  taxonomy=Taxonomy("data", "decentralized", "delayed", "peer to peer", "parameters"),
  hyper={"overlap": Hyper("tau", 1, "steps that a message is in flight, and steps between two; the authors' is 1")},
)
