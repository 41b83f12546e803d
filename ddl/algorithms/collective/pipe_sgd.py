"""Pipe-SGD: synchronous SGD whose mean gradients are in flight while the next K - 1 gradients are computed.

Li, Yu, Li, Avestimehr, Kim, Schwing 2018, arXiv 1811.03619. Every worker applies the same mean, so that all replicas
stay equal; with a pipeline of width K each gradient is exactly K - 1 steps old when it is applied:
x(t+1) = x(t) - eta (1/p) sum_i g_i(x(t - K + 1)),
and the first K - 1 steps, while the pipeline fills, change nothing. The optimizer does not see these steps, so that its
schedule starts K - 1 steps late: each gradient gets the rate of the step that computed it, and the last K - 1 rates and
gradients of a run are not used. On a quadratic of curvature lambda K = 2 is stable for eta lambda < 1, half of what
synchronous SGD allows.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from ddl.api import Algorithm, Exchange, Hyper, Spec, Taxonomy, Tree, descend
from ddl.group import Group
from ddl.ranges import PositiveInt, checked


class PipeSGDState(NamedTuple):
  inner: optax.OptState  # equal on all workers
  grads: Tree  # g_i of the last step, which leaves next


@checked
def pipe_sgd(inner: optax.GradientTransformation, *, width: PositiveInt) -> Algorithm:
  """x <- x + inner((1/p) sum_i g_i), with g_i of K - 1 steps ago; a width of 1 is synchronous SGD.

  Args:
    inner: optimizer, the same on all workers; it sees one gradient a step, in order, and the parameters of now.
    width: of the pipeline (K): the messages in flight, and one gradient in the making.

  Returns:
    An `Algorithm` that sends gradients at each step, K - 1 steps long.

  Raises:
    ValueError: if width is below 1.
  """

  def init(group: Group, params: Tree, key: Any) -> PipeSGDState:
    del group, key
    return PipeSGDState(inner.init(params), jax.tree.map(jnp.zeros_like, params))

  def local(group: Group, grads: Tree, state: PipeSGDState, params: Tree) -> tuple[Tree, PipeSGDState]:
    del group
    return params, state._replace(grads=grads)

  def launch(group: Group, state: PipeSGDState, params: Tree) -> tuple[Tree, PipeSGDState]:
    del params
    return group.mean(state.grads), state  # g = (1/p) sum_i g_i

  def merge(group: Group, message: Tree, state: PipeSGDState, params: Tree) -> tuple[Tree, PipeSGDState]:
    del group
    params, inner_state = descend(inner, message, state.inner, params)  # x <- x - eta g
    return params, state._replace(inner=inner_state)

  def evaluate(group: Group, state: PipeSGDState, params: Tree) -> Tree:
    del group, state
    return params

  return Algorithm(init, local, (Exchange(launch, merge, period=1, delay=width - 1),), evaluate)


SPEC = Spec(
  factory=pipe_sgd,
  title="Pipe-SGD",
  citation="Li et al. 2018, arXiv 1811.03619",
  taxonomy=Taxonomy("data", "centralized", "delayed", "all-reduce", "gradients"),
  hyper={"width": Hyper("K", 2, "width of the pipeline: gradients are K - 1 steps old; the authors' choice is 2")},
)
