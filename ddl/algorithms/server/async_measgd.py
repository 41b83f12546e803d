"""Asynchronous momentum EASGD: async EASGD whose workers keep a velocity each; the elastic term is not part of it.

You, Buluc, Demmel 2017, arXiv 1708.02983, section 5, equations (5) and (6), with W^i and Wb from before the exchange:
V^i <- mu V^i - eta g(W^i),  W^i <- W^i + V^i - alpha (W^i - Wb),  Wb <- Wb + alpha (W^i - Wb),  alpha = eta rho.
"""

import optax

from ddl.algorithms.server.async_easgd import async_easgd
from ddl.api import Hyper, ServerAlgorithm, Spec, Taxonomy
from ddl.ranges import ElasticRate, Momentum, PositiveInt, checked


@checked
def async_measgd(
  inner: optax.GradientTransformation,
  *,
  alpha: ElasticRate,
  momentum: Momentum,
  period: PositiveInt,
  workers: PositiveInt,
) -> ServerAlgorithm:
  """V <- mu V + inner(g); W <- W + V - alpha (W - Wb); Wb <- Wb + alpha (W - Wb), every `period` steps of a worker.

  Args:
    inner: gives -eta g, with its schedule; plain `optax.sgd(eta)`, since the momentum is this algorithm's own.
    alpha: elastic rate (eta rho).
    momentum: mu of each worker, in 0..1.
    period: steps per exchange (tau).
    workers: number of workers p, which bounds alpha.

  Returns:
    A `ServerAlgorithm` whose exchange is hidden by one step.

  Raises:
    ValueError: if the momentum is not in [0, 1), or p alpha not in 0..2.
  """
  worker = optax.chain(inner, optax.trace(decay=momentum))  # V^i <- mu V^i - eta g
  return async_easgd(worker, alpha=alpha, period=period, workers=workers)  # W^i <- W^i + V^i - alpha (W^i - Wb)


SPEC = Spec(
  factory=async_measgd,
  title="Async MEASGD (momentum EASGD)",
  citation="You et al. 2017, arXiv 1708.02983",
  taxonomy=Taxonomy("data", "decentralized", "asynchronous", "parameter server", "parameters"),
  hyper={
    "alpha": Hyper("alpha", lambda workers: 0.9 / workers, "elastic rate eta rho; the authors' choice is 0.9 / p"),
    "momentum": Hyper("mu", 0.9, "the workers' momentum; the authors' choice is 0.9"),
    "period": Hyper("tau", 1, "steps per exchange"),
  },
)
