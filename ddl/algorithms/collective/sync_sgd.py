"""Synchronous SGD: every worker applies the mean of all gradients, so all replicas stay equal.

Das et al. 2016, arXiv 1602.06709: no change of algorithm, only of where the minibatch lives.
"""

from typing import NamedTuple

import optax

from ddl import collectives
from ddl.api import Algorithm, AxisName, Spec, Taxonomy, Tree, descend


class SyncSGDState(NamedTuple):
  inner: optax.OptState


def sync_sgd(inner: optax.GradientTransformation, *, axis_name: AxisName) -> Algorithm:
  """Mean gradient at each step: x <- x + inner((1/p) sum_i g_i).

  With equal batches this is SGD on the global minibatch of p times the size.

  Args:
    inner: optimizer, the same on all workers.
    axis_name: the workers' named axis, or a tuple of axes.

  Returns:
    An `Algorithm` with period 1 whose collective is in `local`.
  """

  def init(params: Tree) -> SyncSGDState:
    return SyncSGDState(inner.init(params))

  def local(grads: Tree, state: SyncSGDState, params: Tree) -> tuple[Tree, SyncSGDState]:
    mean = collectives.pmean(grads, axis_name)  # g = (1/p) sum_i g_i
    params, inner_state = descend(inner, mean, state.inner, params)  # x <- x - eta g
    return params, SyncSGDState(inner_state)

  def evaluate(state: SyncSGDState, params: Tree) -> Tree:
    del state
    return params

  return Algorithm(init, local, None, None, evaluate)


SPEC = Spec(
  factory=sync_sgd,
  title="Synchronous SGD",
  citation="Das et al. 2016, arXiv 1602.06709",
  taxonomy=Taxonomy("data", "centralized", "synchronous", "all-reduce", "gradients"),
  hyper={},
)
