"""DiLoCo."""

from typing import Any, NamedTuple

import jax
import optax

from ddl.api import Algorithm, Exchange, Spec, Taxonomy, Tree, descend, inner_step
from ddl.group import Group
from ddl.ranges import Momentum, OuterRate, Period, checked


class DiLoCoState(NamedTuple):
  inner: optax.OptState
  anchor: Tree  # theta, equal on all workers
  outer: optax.OptState  # equal on all workers


@checked
def diloco(
  inner: optax.GradientTransformation,
  *,
  period: Period = 500,
  outer_learning_rate: OuterRate = 0.7,
  outer_momentum: Momentum = 0.9,
) -> Algorithm:
  """Average local progress and apply it with an outer Nesterov optimizer (DiLoCo).

  m <- mu m + Delta; theta <- theta - eta_out (Delta + mu m); x_i <- theta, after every H-th step

  Douillard et al. 2023, arXiv 2311.08105. The outer gradient is Delta = (1/p) sum_i (theta - theta_i), where worker i
  reaches theta_i from theta by H steps of the inner optimizer (AdamW in the paper). With an outer rate of 1 and
  no outer momentum this is local SGD. `diloco_with` takes any outer optimizer. The evaluated model is theta.

  Args:
    inner: optimizer of each worker; its state is neither averaged nor reset.
    period: local steps per outer step (H), or a function of the round such as `ddl.qsr`; 500 in the paper.
    outer_learning_rate: rate of the outer steps (eta_out), or an optax schedule of it; 0.7 in the paper.
    outer_momentum: Nesterov momentum of the outer steps (mu); 0.9 in the paper.
  """
  return diloco_with(inner, optax.sgd(outer_learning_rate, outer_momentum, nesterov=True), period=period)


@checked
def diloco_with(
  inner: optax.GradientTransformation, outer: optax.GradientTransformation, *, period: Period
) -> Algorithm:
  """Return `diloco` with any outer optimizer: Delta is its gradient, theta its parameters."""

  def init(group: Group, params: Tree, key: Any) -> DiLoCoState:
    return DiLoCoState(inner.init(params), params, outer.init(params))

  def launch(group: Group, state: DiLoCoState, params: Tree) -> tuple[Tree, DiLoCoState]:
    moved = jax.tree.map(lambda z, x: z - x, state.anchor, params)  # theta - theta_i
    return group.mean(moved), state  # Delta = (1/p) sum_i (theta - theta_i)

  def merge(group: Group, message: Tree, state: DiLoCoState, params: Tree) -> tuple[Tree, DiLoCoState]:
    anchor, outer_state = descend(outer, message, state.outer, state.anchor)  # theta <- OuterOpt(theta, Delta)
    return anchor, DiLoCoState(state.inner, anchor, outer_state)  # theta_i <- theta

  def evaluate(group: Group, state: DiLoCoState, params: Tree) -> Tree:
    return state.anchor

  return Algorithm(init, inner_step(inner), (Exchange(launch, merge, period),), evaluate)


SPEC = Spec(
  factory=diloco,
  title="DiLoCo",
  citation="Douillard et al. 2023, arXiv 2311.08105",
  taxonomy=Taxonomy("data", "decentralized", "synchronous", "all-reduce", "differences"),
  symbols={"period": "H", "outer_learning_rate": "eta_out", "outer_momentum": "mu"},
)
