"""EAMSGD: elastic averaging with Nesterov momentum on the workers.

Zhang, Choromanska, LeCun 2014, arXiv 1412.6651. The gradient is taken at the look-ahead point, and the elastic term
stays outside the velocity:
v' = delta v - eta g(x + delta v),  x' = x + v' - alpha (x - z),  z' = z + alpha sum_i (x_i - z).
The parameters that ddl holds and differentiates are the look-ahead point y = x + delta v; x = y - delta v.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from ddl.algorithms.collective.easgd import easgd
from ddl.api import Algorithm, Hyper, Spec, Taxonomy, Tree
from ddl.group import Group
from ddl.ranges import ElasticRate, Momentum, PositiveInt, checked


class EAMSGDState(NamedTuple):
  inner: optax.OptState
  velocity: Tree  # v
  center: Tree  # z, equal on all workers


@checked
def eamsgd(
  inner: optax.GradientTransformation, *, alpha: ElasticRate, momentum: Momentum, period: PositiveInt
) -> Algorithm:
  """v <- delta v + inner(g(y)); x <- x + v - alpha (x - z); z <- z + alpha sum_i (x_i - z); y = x + delta v.

  Args:
    inner: gives -eta g, with its schedule; plain `optax.sgd(eta)`, since the momentum is this algorithm's own.
    alpha: elastic rate (eta rho).
    momentum: delta.
    period: steps per exchange (tau); exchanges happen at steps 0, tau, 2 tau, ...

  Returns:
    An `Algorithm` whose params are the look-ahead points and whose differences travel during one step (delay 1).
  """

  def init(group: Group, params: Tree, key: Any) -> EAMSGDState:
    del group, key
    return EAMSGDState(inner.init(params), jax.tree.map(jnp.zeros_like, params), params)

  def local(group: Group, grads: Tree, state: EAMSGDState, params: Tree) -> tuple[Tree, EAMSGDState]:
    del group
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

  elastic = easgd(inner, alpha=alpha, period=period)  # x, hence y <- y - alpha (x - z); z <- z + alpha sum_i (x_i - z)
  exchange = elastic.exchanges[0]._replace(launch=launch)
  return elastic._replace(init=init, local=local, exchanges=(exchange,))


SPEC = Spec(
  factory=eamsgd,
  title="EAMSGD (momentum EASGD)",
  citation="Zhang et al. 2014, arXiv 1412.6651",
  taxonomy=Taxonomy("data", "decentralized", "synchronous", "all-reduce", "differences"),
  hyper={
    "alpha": Hyper("alpha", lambda workers: 0.9 / workers, "elastic rate eta rho; the authors' choice is 0.9 / p"),
    "momentum": Hyper("delta", 0.99, "the workers' momentum; the authors' choice is 0.99"),
    "period": Hyper("tau", 10, "steps per exchange"),
  },
)
