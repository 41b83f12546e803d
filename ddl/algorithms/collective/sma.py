"""SMA, synchronous model averaging of Crossbow: Sync EASGD whose central average model moves with momentum.

Koliousis et al. 2019, VLDB 12(11) (no arXiv id). Replica j and the central average model z correct each other, both by
what they were before the step, and z goes on in its last direction:
c_j = alpha (w_j - z),  w_j <- w_j - gamma g_j - c_j,  z <- z + sum_j c_j + mu (z - z_prev).
The paper also restarts the replicas from z, w_j <- z and z_prev <- z, when the learning rate drops. That is left out,
as in the authors' code: it is meant for a rate that drops a few times in a run. With one that falls at each step, as a
cosine does, every exchange would be a restart, and no replica would explore on its own.
"""

from typing import Any, NamedTuple

import jax
import optax

from ddl.algorithms.collective.easgd import easgd
from ddl.api import Algorithm, Hyper, Spec, Taxonomy, Tree
from ddl.group import Group
from ddl.ranges import ElasticRate, Momentum, PositiveInt, checked


class SMAState(NamedTuple):
  inner: optax.OptState
  center: Tree  # z, equal on all workers
  previous: Tree  # z_prev, equal on all workers


@checked
def sma(
  inner: optax.GradientTransformation, *, alpha: ElasticRate, momentum: Momentum, period: PositiveInt
) -> Algorithm:
  """w_j <- w_j + inner(g_j) - alpha (w_j - z); z <- z + alpha sum_j (w_j - z) + mu (z - z_prev), each tau steps.

  Without momentum it is Sync EASGD; with alpha = 1/p in addition z is the mean of the replicas before the step.

  Args:
    inner: optimizer of each worker; the correction stays outside its momentum.
    alpha: strength of the correction.
    momentum: of the central average model (mu).
    period: steps per exchange (tau); exchanges happen at steps 0, tau, 2 tau, ...

  Returns:
    An `Algorithm` whose differences travel during one step (delay 1), tested at z.
  """
  elastic = easgd(inner, alpha=alpha, period=period)
  (exchange,) = elastic.exchanges

  def init(group: Group, params: Tree, key: Any) -> SMAState:
    del group, key
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
  hyper={
    "alpha": Hyper("alpha", lambda workers: 1 / workers, "strength of the correction; 1 / p"),
    "momentum": Hyper("mu", 0.9, "momentum of the central average model; 0.9 in the authors' code"),
    "period": Hyper("tau", 1, "steps per exchange"),
  },
)
