"""Delay-compensated async SGD: a late gradient is corrected to first order for how far the center has moved since.

Zheng et al. 2016, arXiv 1609.08326. Worker: g = grad(W), W of its last reply, which the server keeps as z_bak(i).
Server: z <- z - eta (g + lam g g (z - z_bak(i))), elementwise, g g standing for the Hessian.
Adaptive: lam = lam0 / sqrt(ms + 1e-7), ms <- 0.95 ms + 0.05 g g. There is one backup PER WORKER: with a single one the
compensation is that of another worker's delay.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from ddl.algorithms.server.async_sgd import async_sgd
from ddl.api import Hyper, ServerAlgorithm, Spec, Taxonomy, Tree, Visit, at_step, descend
from ddl.ranges import NonNegativeFloat, PositiveInt, checked


class CompensatingServer(NamedTuple):
  center: Tree  # z
  inner: optax.OptState
  backups: Tree  # z_bak: [workers, ...], the last reply to each worker
  square: Tree  # ms, moving mean of g g


@checked
def dc_asgd(
  inner: optax.GradientTransformation, *, compensation: NonNegativeFloat, adaptive: bool, workers: PositiveInt
) -> ServerAlgorithm:
  """z <- z + inner(g + lam g g (z - z_bak(i))), one worker's g at a time; lam = 0 is async SGD.

  Args:
    inner: the server's optimizer; its state is the server's, its schedules go by the worker's step.
    compensation: lam (the paper's DC-ASGD-c), or lam0 if adaptive (DC-ASGD-a); not negative.
    adaptive: whether lam shrinks where gradients are large.
    workers: number of workers p; the server keeps p + 1 models.

  Returns:
    A `ServerAlgorithm` of one step a worker round.

  Raises:
    ValueError: if the compensation is negative.
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
    del reply
    return reply_to(server, visit)

  worker = async_sgd(inner, workers=workers)  # its side is the same
  return worker._replace(init=init, serve=serve, read=read)


SPEC = Spec(
  factory=dc_asgd,
  title="DC-ASGD (delay compensation)",
  citation="Zheng et al. 2016, arXiv 1609.08326",
  taxonomy=Taxonomy("data", "centralized", "asynchronous", "parameter server", "gradients"),
  hyper={
    "compensation": Hyper("lam", 0.04, "strength of the compensation; 2 where it is adaptive (lam0)"),
    "adaptive": Hyper("a", False, "divide it by the root of a moving mean of the squared gradients"),
  },
)
