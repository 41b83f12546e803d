"""DaSGD: local SGD with delayed averaging, the average in flight while the next local steps run.

Zhou et al. 2020, arXiv 2006.00441. xbar is the mean of the models at the end of the last round; after the d-th local
step of this round a worker keeps the share xi of its own model:
x_i(k+1) = xi (x_i(k) - eta g_i(k)) + (1 - xi) xbar,  xbar = (1/p) sum_j x_j(k+1-d).
There is no correction for the delay, so a round makes (tau - (1 - xi) d) / tau of the nominal progress.
"""

import jax
import optax

from ddl.algorithms.collective.independent import independent
from ddl.api import Algorithm, Exchange, Hyper, Spec, Taxonomy, Tree
from ddl.group import Group
from ddl.ranges import NonNegativeInt, PositiveInt, UnitInterval, checked


@checked
def dasgd(
  inner: optax.GradientTransformation, *, period: PositiveInt, delay: NonNegativeInt, keep: UnitInterval
) -> Algorithm:
  """x_i <- x_i + inner(g_i); after the d-th step of a round x_i <- xi x_i + (1 - xi) xbar of d steps ago.

  delay = 0 and keep = 0 is local SGD; keep = 1 never synchronises. The first round has no average to merge.

  Args:
    inner: optimizer of each worker; its state is never averaged.
    period: local steps per average (tau).
    delay: steps that run while the average is in flight (d); above the period several are.
    keep: weight of the worker's own model (xi), 0..1.

  Returns:
    An `Algorithm` that sends parameters once per period.

  Raises:
    ValueError: if keep is not in 0..1.
  """

  def launch(group: Group, state: optax.OptState, params: Tree) -> tuple[Tree, optax.OptState]:
    return group.mean(params), state  # xbar = (1/p) sum_j x_j

  def merge(group: Group, message: Tree, state: optax.OptState, params: Tree) -> tuple[Tree, optax.OptState]:
    del group
    blend = jax.tree.map(lambda x, mean: keep * x + (1 - keep) * mean, params, message)  # xi x_i + (1 - xi) xbar
    return blend, state

  worker = independent(inner)  # x_i <- x_i - eta g_i, tested at the mean of the models
  return worker._replace(exchanges=(Exchange(launch, merge, period, delay),))


SPEC = Spec(
  factory=dasgd,
  title="DaSGD (delayed averaging)",
  citation="Zhou et al. 2020, arXiv 2006.00441",
  taxonomy=Taxonomy("data", "decentralized", "delayed", "all-reduce", "parameters"),
  hyper={
    "period": Hyper("tau", 4, "local steps per average"),
    "delay": Hyper("d", 1, "steps that run while the average is in flight"),
    "keep": Hyper("xi", 0.25, "weight of the worker's own model in the merge"),
  },
)
