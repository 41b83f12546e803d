"""EAMSGD."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from ddl.algorithms.collective.easgd import ALPHA, easgd
from ddl.api import Algorithm, Spec, Taxonomy, Tree
from ddl.group import Group
from ddl.ranges import ElasticRate, Momentum, PositiveInt, checked


class EAMSGDState(NamedTuple):
  inner: optax.OptState
  velocity: Tree  # v
  center: Tree  # z, equal on all workers


@checked
def eamsgd(
  inner: optax.GradientTransformation,
  *,
  alpha: ElasticRate = ALPHA,
  momentum: Momentum = 0.99,
  period: PositiveInt = 10,
  workers: PositiveInt | None = None,
) -> Algorithm:
  """Pull the workers and a center towards each other, with Nesterov momentum on the workers (EAMSGD).

  v <- delta v + inner(g(y)); x <- x + v - alpha (x - z); z <- z + alpha sum_i (x_i - z); y = x + delta v;
  the terms with alpha only in every tau-th step

  Zhang, Choromanska, LeCun 2014, arXiv 1412.6651. The gradient is computed at the look-ahead point y, and the elastic
  term is not part of the velocity. The params are the look-ahead points y. The differences x_i - z are in flight for
  one step.

  Args:
    inner: plain `optax.sgd(eta)`, whose update is -eta g; eta may be a schedule. Momentum is part of this algorithm.
    alpha: elastic rate (eta rho); by default 0.9 / p, as in EASGD.
    momentum: momentum of the workers (delta); 0.99 in the paper.
    period: steps per exchange (tau); exchanges happen at steps 0, tau, 2 tau, ...
    workers: number of workers (p), for the default of alpha.
  """

  def init(group: Group, params: Tree, key: Any) -> EAMSGDState:
    return EAMSGDState(inner.init(params), jax.tree.map(jnp.zeros_like, params), params)

  def local(group: Group, grads: Tree, state: EAMSGDState, params: Tree) -> tuple[Tree, EAMSGDState]:
    updates, inner_state = inner.update(grads, state.inner, params)
    velocity = jax.tree.map(lambda v, u: momentum * v + u, state.velocity, updates)  # v' = delta v - eta g(y)
    params = jax.tree.map(  # y' = x' + delta v', with x' = x + v' and x = y - delta v
      lambda y, old, new: (y - momentum * old + new) + momentum * new, params, state.velocity, velocity
    )
    return params, state._replace(inner=inner_state, velocity=velocity)

  def launch(group: Group, state: EAMSGDState, params: Tree) -> tuple[tuple[Tree, Tree], EAMSGDState]:
    diff = jax.tree.map(  # x - z, before the step
      lambda y, v, z: y - momentum * v - z, params, state.velocity, state.center
    )
    return (diff, group.sum(diff)), state  # sum_i (x_i - z)

  elastic = easgd(inner, alpha=alpha, period=period)  # y moves with x: y <- y - alpha (x - z)
  exchange = elastic.exchanges[0]._replace(launch=launch)
  return elastic._replace(init=init, local=local, exchanges=(exchange,))


SPEC = Spec(
  factory=eamsgd,
  title="EAMSGD (momentum EASGD)",
  citation="Zhang et al. 2014, arXiv 1412.6651",
  taxonomy=Taxonomy("data", "decentralized", "synchronous", "all-reduce", "differences"),
  symbols={"alpha": "alpha", "momentum": "delta", "period": "tau"},
)
