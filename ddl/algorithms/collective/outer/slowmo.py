"""SlowMo: local SGD whose average is a step with slow momentum, measured in units of the inner learning rate.

Wang, Tantia, Ballas, Rabbat 2019, arXiv 1910.00643, with local SGD as the base algorithm. Each worker takes tau steps
of the base optimizer from the slow model z, at the fast rate gamma; then, with the exact average xbar,
u <- beta u + (z - xbar) / gamma,  z <- z - alpha gamma u,  x_i <- z.
At a constant gamma the two gammas cancel. Where gamma changes between rounds the momentum counts in steps, not in
lengths: divide by the rate of this round, multiply by it again. The paper resets, keeps or averages the buffers of the
base optimizer after a round; here each worker keeps its own.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from ddl.api import Algorithm, Exchange, Hyper, Spec, Taxonomy, Tree, descend
from ddl.group import Group
from ddl.ranges import Momentum, NonNegativeFloat, PositiveInt, checked


class SlowMoState(NamedTuple):
  inner: optax.OptState
  anchor: Tree  # z, equal on all workers
  momentum: Tree  # u, equal on all workers


@checked
def slowmo(
  inner: optax.GradientTransformation, *, period: PositiveInt, slow_rate: NonNegativeFloat, slow_momentum: Momentum
) -> Algorithm:
  """u <- beta u + (z - xbar) / gamma; z <- z - alpha gamma u; x_i <- z, after every tau-th step.

  A slow rate of 1 without slow momentum is local SGD.

  Args:
    inner: base optimizer of each worker; its state is neither averaged nor reset. gamma is the "learning_rate" of the
      "hyperparams" in its state, as `optax.inject_hyperparams` records them, at the last step; of nested records the
      innermost. Any other optimizer counts as one of constant rate, gamma = 1. Where gamma is 0, as in the first step
      of a warm-up, u <- beta u alone.
    period: local steps per slow step (tau).
    slow_rate: alpha.
    slow_momentum: beta.

  Returns:
    An `Algorithm` that sends parameters once per period, tested at z. Its `init` raises ValueError if several
    transformations of a chain, or of a partition, record a learning rate each.
  """

  def init(group: Group, params: Tree, key: Any) -> SlowMoState:
    del group, key
    inner_state = inner.init(params)
    fast_rate(inner_state)  # raises for more than one
    return SlowMoState(inner_state, params, jax.tree.map(jnp.zeros_like, params))

  def local(group: Group, grads: Tree, state: SlowMoState, params: Tree) -> tuple[Tree, SlowMoState]:
    del group
    params, inner_state = descend(inner, grads, state.inner, params)  # x_i <- x_i - gamma d_i
    return params, state._replace(inner=inner_state)

  def launch(group: Group, state: SlowMoState, params: Tree) -> tuple[Tree, SlowMoState]:
    return group.mean(params), state  # xbar = (1/p) sum_j x_j

  def merge(group: Group, message: Tree, state: SlowMoState, params: Tree) -> tuple[Tree, SlowMoState]:
    del group, params
    gamma = fast_rate(state.inner)
    momentum = jax.tree.map(  # u <- beta u + (z - xbar) / gamma
      lambda u, z, mean: slow_momentum * u + (z - mean) / or_one(gamma(u)), state.momentum, state.anchor, message
    )
    anchor = jax.tree.map(lambda z, u: z - slow_rate * gamma(u) * u, state.anchor, momentum)  # z <- z - alpha gamma u
    return anchor, SlowMoState(state.inner, anchor, momentum)  # x_i <- z

  def evaluate(group: Group, state: SlowMoState, params: Tree) -> Tree:
    del group, params
    return state.anchor

  return Algorithm(init, local, (Exchange(launch, merge, period),), evaluate)


def or_one(gamma: jax.Array) -> jax.Array:
  """For a division of what is zero where gamma is."""
  return jnp.where(gamma == 0, jnp.ones_like(gamma), gamma)


def fast_rate(state: optax.OptState) -> Callable[[jax.Array], jax.Array]:
  """Return the learning rate gamma recorded in an inner state, as a function of the array whose type it takes.

  Of nested records the innermost is the one that scales the updates. Without any, gamma is 1.

  Raises:
    ValueError: if several transformations side by side record one.
  """
  rates = recorded_rates(state)
  if len(rates) > 1:
    raise ValueError(
      f"slowmo: inner must record one learning_rate, got {len(rates)}; use optax.inject_hyperparams for one of them"
    )
  return lambda x: jnp.asarray(rates[0] if rates else 1.0, x.dtype)


def recorded_rates(state: optax.OptState) -> list[Any]:
  """Return each learning rate that `optax.inject_hyperparams` records in a state, without those around others."""

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
  hyper={
    "period": Hyper("tau", 12, "local steps per slow step"),
    "slow_rate": Hyper("alpha", 1.0, "rate of the slow steps; the authors' choice is 1"),
    "slow_momentum": Hyper("beta", 0.5, "momentum of the slow steps; larger for more workers"),
  },
)
