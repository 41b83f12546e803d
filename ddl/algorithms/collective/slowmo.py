"""SlowMo."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from ddl.api import Algorithm, Exchange, Spec, Taxonomy, Tree, inner_step
from ddl.group import Group
from ddl.ranges import Momentum, OuterRate, Period, checked


class SlowMoState(NamedTuple):
  inner: optax.OptState
  anchor: Tree  # z, equal on all workers
  momentum: Tree  # u, equal on all workers
  outer: optax.OptState  # the count of slow steps, if the rate is a schedule


@checked
def slowmo(
  inner: optax.GradientTransformation,
  *,
  period: Period = 12,
  slow_rate: OuterRate = 1.0,
  slow_momentum: Momentum = 0.5,
) -> Algorithm:
  """Average the models, then take a momentum step whose gradient is the round's progress (SlowMo).

  u <- beta u + (z - xbar) / gamma; z <- z - alpha gamma u; x_i <- z, after every tau-th step

  Wang, Tantia, Ballas, Rabbat 2019, arXiv 1910.00643, with local SGD as the base algorithm. gamma is the inner learning
  rate; it cancels if it is constant. The paper resets, keeps or averages the buffers of the base optimizer after a
  round; here each worker keeps its buffers. With a slow rate of 1 and no slow momentum this is local SGD. The evaluated
  model is z. `init` raises ValueError if several transformations of a chain or partition record a learning rate.

  Args:
    inner: base optimizer of each worker; its state is neither averaged nor reset. gamma is the latest "learning_rate"
      that `optax.inject_hyperparams` recorded in this state (the innermost of nested records), or 1 without a record.
      If gamma is 0, as in the first step of a warm-up, u <- beta u + z - xbar, and z does not change.
    period: local steps per slow step (tau), or a function of the round such as `ddl.qsr`.
    slow_rate: rate of the slow steps (alpha), or an optax schedule of it; 1 in the paper.
    slow_momentum: momentum of the slow steps (beta); use larger values for more workers.
  """
  outer = optax.scale_by_learning_rate(slow_rate, flip_sign=False)

  def init(group: Group, params: Tree, key: Any) -> SlowMoState:
    inner_state = inner.init(params)
    fast_rate("slowmo", inner_state)  # raises for more than one
    return SlowMoState(inner_state, params, jax.tree.map(jnp.zeros_like, params), outer.init(params))

  def launch(group: Group, state: SlowMoState, params: Tree) -> tuple[Tree, SlowMoState]:
    return group.mean(params), state  # xbar = (1/p) sum_j x_j

  def merge(group: Group, message: Tree, state: SlowMoState, params: Tree) -> tuple[Tree, SlowMoState]:
    gamma = fast_rate("slowmo", state.inner)
    momentum = jax.tree.map(  # u <- beta u + (z - xbar) / gamma
      lambda u, z, mean: slow_momentum * u + (z - mean) / or_one(gamma(u)), state.momentum, state.anchor, message
    )
    rate, outer_state = outer.update(jax.tree.map(gamma, momentum), state.outer)  # alpha gamma
    anchor = jax.tree.map(lambda z, r, u: z - r * u, state.anchor, rate, momentum)  # z <- z - alpha gamma u
    return anchor, SlowMoState(state.inner, anchor, momentum, outer_state)  # x_i <- z

  def evaluate(group: Group, state: SlowMoState, params: Tree) -> Tree:
    return state.anchor

  return Algorithm(init, inner_step(inner), (Exchange(launch, merge, period),), evaluate)


def or_one(gamma: jax.Array) -> jax.Array:
  """Return gamma, or 1 if gamma is 0, to avoid division by zero."""
  return jnp.where(gamma == 0, jnp.ones_like(gamma), gamma)


def fast_rate(algorithm: str, state: optax.OptState) -> Callable[[jax.Array], jax.Array]:
  """Return a function that maps an array to gamma, in the array's dtype.

  gamma is the learning rate that the inner optimizer's state records, or 1 without a record. algorithm: the algorithm's
  name, for the error.

  Raises:
    ValueError: if several transformations record a learning rate.
  """
  rates = recorded_rates(state)
  if len(rates) > 1:
    raise ValueError(
      f"{algorithm}.inner must record at most one learning_rate, got {len(rates)}. Use optax.inject_hyperparams once."
    )
  return lambda x: jnp.asarray(rates[0] if rates else 1.0, x.dtype)


def recorded_rates(state: optax.OptState) -> list[Any]:
  """Return the learning rates that `optax.inject_hyperparams` recorded in a state; of nested records, the innermost."""

  def records(part: Any) -> bool:
    return "learning_rate" in getattr(part, "hyperparams", ())

  parts = filter(records, jax.tree.leaves(state, is_leaf=records))
  return [
    rate for x in parts for rate in recorded_rates(getattr(x, "inner_state", ())) or [x.hyperparams["learning_rate"]]
  ]


SPEC = Spec(
  factory=slowmo,
  title="SlowMo",
  citation="Wang et al. 2019, arXiv 1910.00643",
  taxonomy=Taxonomy("data", "decentralized", "synchronous", "all-reduce", "parameters"),
  symbols={"period": "tau", "slow_rate": "alpha", "slow_momentum": "beta"},
)
