"""Asynchronous momentum EASGD."""

import optax

from ddl.algorithms.collective.easgd import ALPHA
from ddl.algorithms.server.async_easgd import async_easgd, check_elastic_rate
from ddl.api import ServerAlgorithm, Spec, Taxonomy
from ddl.ranges import ElasticRate, Momentum, PositiveInt, checked


@checked
def async_measgd(
  inner: optax.GradientTransformation,
  *,
  alpha: ElasticRate = ALPHA,
  momentum: Momentum = 0.9,
  period: PositiveInt = 1,
  workers: PositiveInt,
) -> ServerAlgorithm:
  """Pull one worker at a time and a center towards each other, with momentum on the workers (Async MEASGD).

  V <- mu V + inner(g); W <- W + V - alpha (W - Wb); Wb <- Wb + alpha (W - Wb);
  the terms with alpha only at the first of every tau steps of a worker

  You, Buluc, Demmel 2017, arXiv 1708.02983, section 5, equations (5) and (6). Workers are served in the order
  of arrival. The elastic term is not part of the velocity. The exchange overlaps with one step.

  Args:
    inner: plain `optax.sgd(eta)`, whose update is -eta g; eta may be a schedule. Momentum is part of this algorithm.
    alpha: elastic rate (eta rho); by default 0.9 / p, as in EASGD.
    momentum: momentum of each worker (mu); 0.9 in the paper.
    period: steps per exchange (tau).
    workers: number of workers (p); p alpha must be in 0..2.
  """
  check_elastic_rate("async_measgd", alpha, workers)
  worker = optax.chain(inner, optax.trace(decay=momentum))  # V^i <- mu V^i - eta g
  return async_easgd(worker, alpha=alpha, period=period, workers=workers)  # W^i <- W^i + V^i - alpha (W^i - Wb)


SPEC = Spec(
  factory=async_measgd,
  title="Async MEASGD (momentum EASGD)",
  citation="You et al. 2017, arXiv 1708.02983",
  taxonomy=Taxonomy("data", "decentralized", "asynchronous", "parameter server", "parameters"),
  symbols={"alpha": "alpha", "momentum": "mu", "period": "tau"},
)
