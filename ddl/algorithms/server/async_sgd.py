"""Asynchronous SGD with a master."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from ddl.api import ServerAlgorithm, Spec, Taxonomy, Tree, Visit, at_step, descend
from ddl.ranges import checked


class Master(NamedTuple):
  center: Tree  # Wb
  inner: optax.OptState


@checked
def async_sgd(inner: optax.GradientTransformation) -> ServerAlgorithm:
  """Apply each worker's gradient on arrival, and reply with the new model (asynchronous SGD).

  Wb <- Wb + inner(g), one worker's g at a time; W <- Wb

  You, Buluc, Demmel 2017, arXiv 1708.02983, section 5. It is Downpour SGD (Dean et al. 2012) with an exchange at every
  step. A worker computes g at the model W of its last reply, so g may be stale. Workers are served in the order of
  arrival.

  Args:
    inner: the master's optimizer, with one state for all workers; its schedules depend on the sending worker's step.
  """

  def init(params: Tree) -> tuple[Tree, Master, Tree]:
    return jax.tree.map(jnp.zeros_like, params), Master(params, inner.init(params)), params

  def local(grads: Tree, state: Tree, params: Tree) -> tuple[Tree, Tree]:
    return params, grads  # W does not change

  def request(state: Tree, params: Tree) -> Tree:
    return state  # g

  def serve(server: Master, message: Tree, visit: Visit) -> tuple[Master, Tree]:
    center, inner_state = descend(inner, message, at_step(server.inner, visit.step), server.center)  # Wb <- Wb - eta g
    return Master(center, inner_state), center

  def merge(reply: Tree, state: Tree, params: Tree) -> tuple[Tree, Tree]:
    return reply, state  # W <- Wb

  def evaluate(server: Master) -> Tree:
    return server.center

  def read(server: Master, reply: Tree, visit: Visit) -> tuple[Master, Tree]:
    return server, server.center

  return ServerAlgorithm(init, local, request, serve, merge, evaluate, read=read)


SPEC = Spec(
  factory=async_sgd,
  title="Async SGD",
  citation="You et al. 2017, arXiv 1708.02983; Dean et al. 2012",
  taxonomy=Taxonomy("data", "centralized", "asynchronous", "parameter server", "gradients"),
)
