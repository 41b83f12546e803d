"""Pipe-SGD."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from ddl.algorithms.collective.sync_sgd import sync_sgd
from ddl.api import Algorithm, Exchange, Spec, Taxonomy, Tree, descend
from ddl.group import Group
from ddl.ranges import PositiveInt, checked


class PipeSGDState(NamedTuple):
  inner: optax.OptState  # equal on all workers
  grads: Tree  # g_i of the last step, which the next message averages


@checked
def pipe_sgd(inner: optax.GradientTransformation, *, width: PositiveInt = 2) -> Algorithm:
  """Average gradients while the next K - 1 gradients are computed (Pipe-SGD).

  x <- x + inner((1/p) sum_i g_i), with g_i from K - 1 steps ago

  Li, Yu, Li, Avestimehr, Kim, Schwing 2018, arXiv 1811.03619. All replicas stay equal. The first K - 1 steps fill the
  pipeline and change nothing; the optimizer does not see them, so each gradient gets the learning rate of the step that
  computed it, and the last K - 1 gradients of a run are not used. K = 1 is synchronous SGD. On a quadratic of curvature
  lambda, K = 2 is stable for eta lambda < 1, half of what synchronous SGD allows.

  Args:
    inner: optimizer, the same on all workers; it receives one gradient per step, in order, and the current parameters.
    width: pipeline width (K): K - 1 messages in flight plus the gradient being computed; 2 in the paper.
  """

  def init(group: Group, params: Tree, key: Any) -> PipeSGDState:
    return PipeSGDState(inner.init(params), jax.tree.map(jnp.zeros_like, params))

  def local(group: Group, grads: Tree, state: PipeSGDState, params: Tree) -> tuple[Tree, PipeSGDState]:
    return params, state._replace(grads=grads)

  def launch(group: Group, state: PipeSGDState, params: Tree) -> tuple[Tree, PipeSGDState]:
    return group.mean(state.grads), state  # g = (1/p) sum_i g_i

  def merge(group: Group, message: Tree, state: PipeSGDState, params: Tree) -> tuple[Tree, PipeSGDState]:
    params, inner_state = descend(inner, message, state.inner, params)  # x <- x - eta g
    return params, state._replace(inner=inner_state)

  exchange = Exchange(launch, merge, period=1, delay=width - 1)
  return sync_sgd(inner)._replace(init=init, local=local, exchanges=(exchange,))


SPEC = Spec(
  factory=pipe_sgd,
  title="Pipe-SGD",
  citation="Li et al. 2018, arXiv 1811.03619",
  taxonomy=Taxonomy("data", "centralized", "delayed", "all-reduce", "gradients"),
  symbols={"width": "K"},
)
