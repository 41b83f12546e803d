"""DaSGD."""

import jax
import optax

from ddl.algorithms.collective.independent import independent
from ddl.api import Algorithm, Exchange, Spec, Taxonomy, Tree
from ddl.group import Group
from ddl.ranges import NonNegativeInt, Period, UnitInterval, checked


@checked
def dasgd(
  inner: optax.GradientTransformation, *, period: Period = 4, delay: NonNegativeInt = 1, keep: UnitInterval = 0.25
) -> Algorithm:
  """Average the models with a delay, while the next local steps are computed (DaSGD).

  x_i <- x_i + inner(g_i); after the d-th step of a round x_i <- xi x_i + (1 - xi) xbar, with xbar from d steps ago

  Zhou et al. 2020, arXiv 2006.00441. xbar is the mean of the models at the end of the previous round; the first round
  merges nothing. Each merge discards a share 1 - xi of the d local steps since xbar was computed, so that a round makes
  the progress of only tau - (1 - xi) d steps. With d = 0 and xi = 0 this is local SGD; with xi = 1 the workers never
  synchronize.

  Args:
    inner: optimizer of each worker; its state is never averaged.
    period: local steps per average (tau), or a function of the round such as `ddl.qsr`.
    delay: steps computed while the average is in flight (d); if it exceeds the period, several averages are in flight.
    keep: weight of the worker's model in the merge (xi).
  """

  def launch(group: Group, state: optax.OptState, params: Tree) -> tuple[Tree, optax.OptState]:
    return group.mean(params), state  # xbar = (1/p) sum_j x_j

  def merge(group: Group, message: Tree, state: optax.OptState, params: Tree) -> tuple[Tree, optax.OptState]:
    blend = jax.tree.map(lambda x, mean: keep * x + (1 - keep) * mean, params, message)  # xi x_i + (1 - xi) xbar
    return blend, state

  worker = independent(inner)  # x_i <- x_i - eta g_i, evaluated at the mean of the models
  return worker._replace(exchanges=(Exchange(launch, merge, period, delay),))


SPEC = Spec(
  factory=dasgd,
  title="DaSGD (delayed averaging)",
  citation="Zhou et al. 2020, arXiv 2006.00441",
  taxonomy=Taxonomy("data", "decentralized", "delayed", "all-reduce", "parameters"),
  symbols={"period": "tau", "delay": "d", "keep": "xi"},
)
