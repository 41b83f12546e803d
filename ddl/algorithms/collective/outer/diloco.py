"""DiLoCo: local SGD whose average is a step of an outer optimizer with Nesterov momentum.

Douillard et al. 2023, arXiv 2311.08105. theta is the global model that all workers share; each takes H steps of the
inner optimizer from it, to theta_i, and the mean of what they moved is the outer gradient:
Delta = (1/k) sum_i (theta - theta_i),  theta <- OuterOpt(theta, Delta),  theta_i <- theta.
The paper's inner optimizer is AdamW, whose state stays with its worker; its outer one is SGD with Nesterov momentum.
"""

from typing import Any, NamedTuple

import jax
import optax

from ddl.api import Algorithm, Exchange, Hyper, Spec, Taxonomy, Tree, descend
from ddl.group import Group
from ddl.ranges import Momentum, NonNegativeFloat, PositiveInt, checked


class DiLoCoState(NamedTuple):
  inner: optax.OptState
  anchor: Tree  # theta, equal on all workers
  outer: optax.OptState  # equal on all workers


@checked
def diloco(
  inner: optax.GradientTransformation,
  *,
  period: PositiveInt,
  outer_learning_rate: NonNegativeFloat,
  outer_momentum: Momentum,
) -> Algorithm:
  """m <- mu m + Delta; theta <- theta - eta_out (Delta + mu m); x_i <- theta, after every H-th step.

  A rate of 1 without momentum is local SGD; `diloco_with` takes any outer optimizer.

  Args:
    inner: optimizer of each worker; its state is neither averaged nor reset.
    period: local steps per outer step (H).
    outer_learning_rate: eta_out.
    outer_momentum: Nesterov momentum of the outer steps (mu).

  Returns:
    An `Algorithm` that sends differences once per period, tested at theta.
  """
  return diloco_with(inner, optax.sgd(outer_learning_rate, outer_momentum, nesterov=True), period=period)


@checked
def diloco_with(
  inner: optax.GradientTransformation, outer: optax.GradientTransformation, *, period: PositiveInt
) -> Algorithm:
  """`diloco` with any outer optimizer, which gets Delta as the gradient and theta as the parameters."""

  def init(group: Group, params: Tree, key: Any) -> DiLoCoState:
    del group, key
    return DiLoCoState(inner.init(params), params, outer.init(params))

  def local(group: Group, grads: Tree, state: DiLoCoState, params: Tree) -> tuple[Tree, DiLoCoState]:
    del group
    params, inner_state = descend(inner, grads, state.inner, params)  # theta_i <- InnerOpt(theta_i, g_i)
    return params, state._replace(inner=inner_state)

  def launch(group: Group, state: DiLoCoState, params: Tree) -> tuple[Tree, DiLoCoState]:
    moved = jax.tree.map(lambda z, x: z - x, state.anchor, params)  # theta - theta_i
    return group.mean(moved), state  # Delta = (1/k) sum_i (theta - theta_i)

  def merge(group: Group, message: Tree, state: DiLoCoState, params: Tree) -> tuple[Tree, DiLoCoState]:
    del group, params
    anchor, outer_state = descend(outer, message, state.outer, state.anchor)  # theta <- OuterOpt(theta, Delta)
    return anchor, DiLoCoState(state.inner, anchor, outer_state)  # theta_i <- theta

  def evaluate(group: Group, state: DiLoCoState, params: Tree) -> Tree:
    del group, params
    return state.anchor

  return Algorithm(init, local, (Exchange(launch, merge, period),), evaluate)


SPEC = Spec(
  factory=diloco,
  title="DiLoCo",
  citation="Douillard et al. 2023, arXiv 2311.08105",
  taxonomy=Taxonomy("data", "decentralized", "synchronous", "all-reduce", "differences"),
  hyper={
    "period": Hyper("H", 500, "local steps per outer step; the authors' choice is 500"),
    "outer_learning_rate": Hyper("eta_out", 0.7, "rate of the outer steps; the authors' choice is 0.7"),
    "outer_momentum": Hyper("mu", 0.9, "Nesterov momentum of the outer steps; the authors' choice is 0.9"),
  },
)
