"""Synchronous elastic averaging SGD."""

from typing import Any, NamedTuple

import jax
import optax

from ddl.api import Algorithm, Exchange, Spec, Taxonomy, Tree, inner_step
from ddl.group import Group
from ddl.ranges import ByWorkers, ElasticRate, PositiveInt, checked

ALPHA: Any = ByWorkers("0.9 / p", lambda p: 0.9 / p)


class EASGDState(NamedTuple):
  inner: optax.OptState
  center: Tree  # z, equal on all workers


@checked
def easgd(
  inner: optax.GradientTransformation,
  *,
  alpha: ElasticRate = ALPHA,
  period: PositiveInt = 10,
  workers: PositiveInt | None = None,
) -> Algorithm:
  """Pull the workers and a center towards each other (synchronous elastic averaging SGD).

  x_i <- x_i + inner(g_i) - alpha (x_i - z); z <- z + alpha sum_i (x_i - z);
  the terms with alpha only in every tau-th step

  Zhang, Choromanska, LeCun 2014, arXiv 1412.6651; Sync EASGD of You, Buluc, Demmel 2017, arXiv 1708.02983. Jacobi form:
  both updates use x_i and z from before the step. The coefficient of z is 1 - p alpha, so p alpha (beta in Zhang et
  al.) should not exceed 1. Without gradients sum_i x_i + z is conserved. The differences x_i - z are in flight for one
  step (delay 1): they are computed before the step and applied after it. The evaluated model is z.

  Args:
    inner: optimizer of each worker; the elastic term is not part of its momentum.
    alpha: elastic rate (eta rho); by default 0.9 / p, as in Zhang et al. 2014.
    period: steps per exchange (tau); exchanges happen at steps 0, tau, 2 tau, ...
    workers: number of workers (p), for the default of alpha.
  """

  def init(group: Group, params: Tree, key: Any) -> EASGDState:
    return EASGDState(inner.init(params), params)

  def launch(group: Group, state: EASGDState, params: Tree) -> tuple[tuple[Tree, Tree], EASGDState]:
    diff = jax.tree.map(lambda x, z: x - z, params, state.center)  # x_i - z, before the step
    return (diff, group.sum(diff)), state  # sum_i (x_i - z)

  def merge(group: Group, message: tuple[Tree, Tree], state: EASGDState, params: Tree) -> tuple[Tree, EASGDState]:
    diff, total = message
    params = jax.tree.map(lambda x, d: x - alpha * d, params, diff)  # x_i <- x_i - alpha (x_i - z)
    center = jax.tree.map(lambda z, s: z + alpha * s, state.center, total)  # z <- z + alpha sum_i (x_i - z)
    return params, state._replace(center=center)

  def evaluate(group: Group, state: EASGDState, params: Tree) -> Tree:
    return state.center

  return Algorithm(init, inner_step(inner), (Exchange(launch, merge, period, delay=1, offset=-period),), evaluate)


SPEC = Spec(
  factory=easgd,
  title="Sync EASGD",
  citation="Zhang et al. 2014, arXiv 1412.6651; You et al. 2017, arXiv 1708.02983",
  taxonomy=Taxonomy("data", "decentralized", "synchronous", "all-reduce", "differences"),
  symbols={"alpha": "alpha", "period": "tau"},
)
