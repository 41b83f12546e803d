"""Hogwild SGD."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from ddl.api import Arrivals, LockFree, ServerAlgorithm, Spec, Taxonomy, Tree, Visit
from ddl.ranges import checked


class HogwildState(NamedTuple):
  inner: optax.OptState
  update: Tree  # u = inner(g)


@checked
def hogwild_sgd(inner: optax.GradientTransformation) -> ServerAlgorithm:
  """Apply gradients to a center in shared memory without a lock (Hogwild SGD).

  Wb <- Wb + u, u = inner(g) at the worker; W <- Wb, both coordinate by coordinate

  Niu, Recht, Re, Wright 2011, arXiv 1106.5730; You, Buluc, Demmel 2017, arXiv 1708.02983, section 5. No increment is
  lost, but a read may contain only a part of another worker's increment. With plain SGD and a lock this is async SGD.
  `serve` is the version with a lock.

  Args:
    inner: optimizer of each worker; an optimizer state at the center would need a lock.
  """

  def init(params: Tree) -> tuple[HogwildState, Tree, Tree]:
    return HogwildState(inner.init(params), jax.tree.map(jnp.zeros_like, params)), params, params

  def local(grads: Tree, state: HogwildState, params: Tree) -> tuple[Tree, HogwildState]:
    update, inner_state = inner.update(grads, state.inner, params)  # u = -eta g
    return params, HogwildState(inner_state, update)  # W does not change

  def request(state: HogwildState, params: Tree) -> Tree:
    return state.update  # u

  def serve(server: Tree, message: Tree, visit: Visit) -> tuple[Tree, Tree]:
    center = optax.apply_updates(server, message)  # Wb <- Wb + u
    return center, center

  def merge(reply: Tree, state: HogwildState, params: Tree) -> tuple[Tree, HogwildState]:
    return reply, state  # W <- Wb

  def evaluate(server: Tree) -> Tree:
    return server

  def read(server: Tree, reply: Tree, visit: Visit) -> tuple[Tree, Tree]:
    return server, server

  def increment(message: Tree, seen: Tree) -> Tree:
    return message  # u

  def reply(message: Tree, seen: Tree) -> Tree:
    return seen  # Wb as read

  rule, arrivals = LockFree(increment, reply, reads_first=False), Arrivals(blocks=16)
  return ServerAlgorithm(init, local, request, serve, merge, evaluate, read=read, lock_free=rule, arrivals=arrivals)


SPEC = Spec(
  factory=hogwild_sgd,
  title="Hogwild SGD",
  citation="Niu et al. 2011, arXiv 1106.5730; You et al. 2017, arXiv 1708.02983",
  taxonomy=Taxonomy("data", "centralized", "asynchronous", "parameter server", "gradients"),
)
