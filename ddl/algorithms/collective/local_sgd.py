"""Local SGD: workers run alone for tau steps, then all take the mean of their models.

Stich 2018, arXiv 1805.09767. The inner optimizer's state stays local; averaging it is another algorithm.
"""

from typing import NamedTuple

import optax

from ddl import collectives
from ddl.api import Algorithm, AxisName, Hyper, Spec, Taxonomy, Tree, descend


class LocalSGDState(NamedTuple):
  inner: optax.OptState


def local_sgd(inner: optax.GradientTransformation, *, period: int, axis_name: AxisName) -> Algorithm:
  """x_i <- x_i + inner(g_i); after every tau-th step x_i <- (1/p) sum_j x_j.

  Args:
    inner: optimizer of each worker.
    period: local steps per average (tau).
    axis_name: the workers' named axis, or a tuple of axes.

  Returns:
    An `Algorithm` that sends parameters once per period.
  """

  def init(params: Tree) -> LocalSGDState:
    return LocalSGDState(inner.init(params))

  def local(grads: Tree, state: LocalSGDState, params: Tree) -> tuple[Tree, LocalSGDState]:
    params, inner_state = descend(inner, grads, state.inner, params)  # x_i <- x_i - eta g_i
    return params, LocalSGDState(inner_state)

  def launch(state: LocalSGDState, params: Tree) -> Tree:
    del state
    return collectives.pmean(params, axis_name)  # xbar = (1/p) sum_j x_j

  def merge(message: Tree, state: LocalSGDState, params: Tree) -> tuple[Tree, LocalSGDState]:
    del params
    return message, state  # x_i <- xbar

  def evaluate(state: LocalSGDState, params: Tree) -> Tree:
    del state
    return collectives.pmean(params, axis_name)

  return Algorithm(init, local, launch, merge, evaluate, period=period)


SPEC = Spec(
  factory=local_sgd,
  title="Local SGD",
  citation="Stich 2018, arXiv 1805.09767",
  taxonomy=Taxonomy("data", "decentralized", "synchronous", "all-reduce", "parameters"),
  hyper={"period": Hyper("tau", 10, "local steps per average")},
)
