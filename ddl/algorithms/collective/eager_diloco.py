"""Eager DiLoCo."""

from typing import Any, NamedTuple

import jax
import optax

from ddl.api import Algorithm, Exchange, Spec, Taxonomy, Tree, descend, inner_step
from ddl.group import Group
from ddl.ranges import Momentum, NonNegativeInt, OuterRate, PositiveInt, checked


class EagerDiLoCoState(NamedTuple):
  inner: optax.OptState
  anchor: Tree  # theta_i
  outer: optax.OptState
  sent: Tree  # x_i at the last launch, plus all later changes of x_i by merges; the next D_i is `sent` - x_i


@checked
def eager_diloco(
  inner: optax.GradientTransformation,
  *,
  period: PositiveInt = 500,
  outer_learning_rate: OuterRate = 0.7,
  outer_momentum: Momentum = 0.9,
) -> Algorithm:
  """Overlap DiLoCo's all-reduce with the next round, but apply each worker's own change at once (Eager DiLoCo).

  m_i <- mu m_i + Delta_i; theta_i <- theta_i - eta_out (Delta_i + mu m_i); x_i <- theta_i, after every H-th step,
  Delta_i = (1/p) D_i(t) + [(1/p) sum_j D_j(t-1) - (1/p) D_i(t-1)],  D_i(t) = theta_i - x_i in round t

  Kale, Douillard, Donchev 2025, arXiv 2502.12996. Each worker has its own outer model theta_i and outer optimizer
  state. Every worker applies each D_j exactly once, so with SGD as the outer optimizer the models differ by at most one
  round's progress. On a quadratic, with the default outer optimizer and 8 workers, training is stable if a round moves
  a worker by at most 0.45 of its distance to the minimum. The limit is 0.36 if D_i is also applied one round late, and
  1 in DiLoCo. If a wrapper compresses the means, the other workers receive the compressed D_i, and Delta_i contains the
  compression error of D_i, which error feedback compensates in later rounds. `eager_diloco_with` takes any outer
  optimizer and delay. The evaluated model is the mean of the theta_i. The first message is sent before step 0 and is
  zero.

  Args:
    inner: optimizer of each worker; its state is neither averaged nor reset.
    period: local steps per outer step, and steps for which an outer gradient is in flight (H); 500 as in DiLoCo.
    outer_learning_rate: rate of the outer steps (eta_out), or an optax schedule of it; 0.7 as in DiLoCo.
    outer_momentum: Nesterov momentum of the outer steps (mu); 0.9 as in DiLoCo.
  """
  outer = optax.sgd(outer_learning_rate, outer_momentum, nesterov=True)
  return eager_diloco_with(inner, outer, period=period, delay=period)


@checked
def eager_diloco_with(
  inner: optax.GradientTransformation,
  outer: optax.GradientTransformation,
  *,
  period: PositiveInt,
  delay: NonNegativeInt,
) -> Algorithm:
  """Return `eager_diloco` with any outer optimizer and messages that are in flight for `delay` steps.

  delay = 0 is DiLoCo. With a delay below H, a worker's own D_i covers its last H steps, and the D_j of other workers
  cover the H steps before these D_j were sent.
  """

  def init(group: Group, params: Tree, key: Any) -> EagerDiLoCoState:
    return EagerDiLoCoState(inner.init(params), params, outer.init(params), params)

  def launch(group: Group, state: EagerDiLoCoState, params: Tree) -> tuple[Tree, EagerDiLoCoState]:
    moved = jax.tree.map(lambda s, x: s - x, state.sent, params)  # D_i(t)
    late = jax.tree.map(lambda mean, mine: mean - mine / group.size(), group.mean(moved), moved)
    return late, state._replace(sent=params)  # (1/p) sum_j D_j(t) - (1/p) D_i(t)

  def merge(group: Group, message: Tree, state: EagerDiLoCoState, params: Tree) -> tuple[Tree, EagerDiLoCoState]:
    delta = jax.tree.map(  # Delta_i = (1/p) D_i(t) + [...], D_i(t) = theta_i - x_i
      lambda z, x, late: (z - x) / group.size() + late, state.anchor, params, message
    )
    anchor, outer_state = descend(outer, delta, state.outer, state.anchor)  # theta_i <- OuterOpt(theta_i, Delta_i)
    sent = jax.tree.map(lambda s, z, x: s + (z - x), state.sent, anchor, params)
    return anchor, EagerDiLoCoState(state.inner, anchor, outer_state, sent)  # x_i <- theta_i

  def evaluate(group: Group, state: EagerDiLoCoState, params: Tree) -> Tree:
    return group.mean(state.anchor)

  exchange = Exchange(launch, merge, period, delay, offset=-period if delay else 0)
  return Algorithm(init, inner_step(inner), (exchange,), evaluate)


SPEC = Spec(
  factory=eager_diloco,
  title="Eager DiLoCo",
  citation="Kale et al. 2025, arXiv 2502.12996",
  taxonomy=Taxonomy("data", "decentralized", "delayed", "all-reduce", "differences"),
  symbols={"period": "H", "outer_learning_rate": "eta_out", "outer_momentum": "mu"},
)
