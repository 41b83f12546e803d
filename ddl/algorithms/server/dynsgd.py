"""DynSGD."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from ddl.algorithms.server.async_local_sgd import AsyncLocalState, async_local_sgd
from ddl.api import ServerAlgorithm, Spec, Taxonomy, Tree, Visit
from ddl.ranges import PositiveInt, checked


class DynServer(NamedTuple):
  center: Tree  # z
  version: jax.Array  # [] int32: number of updates
  pulled: jax.Array  # [workers] int32: the version of the last reply to each worker


@checked
def dynsgd(inner: optax.GradientTransformation, *, period: PositiveInt = 5, workers: PositiveInt) -> ServerAlgorithm:
  """Divide each worker's change by its staleness plus one (DynSGD).

  z <- z + (x_i - z_pulled) / (staleness + 1); x_i <- z, every tau steps of a worker

  Jiang et al. 2017, SIGMOD. The staleness is the number of updates since the worker pulled; the server stores the
  version that each worker pulled.

  Args:
    inner: optimizer of each worker; its state stays local.
    period: steps per exchange (tau).
    workers: number of workers (p).
  """

  worker = async_local_sgd(inner, every=1, period=period)  # x_i <- x_i - eta g; x_i <- z, z_pulled <- z

  def init(params: Tree) -> tuple[AsyncLocalState, DynServer, Tree]:
    server = DynServer(params, jnp.zeros((), jnp.int32), jnp.zeros(workers, jnp.int32))
    return worker.init(params)[0], server, params

  def request(state: AsyncLocalState, params: Tree) -> Tree:
    return jax.tree.map(lambda x, z: x - z, params, state.pulled)  # delta = x_i - z_pulled

  def serve(server: DynServer, message: Tree, visit: Visit) -> tuple[DynServer, Tree]:
    share = 1 + server.version - server.pulled[visit.worker]  # staleness + 1
    center = jax.tree.map(lambda z, d: z + d / share.astype(d.dtype), server.center, message)  # z <- z + delta / share
    return read(DynServer(center, server.version + 1, server.pulled), center, visit)

  def read(server: DynServer, reply: Tree, visit: Visit) -> tuple[DynServer, Tree]:
    return server._replace(pulled=server.pulled.at[visit.worker].set(server.version)), server.center

  return worker._replace(init=init, request=request, serve=serve, read=read)


SPEC = Spec(
  factory=dynsgd,
  title="DynSGD (change over staleness + 1)",
  citation="Jiang et al. 2017, SIGMOD",
  taxonomy=Taxonomy("data", "decentralized", "asynchronous", "parameter server", "differences"),
  symbols={"period": "tau"},
)
