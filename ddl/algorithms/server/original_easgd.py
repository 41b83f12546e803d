"""Original EASGD: the center serves the workers in rank order, and each starts when the one before it is done.

The baseline of You, Buluc, Demmel 2017, arXiv 1708.02983, on Zhang et al. 2014, arXiv 1412.6651. At t = 0, 1, ...
worker j = t mod p alone: W^j <- W^j - eta g(W^j) - alpha (W^j - Wb),  Wb <- Wb + alpha (W^j - Wb), both with W^j and
Wb from before. The rule is async EASGD's and the order makes it slow: compare it at equal examples, not at equal t.
"""

import optax

from ddl.algorithms.server.async_easgd import async_easgd
from ddl.api import Arrivals, Hyper, ServerAlgorithm, Spec, Taxonomy
from ddl.ranges import PositiveInt, UnitInterval, checked


@checked
def original_easgd(
  inner: optax.GradientTransformation, *, alpha: UnitInterval, workers: PositiveInt
) -> ServerAlgorithm:
  """W <- W + inner(g) - alpha (W - Wb); Wb <- Wb + alpha (W - Wb), one worker after the other by rank.

  Args:
    inner: optimizer of each worker; the elastic term stays outside its momentum.
    alpha: elastic rate (eta rho).
    workers: number of workers p, as of every server algorithm; the rule does not depend on it.

  Returns:
    A `ServerAlgorithm` of one step a worker round, served round robin.

  Raises:
    ValueError: if alpha is not in 0..1. A center that is pulled by one worker at a time keeps 1 - alpha of itself, so
      that p does not matter.
  """
  del workers
  rule = async_easgd(inner, alpha=alpha, period=1, workers=1)
  return rule._replace(arrivals=Arrivals("round_robin"))  # j = t mod p


SPEC = Spec(
  factory=original_easgd,
  title="Original EASGD (served by rank)",
  citation="Zhang et al. 2014, arXiv 1412.6651; You et al. 2017, arXiv 1708.02983",
  taxonomy=Taxonomy("data", "decentralized", "synchronous", "round robin", "parameters"),
  hyper={
    "alpha": Hyper("alpha", lambda workers: 0.9 / workers, "elastic rate eta rho; the authors' choice is 0.9 / p")
  },
)
