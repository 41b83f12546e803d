"""Original EASGD."""

import optax

from ddl.algorithms.collective.easgd import ALPHA
from ddl.algorithms.server.async_easgd import async_easgd
from ddl.api import Arrivals, ServerAlgorithm, Spec, Taxonomy
from ddl.ranges import PositiveInt, UnitInterval, checked


@checked
def original_easgd(
  inner: optax.GradientTransformation, *, alpha: UnitInterval = ALPHA, workers: PositiveInt | None = None
) -> ServerAlgorithm:
  """Pull one worker at a time and a center towards each other, in rank order (Original EASGD).

  W <- W + inner(g) - alpha (W - Wb); Wb <- Wb + alpha (W - Wb), worker t mod p at t = 0, 1, ...

  The baseline of You, Buluc, Demmel 2017, arXiv 1708.02983, after Zhang et al. 2014, arXiv 1412.6651. Each worker
  starts when the previous one has finished. The update is that of `async_easgd`, but only one worker trains at a time:
  compare the two after equal numbers of examples, not at equal t.

  Args:
    inner: optimizer of each worker; the elastic term is not part of its momentum.
    alpha: elastic rate (eta rho), at most 1 for any p, because one worker pulls at a time; by default 0.9 / p, as in
      Zhang et al. 2014.
    workers: number of workers (p), for the default of alpha.
  """
  rule = async_easgd(inner, alpha=alpha, period=1, workers=1)
  return rule._replace(arrivals=Arrivals("round_robin"))  # j = t mod p


SPEC = Spec(
  factory=original_easgd,
  title="Original EASGD (served by rank)",
  citation="Zhang et al. 2014, arXiv 1412.6651; You et al. 2017, arXiv 1708.02983",
  taxonomy=Taxonomy("data", "decentralized", "synchronous", "round robin", "parameters"),
  symbols={"alpha": "alpha"},
)
