"""Rennala SGD."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from ddl.algorithms.server.async_sgd import async_sgd
from ddl.api import ServerAlgorithm, Spec, Taxonomy, Tree, Visit, at_step, descend, select
from ddl.ranges import ByWorkers, PositiveInt, checked

GRADIENTS: Any = ByWorkers("p", lambda p: p)


class CollectingServer(NamedTuple):
  center: Tree  # z
  inner: optax.OptState
  total: Tree  # a, the sum of the gradients at z
  count: jax.Array  # [] int32: number of gradients in the sum
  version: jax.Array  # [] int32: number of updates
  pulled: jax.Array  # [workers] int32: the version of the last reply to each worker


@checked
def rennala_sgd(
  inner: optax.GradientTransformation, *, gradients: PositiveInt = GRADIENTS, workers: PositiveInt
) -> ServerAlgorithm:
  """Wait for B gradients at the current model from any workers, ignore older ones, and apply the mean (Rennala SGD).

  a <- a + g if g was computed at z; at every B-th such g z <- z + inner(a / B), a <- 0; x_i <- z

  Tyurin, Richtarik 2023, arXiv 2305.12387. A fast worker may contribute several gradients to the same sum. If z changes
  while a worker computes a gradient, this gradient is ignored. This also happens if all workers have the same speed,
  because the first workers to send a gradient receive z before its update. (In the authors' code, workers instead stop
  and restart when z changes.) With a bsp barrier and B = p this is synchronous SGD. The gradients are unbiased only if
  all workers have the same data distribution. A worker sends a gradient and receives a model per step. The evaluated
  model is z.

  Args:
    inner: the server's optimizer, with one state for all workers; its schedules depend on the step of the worker that
      sends the B-th gradient.
    gradients: gradients per update (B); by default p.
    workers: number of workers (p).
  """

  def init(params: Tree) -> tuple[Tree, CollectingServer, Tree]:
    zero, zeros = jnp.zeros((), jnp.int32), jax.tree.map(jnp.zeros_like, params)
    return zeros, CollectingServer(params, inner.init(params), zeros, zero, zero, jnp.zeros(workers, jnp.int32)), params

  def serve(server: CollectingServer, message: Tree, visit: Visit) -> tuple[CollectingServer, Tree]:
    fresh = server.pulled[visit.worker] == server.version  # g was computed at z
    total = jax.tree.map(lambda a, g: jnp.where(fresh, a + g, a), server.total, message)  # a <- a + g
    count = server.count + fresh.astype(jnp.int32)
    complete = count == gradients  # the B-th gradient
    mean = jax.tree.map(lambda a: a / gradients, total)  # a / B
    stepped = descend(inner, mean, at_step(server.inner, visit.step), server.center)  # z <- z - eta a / B
    center, inner_state = select(complete, stepped, (server.center, server.inner))
    total = jax.tree.map(lambda a: jnp.where(complete, jnp.zeros_like(a), a), total)  # a <- 0
    version = server.version + complete.astype(jnp.int32)
    after = CollectingServer(center, inner_state, total, count % gradients, version, server.pulled)
    return read(after, center, visit)

  def read(server: CollectingServer, reply: Tree, visit: Visit) -> tuple[CollectingServer, Tree]:
    return server._replace(pulled=server.pulled.at[visit.worker].set(server.version)), server.center

  worker = async_sgd(inner)  # the worker's side is the same
  return worker._replace(init=init, serve=serve, read=read, averages=gradients == 1)  # B > 1 counts workers


SPEC = Spec(
  factory=rennala_sgd,
  title="Rennala SGD (waits for fresh gradients)",
  citation="Tyurin, Richtarik 2023, arXiv 2305.12387",
  taxonomy=Taxonomy("data", "centralized", "bounded", "parameter server", "gradients"),
  symbols={"gradients": "B"},
)
