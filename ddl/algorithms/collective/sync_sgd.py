"""Synchronous SGD: every worker applies the mean of all gradients, so all replicas stay equal.

Das et al. 2016, arXiv 1602.06709: no change of algorithm, only of where the minibatch lives.
"""

from typing import Any, NamedTuple

import optax

from ddl.api import Algorithm, Spec, Taxonomy, Tree, descend
from ddl.group import Group


class SyncSGDState(NamedTuple):
  inner: optax.OptState


def sync_sgd(inner: optax.GradientTransformation) -> Algorithm:
  """Mean gradient at each step: x <- x + inner((1/p) sum_i g_i).

  With equal batches this is SGD on the global minibatch of p times the size.

  Args:
    inner: optimizer, the same on all workers.

  Returns:
    An `Algorithm` whose collective is in `local`.
  """

  def init(group: Group, params: Tree, key: Any) -> SyncSGDState:
    del group, key
    return SyncSGDState(inner.init(params))

  def local(group: Group, grads: Tree, state: SyncSGDState, params: Tree) -> tuple[Tree, SyncSGDState]:
    mean = group.mean(grads)  # g = (1/p) sum_i g_i
    params, inner_state = descend(inner, mean, state.inner, params)  # x <- x - eta g
    return params, SyncSGDState(inner_state)

  def evaluate(group: Group, state: SyncSGDState, params: Tree) -> Tree:
    del group, state
    return params

  return Algorithm(init, local, (), evaluate)


SPEC = Spec(
  factory=sync_sgd,
  title="Synchronous SGD",
  citation="Das et al. 2016, arXiv 1602.06709",
  taxonomy=Taxonomy("data", "centralized", "synchronous", "all-reduce", "gradients"),
  hyper={},
)
