"""Local SGD: workers run alone for tau steps, then all take the mean of their models.

Stich 2018, arXiv 1805.09767. The inner optimizer's state stays local; averaging it is another algorithm.
"""

from typing import Any, NamedTuple

import optax

from ddl.api import Algorithm, Exchange, Hyper, Spec, Taxonomy, Tree, descend
from ddl.group import Group


class LocalSGDState(NamedTuple):
  inner: optax.OptState


def local_sgd(inner: optax.GradientTransformation, *, period: int) -> Algorithm:
  """x_i <- x_i + inner(g_i); after every tau-th step x_i <- (1/p) sum_j x_j.

  Args:
    inner: optimizer of each worker.
    period: local steps per average (tau).

  Returns:
    An `Algorithm` that sends parameters once per period.
  """

  def init(group: Group, params: Tree, key: Any) -> LocalSGDState:
    del group, key
    return LocalSGDState(inner.init(params))

  def local(group: Group, grads: Tree, state: LocalSGDState, params: Tree) -> tuple[Tree, LocalSGDState]:
    del group
    params, inner_state = descend(inner, grads, state.inner, params)  # x_i <- x_i - eta g_i
    return params, LocalSGDState(inner_state)

  def launch(group: Group, state: LocalSGDState, params: Tree) -> tuple[Tree, LocalSGDState]:
    return group.mean(params), state  # xbar = (1/p) sum_j x_j

  def merge(group: Group, message: Tree, state: LocalSGDState, params: Tree) -> tuple[Tree, LocalSGDState]:
    del group, params
    return message, state  # x_i <- xbar

  def evaluate(group: Group, state: LocalSGDState, params: Tree) -> Tree:
    del state
    return group.mean(params)

  return Algorithm(init, local, (Exchange(launch, merge, period),), evaluate)


SPEC = Spec(
  factory=local_sgd,
  title="Local SGD",
  citation="Stich 2018, arXiv 1805.09767",
  taxonomy=Taxonomy("data", "decentralized", "synchronous", "all-reduce", "parameters"),
  hyper={"period": Hyper("tau", 10, "local steps per average")},
)
