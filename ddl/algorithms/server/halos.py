"""HALoS."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from ddl.algorithms.collective.hierarchical_sgd import GROUP_SIZE
from ddl.algorithms.dylu import local_steps
from ddl.algorithms.server.async_local_sgd import AsyncLocalState, DelayedNesterov, async_local_sgd
from ddl.api import ServerAlgorithm, Spec, Taxonomy, Tree, Visit, select
from ddl.ranges import Momentum, NonNegativeFloat, NonNegativeInt, PositiveInt, UnitInterval, checked


class Region(NamedTuple):
  """A region's server; in `HalosServer` all arrays have a leading axis [regions]."""

  server: DelayedNesterov  # z_l and its momentum
  snapshot: Tree  # y_l, z_l after its last merge
  in_flight: Tree  # U_l on the way to the global server, then z on the way back
  updates: jax.Array  # int32: updates since the last merge


class HalosServer(NamedTuple):
  regions: Region
  top: DelayedNesterov  # z and its momentum


@checked
def halos(
  inner: optax.GradientTransformation,
  *,
  group_size: PositiveInt = GROUP_SIZE,
  period: PositiveInt = 8,
  local_rate: NonNegativeFloat = 0.2,
  local_momentum: Momentum = 0.9,
  local_every: PositiveInt = 16,
  merge_every: PositiveInt = 32,
  merge_weight: UnitInterval = 0.25,
  global_rate: NonNegativeFloat = 0.15,
  global_momentum: Momentum = 0.5,
  global_every: PositiveInt = 2,
  link: NonNegativeInt = 0,
  dylu: bool = True,
  workers: PositiveInt,
) -> ServerAlgorithm:
  """Run asynchronous local SGD with a server per region, and merge the regions' progress at a global server (HALoS).

  x_i <- x_i + inner(g); every H steps send D = z_l,pulled - x_i and set x_i <- z_l; at the server of region l
  z_l <- DN(z_l, D); after K updates U = y_l - z_l, at the global server z <- DN(z, U), and on its return
  z_l <- (1 - a) z_l + a z, y_l <- z_l

  Kim et al. 2025, arXiv 2506.04531. DN is the delayed Nesterov momentum of `async_local_sgd` with c = 0 and, as in the
  authors' code, rate e N: z <- z - e D, and at every N-th arrival z <- z - e (D + N b m). A region replies to a worker
  before it merges, and serves its workers while U and z are on the way. Changes of z_l during that time are not part of
  U: the merge multiplies them by 1 - a, and the region never sends them. Worker i is in region l = floor(i / g). A
  worker sends and receives one model per round. Every K + 2 `link` updates, a region also sends a model to the global
  server and receives one: the bytes of a run include their mean per visit, but they take no virtual time. The evaluated
  model is z.

  Args:
    inner: optimizer of each worker; its state stays local.
    group_size: workers per region (g); the last region may have fewer. By default the largest divisor of p up to
      sqrt(p); 4 in the paper.
    period: steps per exchange of the fastest workers (H).
    local_rate: rate of the regions' servers per difference (e_l).
    local_momentum: momentum of the regions' servers (b_l).
    local_every: arrivals per momentum update of a region's server (N_l).
    merge_every: updates of a region until it sends U (K).
    merge_weight: weight of the global model in a merge (a).
    global_rate: rate of the global server per U (e_g).
    global_momentum: momentum of the global server (b_g).
    global_every: arrivals per momentum update of the global server (N_g).
    link: time of a message between a region and the global server, one way, as a number of the region's updates.
    dylu: whether slower workers take fewer steps per exchange (see `ddl.algorithms.dylu`).
    workers: number of workers (p).
  """
  regions = -(-workers // group_size)

  def tier(rate: float, momentum: float, every: int) -> ServerAlgorithm:
    return async_local_sgd(
      inner, outer_learning_rate=rate * every, outer_momentum=momentum, every=every, period=period
    )  # e N

  lower, upper = tier(local_rate, local_momentum, local_every), tier(global_rate, global_momentum, global_every)

  def init(params: Tree) -> tuple[AsyncLocalState, HalosServer, Tree]:
    state, server, reply = lower.init(params)
    region = Region(server, params, params, jnp.zeros((), jnp.int32))
    several = jax.tree.map(lambda x: jnp.broadcast_to(x, (regions, *x.shape)), region)
    return state, HalosServer(several, upper.init(params)[1]), reply

  def serve(server: HalosServer, message: Tree, visit: Visit) -> tuple[HalosServer, Tree]:
    place = visit.worker // group_size  # l
    region: Region = jax.tree.map(lambda x: x[place], server.regions)
    local, reply = lower.serve(region.server, message, visit)  # z_l <- DN(z_l, D)
    updates = region.updates + 1
    moved = jax.tree.map(lambda y, z: y - z, region.snapshot, local.center)  # U = y_l - z_l
    in_flight = select(updates == merge_every, moved, region.in_flight)
    reaches, returns = updates == merge_every + link, updates == merge_every + 2 * link
    top = select(reaches, upper.serve(server.top, in_flight, visit)[0], server.top)  # z <- DN(z, U)
    in_flight = select(reaches, top.center, in_flight)
    merged = jax.tree.map(lambda x, z: (1 - merge_weight) * x + merge_weight * z, local.center, in_flight)
    center = select(returns, merged, local.center)  # z_l <- (1 - a) z_l + a z
    snapshot = select(returns, center, region.snapshot)  # y_l <- z_l
    updates = jnp.where(returns, jnp.zeros_like(updates), updates)
    region = Region(local._replace(center=center), snapshot, in_flight, updates)
    after = jax.tree.map(lambda all_, x: all_.at[place].set(x), server.regions, region)
    return HalosServer(after, top), reply

  def read(server: HalosServer, reply: Tree, visit: Visit) -> tuple[HalosServer, Tree]:
    return server, jax.tree.map(lambda x: x[visit.worker // group_size], server.regions.server.center)

  def evaluate(server: HalosServer) -> Tree:
    return server.top.center

  rule = lower._replace(init=init, serve=serve, read=read, evaluate=evaluate)
  periods, relayed = local_steps(period) if dylu else None, 2 / (merge_every + 2 * link)  # U and z, per update
  return rule._replace(periods=periods, averages=False, relayed=relayed)  # a message belongs to its worker's region


SPEC = Spec(
  factory=halos,
  title="HALoS (hierarchical asynchronous local SGD)",
  citation="Kim et al. 2025, arXiv 2506.04531",
  taxonomy=Taxonomy("data", "decentralized", "asynchronous", "parameter server", "differences"),
  symbols={
    "group_size": "g",
    "period": "H",
    "local_rate": "e_l",
    "local_momentum": "b_l",
    "local_every": "N_l",
    "merge_every": "K",
    "merge_weight": "a",
    "global_rate": "e_g",
    "global_momentum": "b_g",
    "global_every": "N_g",
    "link": "link",
    "dylu": "DyLU",
  },
)
