"""Staleness-aware asynchronous SGD."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from ddl.algorithms.server.async_sgd import async_sgd
from ddl.api import ServerAlgorithm, Spec, Taxonomy, Tree, Visit, at_step
from ddl.ranges import PositiveInt, checked


class AwareServer(NamedTuple):
  center: Tree  # z
  inner: optax.OptState
  version: jax.Array  # [] int32: number of updates
  pulled: jax.Array  # [workers] int32: the version of the last reply to each worker


@checked
def staleness_aware_sgd(inner: optax.GradientTransformation, *, workers: PositiveInt) -> ServerAlgorithm:
  """Divide each step by the staleness of its gradient (staleness-aware async SGD).

  z <- z + inner(g) / max(staleness, 1), one worker's g at a time

  Zhang, Gupta, Lian, Liu 2015, arXiv 1511.05950. The staleness is the number of updates since the worker's last reply.

  Args:
    inner: the server's optimizer, with one state for all workers, applied before the division; its schedules depend on
      the sending worker's step.
    workers: number of workers (p).
  """

  def init(params: Tree) -> tuple[Tree, AwareServer, Tree]:
    server = AwareServer(params, inner.init(params), jnp.zeros((), jnp.int32), jnp.zeros(workers, jnp.int32))
    return jax.tree.map(jnp.zeros_like, params), server, params

  def serve(server: AwareServer, message: Tree, visit: Visit) -> tuple[AwareServer, Tree]:
    staleness = jnp.maximum(server.version - server.pulled[visit.worker], 1)
    updates, inner_state = inner.update(message, at_step(server.inner, visit.step), server.center)  # u = -eta g
    center = jax.tree.map(lambda z, u: z + u / staleness.astype(u.dtype), server.center, updates)  # z <- z + u / stale
    return read(AwareServer(center, inner_state, server.version + 1, server.pulled), center, visit)

  def read(server: AwareServer, reply: Tree, visit: Visit) -> tuple[AwareServer, Tree]:
    return server._replace(pulled=server.pulled.at[visit.worker].set(server.version)), server.center

  worker = async_sgd(inner)  # the worker's side is the same
  return worker._replace(init=init, serve=serve, read=read)


SPEC = Spec(
  factory=staleness_aware_sgd,
  title="Staleness-aware async SGD",
  citation="Zhang et al. 2015, arXiv 1511.05950",
  taxonomy=Taxonomy("data", "centralized", "asynchronous", "parameter server", "gradients"),
)
