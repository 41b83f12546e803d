"""SMA, synchronous model averaging of Crossbow."""

from typing import Any, NamedTuple

import jax
import optax

from ddl.algorithms.collective.easgd import easgd
from ddl.api import Algorithm, Spec, Taxonomy, Tree
from ddl.group import Group
from ddl.ranges import ByWorkers, ElasticRate, Momentum, PositiveInt, checked

ALPHA: Any = ByWorkers("1 / p", lambda p: 1 / p)


class SMAState(NamedTuple):
  inner: optax.OptState
  center: Tree  # z, equal on all workers
  previous: Tree  # z_prev, equal on all workers


@checked
def sma(
  inner: optax.GradientTransformation,
  *,
  alpha: ElasticRate = ALPHA,
  momentum: Momentum = 0.9,
  period: PositiveInt = 1,
  workers: PositiveInt | None = None,
) -> Algorithm:
  """Pull the replicas and a central average model towards each other, with momentum on the central model (SMA).

  w_j <- w_j + inner(g_j) - alpha (w_j - z); z <- z + alpha sum_j (w_j - z) + mu (z - z_prev);
  the terms with alpha and mu only in every tau-th step

  Koliousis et al. 2019, VLDB 12(11). Corrections use w_j and z from before the step. Without momentum this is Sync
  EASGD. The paper also restarts the replicas from z when the learning rate drops. The restart is omitted, as in the
  authors' code: it suits a rate that drops a few times; with cosine decay the replicas would restart at every exchange.
  The differences w_j - z are in flight for one step; the evaluated model is z.

  Args:
    inner: optimizer of each worker; the correction is not part of its momentum.
    alpha: strength of the correction; by default 1 / p, which moves z to the mean of the replicas.
    momentum: momentum of the central average model (mu); 0.9 in the authors' code.
    period: steps per exchange (tau); exchanges happen at steps 0, tau, 2 tau, ...
    workers: number of workers (p), for the default of alpha.
  """
  elastic = easgd(inner, alpha=alpha, period=period)
  (exchange,) = elastic.exchanges

  def init(group: Group, params: Tree, key: Any) -> SMAState:
    return SMAState(inner.init(params), params, params)

  def merge(group: Group, message: tuple[Tree, Tree], state: SMAState, params: Tree) -> tuple[Tree, SMAState]:
    params, moved = exchange.merge(group, message, state, params)  # w_j <- w_j - c_j; z + sum_j c_j
    center = jax.tree.map(  # z <- z + sum_j c_j + mu (z - z_prev)
      lambda new, z, old: new + momentum * (z - old), moved.center, state.center, state.previous
    )
    return params, SMAState(state.inner, center, state.center)

  return elastic._replace(init=init, exchanges=(exchange._replace(merge=merge),))


SPEC = Spec(
  factory=sma,
  title="SMA (synchronous model averaging)",
  citation="Koliousis et al. 2019, VLDB 12(11)",
  taxonomy=Taxonomy("data", "decentralized", "synchronous", "all-reduce", "differences"),
  symbols={"alpha": "alpha", "momentum": "mu", "period": "tau"},
)
