"""CoCoD-SGD."""

import jax
import optax

from ddl.algorithms.collective.independent import independent
from ddl.api import Algorithm, Exchange, Spec, Taxonomy, Tree
from ddl.group import Group
from ddl.ranges import PositiveInt, checked


@checked
def cocod(inner: optax.GradientTransformation, *, period: PositiveInt = 10) -> Algorithm:
  """Average the models with a delay of one round, and add that round's local progress (CoCoD-SGD).

  x_i <- x_i + inner(g_i); after every tau-th step x_i <- xbar + x_i - x_i', with xbar and x_i' from tau steps ago

  Shen, Xu, Liu, Wu, Cheng 2019, arXiv 1906.12043. xbar is the mean of the x_i'. Unlike in DaSGD no step is undone: the
  mean of the models moves by the mean of all local steps. There is no average before the first step, because all
  workers start from equal models.

  Args:
    inner: optimizer of each worker; its state is never averaged.
    period: local steps per average, and steps for which an average is in flight (tau).
  """

  def launch(group: Group, state: optax.OptState, params: Tree) -> tuple[tuple[Tree, Tree], optax.OptState]:
    return (group.mean(params), params), state  # xbar(t) = (1/p) sum_j x_j(t); x_i(t)

  def merge(
    group: Group, message: tuple[Tree, Tree], state: optax.OptState, params: Tree
  ) -> tuple[Tree, optax.OptState]:
    mean, before = message
    return jax.tree.map(lambda x, m, b: m + (x - b), params, mean, before), state  # x_i <- xbar(t) + (x_i - x_i(t))

  worker = independent(inner)  # x_i <- x_i - eta g_i, evaluated at the mean of the models
  return worker._replace(exchanges=(Exchange(launch, merge, period, delay=period),))


SPEC = Spec(
  factory=cocod,
  title="CoCoD-SGD",
  citation="Shen et al. 2019, arXiv 1906.12043",
  taxonomy=Taxonomy("data", "decentralized", "delayed", "all-reduce", "parameters"),
  symbols={"period": "tau"},
)
