"""Overlap-Local-SGD: an anchor model, whose average is in flight for a whole round, pulls at every worker.

Wang, Liang, Joshi 2020, arXiv 2002.09539. After every tau-th step the anchor z that left one round ago arrives, with
momentum v, and then the next one leaves:
x_i <- (1 - alpha) x_i + alpha z,
v <- beta v + (z - xbar),  z <- z - v,  xbar = (1/m) sum_j x_j of the models that were just pulled.
Without momentum z is the mean xbar: DaSGD with a delay of one period and xi = 1 - alpha. The authors' code divides by
the learning rate in v and multiplies by it in z, which is the same while that rate stays.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from ddl.api import Algorithm, Exchange, Hyper, Spec, Taxonomy, Tree, descend
from ddl.group import Group
from ddl.ranges import Momentum, PositiveInt, UnitInterval, checked


class OverlapState(NamedTuple):
  inner: optax.OptState
  anchor: Tree  # z, equal on all workers
  velocity: Tree  # v, equal on all workers


@checked
def overlap_local_sgd(
  inner: optax.GradientTransformation, *, period: PositiveInt, pull: UnitInterval, momentum: Momentum
) -> Algorithm:
  """v <- beta v + z - xbar; z <- z - v; x_i <- (1 - alpha) x_i + alpha z, xbar of the round before, each tau steps.

  After the first round the anchor is still the start, as in the authors' code. A pull of 0 never synchronises; with a
  pull of 1 and no momentum every round ends where the one before began.

  Args:
    inner: optimizer of each worker; its state is never averaged.
    period: local steps per anchor, and steps that it is in flight (tau).
    pull: weight of the anchor (alpha), 0..1.
    momentum: of the anchor (beta).

  Returns:
    An `Algorithm` that sends parameters once per period, first before step 0, when all know their mean already; tested
    at the mean of the models.

  Raises:
    ValueError: if pull is not in 0..1.
  """

  def init(group: Group, params: Tree, key: Any) -> OverlapState:
    del group, key
    return OverlapState(inner.init(params), params, jax.tree.map(jnp.zeros_like, params))

  def local(group: Group, grads: Tree, state: OverlapState, params: Tree) -> tuple[Tree, OverlapState]:
    del group
    params, inner_state = descend(inner, grads, state.inner, params)  # x_i <- x_i - eta g_i
    return params, state._replace(inner=inner_state)

  def launch(group: Group, state: OverlapState, params: Tree) -> tuple[Tree, OverlapState]:
    return group.mean(params), state  # xbar = (1/m) sum_j x_j

  def merge(group: Group, message: Tree, state: OverlapState, params: Tree) -> tuple[Tree, OverlapState]:
    del group
    velocity = jax.tree.map(  # v <- beta v + (z - xbar)
      lambda v, z, mean: momentum * v + (z - mean), state.velocity, state.anchor, message
    )
    anchor = jax.tree.map(lambda z, v: z - v, state.anchor, velocity)  # z <- z - v
    params = jax.tree.map(lambda x, z: (1 - pull) * x + pull * z, params, anchor)  # x_i <- (1 - alpha) x_i + alpha z
    return params, OverlapState(state.inner, anchor, velocity)

  def evaluate(group: Group, state: OverlapState, params: Tree) -> Tree:
    del state
    return group.mean(params)

  return Algorithm(init, local, (Exchange(launch, merge, period, delay=period, offset=-period),), evaluate)


SPEC = Spec(
  factory=overlap_local_sgd,
  title="Overlap-Local-SGD",
  citation="Wang et al. 2020, arXiv 2002.09539",
  taxonomy=Taxonomy("data", "decentralized", "delayed", "all-reduce", "parameters"),
  hyper={
    "period": Hyper("tau", 2, "local steps per anchor, and steps that it is in flight; the authors' choice is 2"),
    "pull": Hyper("alpha", 0.6, "weight of the anchor; the authors' choice is 0.6"),
    "momentum": Hyper("beta", 0.7, "momentum of the anchor; the authors' choice is 0.7"),
  },
)
