"""Downpour SGD."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from ddl.algorithms.server.async_sgd import Master, async_sgd
from ddl.api import ServerAlgorithm, Spec, Taxonomy, Tree, descend
from ddl.ranges import PositiveInt, checked


class DownpourState(NamedTuple):
  inner: optax.OptState  # for the worker's local steps
  total: Tree  # a_i, the sum of the gradients since the last pull


@checked
def downpour(inner: optax.GradientTransformation, *, period: PositiveInt = 5) -> ServerAlgorithm:
  """Push the sum of tau local gradients to a server and pull the server's model (Downpour SGD).

  x_i <- x_i + inner(g), a_i <- a_i + g; every tau steps z <- z + inner_server(a_i), x_i <- z, a_i <- 0

  Dean et al. 2012, NIPS, use Adagrad at the server. This version follows Zhang, Choromanska, LeCun 2014,
  arXiv 1412.6651, and their code; the server uses `inner`. With plain SGD and tau = 1 it is async SGD.

  Args:
    inner: optimizer of each worker and of the server, each with its own state; the server's schedules are evaluated at
      the middle of the steps whose gradients were summed.
    period: steps per exchange (tau).
  """

  def init(params: Tree) -> tuple[DownpourState, Master, Tree]:
    zeros = jax.tree.map(jnp.zeros_like, params)
    return DownpourState(inner.init(params), zeros), Master(params, inner.init(params)), params

  def local(grads: Tree, state: DownpourState, params: Tree) -> tuple[Tree, DownpourState]:
    total = jax.tree.map(lambda a, g: a + g, state.total, grads)  # a_i <- a_i + g
    params, inner_state = descend(inner, grads, state.inner, params)  # x_i <- x_i - eta g
    return params, DownpourState(inner_state, total)

  def request(state: DownpourState, params: Tree) -> Tree:
    return state.total  # a_i

  def merge(reply: Tree, state: DownpourState, params: Tree) -> tuple[Tree, DownpourState]:
    return reply, state._replace(total=jax.tree.map(jnp.zeros_like, state.total))  # x_i <- z, a_i <- 0

  rule = async_sgd(inner)  # z <- z - eta a_i
  return rule._replace(init=init, local=local, request=request, merge=merge, period=period)


SPEC = Spec(
  factory=downpour,
  title="Downpour SGD",
  citation="Dean et al. 2012; Zhang et al. 2014, arXiv 1412.6651",
  taxonomy=Taxonomy("data", "centralized", "asynchronous", "parameter server", "gradients"),
  symbols={"period": "tau"},
)
