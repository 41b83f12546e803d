"""Local SGD."""

import optax

from ddl.algorithms.collective.independent import independent
from ddl.api import Algorithm, Exchange, Spec, Taxonomy, Tree
from ddl.group import Group
from ddl.ranges import Period, checked


@checked
def local_sgd(inner: optax.GradientTransformation, *, period: Period = 10) -> Algorithm:
  """Average the models after every tau-th local step (local SGD).

  x_i <- x_i + inner(g_i); after every tau-th step x_i <- (1/p) sum_j x_j

  Stich 2018, arXiv 1805.09767.

  Args:
    inner: optimizer of each worker; its state is never averaged.
    period: local steps per average (tau), or a function of the round such as `ddl.qsr`.
  """

  def launch(group: Group, state: optax.OptState, params: Tree) -> tuple[Tree, optax.OptState]:
    return group.mean(params), state  # xbar = (1/p) sum_j x_j

  def merge(group: Group, message: Tree, state: optax.OptState, params: Tree) -> tuple[Tree, optax.OptState]:
    return message, state  # x_i <- xbar

  worker = independent(inner)  # x_i <- x_i - eta g_i, evaluated at the mean of the models
  return worker._replace(exchanges=(Exchange(launch, merge, period),))


SPEC = Spec(
  factory=local_sgd,
  title="Local SGD",
  citation="Stich 2018, arXiv 1805.09767",
  taxonomy=Taxonomy("data", "decentralized", "synchronous", "all-reduce", "parameters"),
  symbols={"period": "tau"},
)
