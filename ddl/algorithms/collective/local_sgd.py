"""Local SGD: workers run alone for tau steps, then all take the mean of their models.

Stich 2018, arXiv 1805.09767. The inner optimizer's state stays local; averaging it is another algorithm.
"""

import optax

from ddl.algorithms.collective.independent import independent
from ddl.api import Algorithm, Exchange, Hyper, Spec, Taxonomy, Tree
from ddl.group import Group
from ddl.ranges import PositiveInt, checked


@checked
def local_sgd(inner: optax.GradientTransformation, *, period: PositiveInt) -> Algorithm:
  """x_i <- x_i + inner(g_i); after every tau-th step x_i <- (1/p) sum_j x_j.

  Args:
    inner: optimizer of each worker.
    period: local steps per average (tau).

  Returns:
    An `Algorithm` that sends parameters once per period.
  """

  def launch(group: Group, state: optax.OptState, params: Tree) -> tuple[Tree, optax.OptState]:
    return group.mean(params), state  # xbar = (1/p) sum_j x_j

  def merge(group: Group, message: Tree, state: optax.OptState, params: Tree) -> tuple[Tree, optax.OptState]:
    del group, params
    return message, state  # x_i <- xbar

  worker = independent(inner)  # x_i <- x_i - eta g_i, tested at the mean of the models
  return worker._replace(exchanges=(Exchange(launch, merge, period),))


SPEC = Spec(
  factory=local_sgd,
  title="Local SGD",
  citation="Stich 2018, arXiv 1805.09767",
  taxonomy=Taxonomy("data", "decentralized", "synchronous", "all-reduce", "parameters"),
  hyper={"period": Hyper("tau", 10, "local steps per average")},
)
