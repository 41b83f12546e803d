"""Round robin EASGD."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from ddl.algorithms.collective.easgd import ALPHA, easgd
from ddl.api import Algorithm, Spec, Taxonomy, Tree
from ddl.group import Group
from ddl.ranges import PositiveInt, UnitInterval, checked


class RoundRobinEASGDState(NamedTuple):
  inner: optax.OptState
  center: Tree  # z, equal on all workers
  rank: jax.Array  # [] int32: t mod p, the rank that exchanges at this step


@checked
def round_robin_easgd(
  inner: optax.GradientTransformation, *, alpha: UnitInterval = ALPHA, workers: PositiveInt | None = None
) -> Algorithm:
  """Pull one worker per step and a center towards each other, in rank order (Original EASGD).

  x_i <- x_i + inner(g_i); then, only for j = t mod p, x_j -= alpha (x_j - z) and z += alpha (x_j - z)

  You, Buluc, Demmel 2017, arXiv 1708.02983, after Zhang et al. 2014, arXiv 1412.6651. Both updates use x_j and z from
  before the step. In the paper the other workers are idle during an exchange; here every worker computes a gradient at
  each step. Traffic is counted for worker j only, which sends and receives n bytes, the size of the model: on average
  2 n / p bytes per worker and step. The program sends more, because all workers take part in a sum. On a quadratic of
  curvature 1 the algorithm is stable for 0 <= eta <= 2 and 0 <= alpha <= (4 - 2 eta) / (4 - eta). The difference
  x_j - z is in flight for one step; the evaluated model is z.

  Args:
    inner: optimizer of each worker; the elastic term is not part of its momentum.
    alpha: elastic rate (eta rho); by default 0.9 / p, as in EASGD.
    workers: number of workers (p), for the default of alpha.
  """

  def init(group: Group, params: Tree, key: Any) -> RoundRobinEASGDState:
    return RoundRobinEASGDState(inner.init(params), params, jnp.zeros((), jnp.int32))

  def launch(group: Group, state: RoundRobinEASGDState, params: Tree) -> tuple[tuple[Tree, Tree], RoundRobinEASGDState]:
    mine = group.index() == state.rank  # i = j
    diff = jax.tree.map(lambda x, z: jnp.where(mine, x - z, jnp.zeros_like(z)), params, state.center)
    return (diff, group.partial_sum(diff, mine, 1)), state  # x_j - z, on all workers

  def merge(
    group: Group, message: tuple[Tree, Tree], state: RoundRobinEASGDState, params: Tree
  ) -> tuple[Tree, RoundRobinEASGDState]:
    # x_j <- x_j - alpha (x_j - z), z <- z + alpha (x_j - z); for other workers the difference is 0
    params, state = exchange.merge(group, message, state, params)
    return params, state._replace(rank=(state.rank + 1) % group.size())  # j = (t + 1) mod p

  elastic = easgd(inner, alpha=alpha, period=1)
  (exchange,) = elastic.exchanges
  return elastic._replace(init=init, exchanges=(exchange._replace(launch=launch, merge=merge),))


SPEC = Spec(
  factory=round_robin_easgd,
  title="Round robin EASGD (Original EASGD)",
  citation="Zhang et al. 2014, arXiv 1412.6651; You et al. 2017, arXiv 1708.02983",
  taxonomy=Taxonomy("data", "decentralized", "synchronous", "round robin", "differences"),
  symbols={"alpha": "alpha"},
)
