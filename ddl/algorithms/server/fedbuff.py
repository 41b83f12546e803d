"""FedBuff."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from ddl.algorithms.dylu import local_steps
from ddl.algorithms.server.async_local_sgd import AsyncLocalState, async_local_sgd
from ddl.api import ServerAlgorithm, Spec, Taxonomy, Tree, Visit, descend, select
from ddl.ranges import ByWorkers, Momentum, OuterRate, PositiveInt, checked

BUFFER: Any = ByWorkers("p", lambda p: p)
WEIGHTS = ("polynomial", "constant")  # s(tau) = 1 / sqrt(1 + tau); s(tau) = 1


class BufferedServer(NamedTuple):
  center: Tree  # z
  outer: optax.OptState
  mean: Tree  # a, the weighted sum of the D in the buffer, divided by K
  count: jax.Array  # [] int32: number of D in the buffer
  version: jax.Array  # [] int32: number of outer steps
  pulled: jax.Array  # [workers] int32: the version of the last reply to each worker


@checked
def fedbuff(
  inner: optax.GradientTransformation,
  *,
  buffer: PositiveInt = BUFFER,
  weight: str = "polynomial",
  outer_learning_rate: OuterRate = 0.07,
  outer_momentum: Momentum = 0.9,
  nesterov: bool = True,
  period: PositiveInt = 20,
  dylu: bool = False,
  workers: PositiveInt,
) -> ServerAlgorithm:
  """Collect K differences in a buffer, then apply their weighted sum, divided by K, with outer momentum (FedBuff).

  x_i <- x_i + inner(g); every H steps send D = z_pulled - x_i and set x_i <- z; at the server a <- a + s(tau) D / K,
  and at every K-th arrival m <- mu m + a, z <- z - e (a + mu m), a <- 0

  Nguyen et al. 2021, arXiv 2106.06639; weights, momentum and defaults as in Liu et al. 2024, arXiv 2401.09135. The
  staleness tau is the number of outer steps since the worker pulled. The sum is divided by K, not by the sum of the
  weights. A worker continues from the current z, even if its D is still in the buffer. With outer momentum,
  asynchronous workers need a rate e about ten times smaller than DiLoCo's 0.7. `fedbuff_with` takes any outer
  optimizer. Unlike the code of Liu et al., this keeps the inner optimizer's state between rounds, and it has no grace
  period, in which arrivals at almost the same time are merged before any reply. A worker sends and receives one model
  per round. The evaluated model is z.

  Args:
    inner: optimizer of each worker; its state stays local and is not reset.
    buffer: arrivals per outer step (K); by default p, as in the code of Liu et al.
    weight: "polynomial" for s(tau) = 1 / sqrt(1 + tau), or "constant" for s(tau) = 1.
    outer_learning_rate: rate of the outer steps (e), or an optax schedule of it that counts outer steps.
    outer_momentum: momentum of the outer steps (mu).
    nesterov: whether the momentum is Nesterov's, as in the update above; False: z <- z - e m.
    period: steps per exchange (H).
    dylu: whether slower workers take fewer steps per exchange (see `ddl.algorithms.dylu`), so that all arrive at about
      the same rate; schedules of the inner optimizer count a worker's own steps.
    workers: number of workers (p).
  """
  outer = optax.sgd(outer_learning_rate, outer_momentum, nesterov=nesterov)
  return fedbuff_with(inner, outer, buffer=buffer, weight=weight, period=period, dylu=dylu, workers=workers)


@checked
def fedbuff_with(
  inner: optax.GradientTransformation,
  outer: optax.GradientTransformation,
  *,
  buffer: PositiveInt,
  weight: str,
  period: PositiveInt,
  dylu: bool,
  workers: PositiveInt,
) -> ServerAlgorithm:
  """Return `fedbuff` with any outer optimizer: a is its gradient, z its parameters."""
  if weight not in WEIGHTS:
    raise ValueError(f"fedbuff.weight must be one of {', '.join(WEIGHTS)}, got {weight!r}.")
  worker = async_local_sgd(inner, every=1, period=period)  # x_i <- x_i - eta g; D = z_pulled - x_i; x_i, z_pulled <- z

  def init(params: Tree) -> tuple[AsyncLocalState, BufferedServer, Tree]:
    zero, zeros = jnp.zeros((), jnp.int32), jax.tree.map(jnp.zeros_like, params)
    server = BufferedServer(params, outer.init(params), zeros, zero, zero, jnp.zeros(workers, jnp.int32))
    return worker.init(params)[0], server, params

  def serve(server: BufferedServer, message: Tree, visit: Visit) -> tuple[BufferedServer, Tree]:
    staleness = server.version - server.pulled[visit.worker]  # tau

    def share(d: jax.Array) -> jax.Array:
      root = jnp.sqrt((1 + staleness).astype(d.dtype)) if weight == "polynomial" else 1  # 1 / s(tau)
      return d / (buffer * root)  # s(tau) D / K

    full = server.count == buffer - 1  # the K-th arrival
    mean = jax.tree.map(lambda a, d: a + share(d), server.mean, message)  # a <- a + s(tau) D / K
    stepped = descend(outer, mean, server.outer, server.center)  # z <- OuterOpt(z, a)
    center, outer_state = select(full, stepped, (server.center, server.outer))
    mean = jax.tree.map(lambda a: jnp.where(full, jnp.zeros_like(a), a), mean)  # a <- 0
    count, version = (server.count + 1) % buffer, server.version + full.astype(jnp.int32)
    return read(BufferedServer(center, outer_state, mean, count, version, server.pulled), center, visit)

  def read(server: BufferedServer, reply: Tree, visit: Visit) -> tuple[BufferedServer, Tree]:
    return server._replace(pulled=server.pulled.at[visit.worker].set(server.version)), server.center

  periods, averages = local_steps(period) if dylu else None, buffer == 1  # K > 1 counts workers, not a quorum's rounds
  return worker._replace(init=init, serve=serve, read=read, periods=periods, averages=averages)


SPEC = Spec(
  factory=fedbuff,
  title="FedBuff (buffered asynchronous local SGD)",
  citation="Nguyen et al. 2021, arXiv 2106.06639; Liu et al. 2024, arXiv 2401.09135",
  taxonomy=Taxonomy("data", "decentralized", "asynchronous", "parameter server", "differences"),
  symbols={
    "buffer": "K",
    "weight": "s",
    "outer_learning_rate": "e",
    "outer_momentum": "mu",
    "nesterov": "Nesterov",
    "period": "H",
    "dylu": "DyLU",
  },
)
