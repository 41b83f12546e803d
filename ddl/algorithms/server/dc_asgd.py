"""Delay-compensated asynchronous SGD."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from ddl.algorithms.server.async_sgd import async_sgd
from ddl.api import ServerAlgorithm, Spec, Taxonomy, Tree, Visit, at_step, descend
from ddl.ranges import NonNegativeFloat, PositiveInt, checked


class CompensatingServer(NamedTuple):
  center: Tree  # z
  inner: optax.OptState
  backups: Tree  # z_bak: [workers, ...], the last reply to each worker
  square: Tree  # ms, moving mean of g g


@checked
def dc_asgd(
  inner: optax.GradientTransformation,
  *,
  compensation: NonNegativeFloat = 0.04,
  adaptive: bool = False,
  workers: PositiveInt,
) -> ServerAlgorithm:
  """Correct each gradient, to first order, for the changes of the center since its worker read the center (DC-ASGD).

  z <- z + inner(g + lam g g (z - z_bak(i))), one worker's g at a time;
  if adaptive, lam = lam0 / sqrt(ms + 1e-7) with ms <- 0.95 ms + 0.05 g g

  Zheng et al. 2016, arXiv 1609.08326. All products are element-wise, and g g approximates the Hessian. z_bak(i) is the
  last reply to worker i, one backup per worker. With lam = 0 this is async SGD.

  Args:
    inner: the server's optimizer, with one state for all workers; its schedules depend on the sending worker's step.
    compensation: strength of the compensation: lam (DC-ASGD-c), or lam0 if adaptive (DC-ASGD-a; 2 in the paper).
    adaptive: whether lam is divided by the root of a moving mean of the squared gradients.
    workers: number of workers (p); the server stores p + 1 models.
  """

  def init(params: Tree) -> tuple[Tree, CompensatingServer, Tree]:
    backups = jax.tree.map(lambda x: jnp.broadcast_to(x, (workers, *x.shape)), params)
    server = CompensatingServer(params, inner.init(params), backups, jax.tree.map(jnp.zeros_like, params))
    return jax.tree.map(jnp.zeros_like, params), server, params

  def reply_to(server: CompensatingServer, visit: Visit) -> tuple[CompensatingServer, Tree]:
    backups = jax.tree.map(lambda b, z: b.at[visit.worker].set(z), server.backups, server.center)  # z_bak(i) <- z
    return server._replace(backups=backups), server.center

  def serve(server: CompensatingServer, message: Tree, visit: Visit) -> tuple[CompensatingServer, Tree]:
    square = jax.tree.map(lambda s, g: 0.95 * s + 0.05 * g * g, server.square, message)  # ms <- .95 ms + .05 g g

    def compensate(g: jax.Array, z: jax.Array, backup: jax.Array, s: jax.Array) -> jax.Array:
      rate = compensation / jnp.sqrt(s + 1e-7) if adaptive else compensation  # lam
      return g + rate * g * g * (z - backup[visit.worker])  # g + lam g g (z - z_bak(i))

    grads = jax.tree.map(compensate, message, server.center, server.backups, square)
    center, inner_state = descend(inner, grads, at_step(server.inner, visit.step), server.center)  # z <- z - eta (...)
    return reply_to(CompensatingServer(center, inner_state, server.backups, square), visit)

  def read(server: CompensatingServer, reply: Tree, visit: Visit) -> tuple[CompensatingServer, Tree]:
    return reply_to(server, visit)

  worker = async_sgd(inner)  # the worker's side is the same
  return worker._replace(init=init, serve=serve, read=read)


SPEC = Spec(
  factory=dc_asgd,
  title="DC-ASGD (delay compensation)",
  citation="Zheng et al. 2016, arXiv 1609.08326",
  taxonomy=Taxonomy("data", "centralized", "asynchronous", "parameter server", "gradients"),
  symbols={"compensation": "lam", "adaptive": "a"},
)
