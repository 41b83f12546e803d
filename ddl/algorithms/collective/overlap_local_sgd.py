"""Overlap-Local-SGD."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from ddl.api import Algorithm, Exchange, Spec, Taxonomy, Tree, inner_step
from ddl.group import Group
from ddl.ranges import Momentum, PositiveInt, UnitInterval, checked


class OverlapState(NamedTuple):
  inner: optax.OptState
  anchor: Tree  # z, equal on all workers
  velocity: Tree  # v, equal on all workers


@checked
def overlap_local_sgd(
  inner: optax.GradientTransformation, *, period: PositiveInt = 2, pull: UnitInterval = 0.6, momentum: Momentum = 0.7
) -> Algorithm:
  """Pull each worker towards an anchor that is updated with the previous round's average (Overlap-Local-SGD).

  v <- beta v + z - xbar; z <- z - v; x_i <- (1 - alpha) x_i + alpha z, every tau steps, with xbar from tau steps ago

  Wang, Liang, Joshi 2020, arXiv 2002.09539. xbar is the mean of the models just after a pull. Without momentum this is
  DaSGD with a delay of one period and xi = 1 - alpha. The authors' code divides by the learning rate in v and
  multiplies by it in z, which is equivalent at a constant rate; as in that code, the anchor equals the initial model
  after the first round. With alpha = 0 the workers never synchronize. The first average is sent before step 0. The
  evaluated model is the mean of the workers' models.

  Args:
    inner: optimizer of each worker; its state is never averaged.
    period: local steps between pulls, and steps for which an average is in flight (tau); 2 in the paper.
    pull: weight of the anchor (alpha); 0.6 in the paper.
    momentum: momentum of the anchor (beta); 0.7 in the paper.
  """

  def init(group: Group, params: Tree, key: Any) -> OverlapState:
    return OverlapState(inner.init(params), params, jax.tree.map(jnp.zeros_like, params))

  def launch(group: Group, state: OverlapState, params: Tree) -> tuple[Tree, OverlapState]:
    return group.mean(params), state  # xbar = (1/p) sum_j x_j

  def merge(group: Group, message: Tree, state: OverlapState, params: Tree) -> tuple[Tree, OverlapState]:
    velocity = jax.tree.map(  # v <- beta v + (z - xbar)
      lambda v, z, mean: momentum * v + (z - mean), state.velocity, state.anchor, message
    )
    anchor = jax.tree.map(lambda z, v: z - v, state.anchor, velocity)  # z <- z - v
    params = jax.tree.map(lambda x, z: (1 - pull) * x + pull * z, params, anchor)  # x_i <- (1 - alpha) x_i + alpha z
    return params, OverlapState(state.inner, anchor, velocity)

  def evaluate(group: Group, state: OverlapState, params: Tree) -> Tree:
    return group.mean(params)

  return Algorithm(init, inner_step(inner), (Exchange(launch, merge, period, delay=period, offset=-period),), evaluate)


SPEC = Spec(
  factory=overlap_local_sgd,
  title="Overlap-Local-SGD",
  citation="Wang et al. 2020, arXiv 2002.09539",
  taxonomy=Taxonomy("data", "decentralized", "delayed", "all-reduce", "parameters"),
  symbols={"period": "tau", "pull": "alpha", "momentum": "beta"},
)
