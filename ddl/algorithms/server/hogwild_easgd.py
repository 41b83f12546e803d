"""Hogwild EASGD."""

import jax
import optax

from ddl.algorithms.collective.easgd import ALPHA
from ddl.algorithms.server.async_easgd import async_easgd, check_elastic_rate
from ddl.api import Arrivals, LockFree, ServerAlgorithm, Spec, Taxonomy, Tree
from ddl.ranges import ElasticRate, PositiveInt, checked


@checked
def hogwild_easgd(
  inner: optax.GradientTransformation, *, alpha: ElasticRate = ALPHA, period: PositiveInt = 1, workers: PositiveInt
) -> ServerAlgorithm:
  """Pull each worker and a center in shared memory towards each other, without a lock (Hogwild EASGD).

  W <- W + inner(g) - alpha (W - Wb); Wb <- Wb + alpha (W - Wb);
  the terms with alpha only at the first of every tau steps of a worker

  You, Buluc, Demmel 2017, arXiv 1708.02983, section 5. W is the worker's model, Wb the center. Both updates use the
  same W - Wb, computed from the values of Wb that the worker has read. A worker reads Wb coordinate by coordinate
  while other workers write it. Even with such torn reads the center gains what the worker loses: without gradients
  sum_i W^i + Wb is conserved. With a lock this is async EASGD, which `serve` implements.

  Args:
    inner: optimizer of each worker; the elastic term is not part of its momentum.
    alpha: elastic rate (eta rho); by default 0.9 / p, as in EASGD.
    period: steps per exchange (tau).
    workers: number of workers (p); p alpha must be in 0..2.
  """
  check_elastic_rate("hogwild_easgd", alpha, workers)

  def increment(message: Tree, seen: Tree) -> Tree:
    return jax.tree.map(lambda w, z: alpha * (w - z), message, seen)  # Wb <- Wb + alpha (W - Wb)

  def reply(message: Tree, seen: Tree) -> Tree:
    return jax.tree.map(lambda w, z: w - z, message, seen)  # W - Wb

  locked = async_easgd(inner, alpha=alpha, period=period, workers=workers)
  return locked._replace(lock_free=LockFree(increment, reply, reads_first=True), arrivals=Arrivals(blocks=16))


SPEC = Spec(
  factory=hogwild_easgd,
  title="Hogwild EASGD",
  citation="You et al. 2017, arXiv 1708.02983",
  taxonomy=Taxonomy("data", "decentralized", "asynchronous", "parameter server", "parameters"),
  symbols={"alpha": "alpha", "period": "tau"},
)
