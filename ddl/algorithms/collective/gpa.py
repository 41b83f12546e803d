"""GPA, generalized primal averaging."""

from typing import Any, NamedTuple

import jax
import optax

from ddl.api import Algorithm, Spec, Taxonomy, Tree, descend
from ddl.group import Group
from ddl.ranges import UnitInterval, checked


class GPAState(NamedTuple):
  inner: optax.OptState
  average: Tree  # x, the evaluated model
  base: Tree  # z, to which the optimizer applies its steps


@checked
def gpa(
  inner: optax.GradientTransformation, *, train_weight: UnitInterval = 0.7, average_weight: UnitInterval = 0.9967
) -> Algorithm:
  """Average the models of all steps, and compute gradients at a point between the average and the last model (GPA).

  z <- z + inner((1/p) sum_i g_i(y)); x <- mu_x x + (1 - mu_x) z; y <- mu_y x + (1 - mu_y) z

  Defazio, Mishchenko, Raman, Shi, Xiao 2025, arXiv 2512.17131. DiLoCo with one worker (`snoo`) takes an outer step of
  momentum mu every H steps; GPA averages after each step instead, with mu_x = mu^(1/H). The workers share y and the
  mean gradient, so the traffic is that of `sync_sgd`. With mu_x = 0 this is synchronous SGD. Weight decay of the inner
  optimizer applies to z, as by default in the authors' code. The training loss is that of y; the evaluated model is x.

  Args:
    inner: optimizer of z, the same on all workers.
    train_weight: weight of x in y, at which gradients are computed (mu_y); 0.7 in the authors' code.
    average_weight: weight of the previous x in the average (mu_x); 0.9967 in the authors' code, 0.9^(1/32).
  """

  def init(group: Group, params: Tree, key: Any) -> GPAState:
    return GPAState(inner.init(params), params, params)

  def local(group: Group, grads: Tree, state: GPAState, params: Tree) -> tuple[Tree, GPAState]:
    base, inner_state = descend(inner, group.mean(grads), state.inner, state.base)  # z <- z - eta (1/p) sum_i g_i(y)
    average = _mixed(average_weight, state.average, base)  # x <- mu_x x + (1 - mu_x) z
    return _mixed(train_weight, average, base), GPAState(inner_state, average, base)  # y <- mu_y x + (1 - mu_y) z

  def evaluate(group: Group, state: GPAState, params: Tree) -> Tree:
    return state.average

  return Algorithm(init, local, (), evaluate)


def _mixed(weight: Any, one: Tree, other: Tree) -> Tree:
  return jax.tree.map(lambda a, b: weight * a + (1 - weight) * b, one, other)


SPEC = Spec(
  factory=gpa,
  title="GPA (generalized primal averaging)",
  citation="Defazio et al. 2025, arXiv 2512.17131",
  taxonomy=Taxonomy("data", "centralized", "synchronous", "all-reduce", "gradients"),
  symbols={"train_weight": "mu_y", "average_weight": "mu_x"},
)
