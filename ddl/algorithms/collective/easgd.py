"""Synchronous elastic averaging SGD: workers and a center pull at each other.

Zhang, Choromanska, LeCun 2014, arXiv 1412.6651; Sync EASGD of You, Buluc, Demmel 2017, arXiv 1708.02983, whose
variants 1 and 3 are this one without and with overlap. Jacobi form: both updates use x_i and z from before the step.
x_i(t+1) = x_i(t) - eta g_i(t) - alpha (x_i(t) - z(t)),  z(t+1) = z(t) + alpha sum_i (x_i(t) - z(t)),  alpha = eta rho.
"""

from typing import Any, NamedTuple

import jax
import optax

from ddl.api import Algorithm, Exchange, Hyper, Spec, Taxonomy, Tree, descend
from ddl.group import Group
from ddl.ranges import ElasticRate, PositiveInt, checked


class EASGDState(NamedTuple):
  inner: optax.OptState
  center: Tree  # z, equal on all workers


@checked
def easgd(inner: optax.GradientTransformation, *, alpha: ElasticRate, period: PositiveInt) -> Algorithm:
  """x_i <- x_i + inner(g_i) - alpha (x_i - z); z <- z + alpha sum_i (x_i - z), on the first step of each round.

  The center has no 1/p: its own coefficient is 1 - p alpha, so p alpha (beta in the paper) should not exceed 1, and
  the authors use alpha = 0.9 / p. Without gradients sum_i x_i + z is conserved.

  Args:
    inner: optimizer of each worker; the elastic term stays outside its momentum.
    alpha: elastic rate (eta rho).
    period: steps per exchange (tau); exchanges happen at steps 0, tau, 2 tau, ...

  Returns:
    An `Algorithm` whose differences travel during one step (delay 1), as x_i and z do not change meanwhile.
  """

  def init(group: Group, params: Tree, key: Any) -> EASGDState:
    del group, key
    return EASGDState(inner.init(params), params)

  def local(group: Group, grads: Tree, state: EASGDState, params: Tree) -> tuple[Tree, EASGDState]:
    del group
    params, inner_state = descend(inner, grads, state.inner, params)  # x_i <- x_i - eta g_i
    return params, state._replace(inner=inner_state)

  def launch(group: Group, state: EASGDState, params: Tree) -> tuple[tuple[Tree, Tree], EASGDState]:
    diff = jax.tree.map(lambda x, z: x - z, params, state.center)  # x_i - z, before the step
    return (diff, group.sum(diff)), state  # sum_i (x_i - z)

  def merge(group: Group, message: tuple[Tree, Tree], state: EASGDState, params: Tree) -> tuple[Tree, EASGDState]:
    del group
    diff, total = message
    params = jax.tree.map(lambda x, d: x - alpha * d, params, diff)  # x_i <- x_i - alpha (x_i - z)
    center = jax.tree.map(lambda z, s: z + alpha * s, state.center, total)  # z <- z + alpha sum_i (x_i - z)
    return params, state._replace(center=center)

  def evaluate(group: Group, state: EASGDState, params: Tree) -> Tree:
    del group, params
    return state.center

  return Algorithm(init, local, (Exchange(launch, merge, period, delay=1, offset=-period),), evaluate)


SPEC = Spec(
  factory=easgd,
  title="Sync EASGD",
  citation="Zhang et al. 2014, arXiv 1412.6651; You et al. 2017, arXiv 1708.02983",
  taxonomy=Taxonomy("data", "decentralized", "synchronous", "all-reduce", "differences"),
  hyper={
    "alpha": Hyper("alpha", lambda workers: 0.9 / workers, "elastic rate eta rho; the authors' choice is 0.9 / p"),
    "period": Hyper("tau", 10, "steps per exchange"),
  },
)
