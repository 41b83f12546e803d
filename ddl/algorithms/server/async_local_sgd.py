"""Asynchronous local SGD with delayed Nesterov momentum."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from ddl.algorithms.dylu import local_steps
from ddl.algorithms.server.async_sgd import async_sgd
from ddl.api import ServerAlgorithm, Spec, Taxonomy, Tree, Visit, descend
from ddl.ranges import ByWorkers, Momentum, OuterRate, PositiveInt, Range, UnitInterval, check, checked

EVERY: Any = ByWorkers("p", lambda p: p)


class AsyncLocalState(NamedTuple):
  inner: optax.OptState
  pulled: Tree  # z of the last reply


class DelayedNesterov(NamedTuple):
  center: Tree  # z
  momentum: Tree  # m
  total: Tree  # a, the sum of the D since the last momentum update
  count: jax.Array  # [] int32: arrivals since the last momentum update


@checked
def async_local_sgd(
  inner: optax.GradientTransformation,
  *,
  outer_learning_rate: OuterRate = 0.7,
  outer_momentum: Momentum = 0.9,
  every: PositiveInt = EVERY,
  decay: UnitInterval = 0.0,
  period: PositiveInt = 10,
  dylu: bool = False,
  workers: PositiveInt | None = None,
) -> ServerAlgorithm:
  """Apply workers' differences at a server whose momentum is updated every N arrivals (delayed Nesterov).

  x_i <- x_i + inner(g); every tau steps send D = z_pulled - x_i and set x_i <- z; at the server a <- a + D, then
  at every N-th arrival m <- beta m + a / N, z <- z - e ((1 - c N + c) beta m + D / N), a <- 0;
  at other arrivals z <- z - e (c beta m + D / N)

  Liu et al. 2024, arXiv 2401.09135. With one worker and N = 1 the server takes DiLoCo's outer step.

  Args:
    inner: optimizer of each worker; its state stays local.
    outer_learning_rate: the server's learning rate (e), or an optax schedule of it that counts the visiting worker's
      steps // tau: its rounds, unless it takes fewer steps per round; 0.7 as in DiLoCo, which is high for many workers
      of equal speed.
    outer_momentum: the server's momentum (beta); 0.9 as in DiLoCo.
    every: arrivals per momentum update (N); by default p.
    decay: share of the momentum applied at each arrival other than every N-th (c), in 0..1/N; with c = 1/N, all
      arrivals have equal shares.
    period: steps per exchange (tau).
    dylu: whether slower workers take fewer steps per exchange (see `ddl.algorithms.dylu`), so that all arrive at about
      the same rate; schedules of the inner optimizer count a worker's own steps.
    workers: number of workers (p), for the default of `every`.
  """
  check(f"async_local_sgd.decay with every {every}", decay, Range(0, 1 / every))

  def init(params: Tree) -> tuple[AsyncLocalState, DelayedNesterov, Tree]:
    zeros = jax.tree.map(jnp.zeros_like, params)
    server = DelayedNesterov(params, zeros, jax.tree.map(jnp.zeros_like, params), jnp.zeros((), jnp.int32))
    return AsyncLocalState(inner.init(params), params), server, params

  def local(grads: Tree, state: AsyncLocalState, params: Tree) -> tuple[Tree, AsyncLocalState]:
    params, inner_state = descend(inner, grads, state.inner, params)  # x_i <- x_i - eta g
    return params, state._replace(inner=inner_state)

  def request(state: AsyncLocalState, params: Tree) -> Tree:
    return jax.tree.map(lambda z, x: z - x, state.pulled, params)  # D = z_pulled - x_i

  def serve(server: DelayedNesterov, message: Tree, visit: Visit) -> tuple[DelayedNesterov, Tree]:
    last = server.count == every - 1  # the N-th arrival
    rate = outer_learning_rate(visit.step // period) if callable(outer_learning_rate) else outer_learning_rate

    def step(z: jax.Array, m: jax.Array, d: jax.Array) -> jax.Array:
      between = decay * outer_momentum * m  # c beta m
      at_last = (1 - decay * every + decay) * outer_momentum * m  # (1 - c N + c) beta m
      pull = jnp.where(last, at_last, between) + d / every
      return z - jnp.asarray(rate, z.dtype) * pull  # z <- z - e (... + D / N)

    total = jax.tree.map(lambda a, d: a + d, server.total, message)  # a <- a + D
    momentum = jax.tree.map(  # m <- beta m + a / N
      lambda m, a: jnp.where(last, outer_momentum * m + a / every, m), server.momentum, total
    )
    center = jax.tree.map(step, server.center, momentum, message)
    total = jax.tree.map(lambda a: jnp.where(last, jnp.zeros_like(a), a), total)  # a <- 0
    return DelayedNesterov(center, momentum, total, (server.count + 1) % every), center

  def merge(reply: Tree, state: AsyncLocalState, params: Tree) -> tuple[Tree, AsyncLocalState]:
    return reply, state._replace(pulled=reply)  # x_i <- z, z_pulled <- z

  rule = async_sgd(inner)._replace(init=init, local=local, request=request, serve=serve, merge=merge)
  averages = every == 1  # N > 1 counts workers, not the rounds of a quorum
  return rule._replace(period=period, periods=local_steps(period) if dylu else None, averages=averages)


SPEC = Spec(
  factory=async_local_sgd,
  title="Async local SGD (delayed Nesterov)",
  citation="Liu et al. 2024, arXiv 2401.09135",
  taxonomy=Taxonomy("data", "decentralized", "asynchronous", "parameter server", "differences"),
  symbols={
    "outer_learning_rate": "e",
    "outer_momentum": "beta",
    "every": "N",
    "decay": "c",
    "period": "tau",
    "dylu": "DyLU",
  },
)
