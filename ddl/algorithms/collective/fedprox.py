"""FedProx."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from ddl.algorithms.collective.fedavg import restart, sampled_mean
from ddl.algorithms.draws import Draws, draw, start
from ddl.algorithms.local_steps import LocalSteps, if_active, takes_step
from ddl.api import Algorithm, Exchange, Spec, Taxonomy, Tree, descend
from ddl.group import Group
from ddl.ranges import NonNegativeFloat, PositiveInt, Share, checked


class FedProxState(NamedTuple):
  inner: optax.OptState
  server: Tree  # z, equal on all workers
  done: jax.Array  # [] int32: steps of the round so far, equal on all workers
  round: Draws  # determines the round's sample S, equal on all workers


@checked
def fedprox(
  inner: optax.GradientTransformation,
  *,
  proximal: NonNegativeFloat = 0.1,
  period: PositiveInt = 10,
  share: Share = 0.5,
  local_steps: LocalSteps = (),
) -> Algorithm:
  """Average sampled models whose local losses penalize the distance to the last average (FedProx).

  x_i <- x_i + inner(g_i + mu (x_i - z)); after every tau-th step z <- z + (1/m) sum_{j in S} (x_j - z), x_i <- z

  Li, Sahu, Zaheer, Sanjabi, Talwalkar, Smith 2018, arXiv 1812.06127. Without the penalty (mu = 0) this is `fedavg`. The
  penalty limits how far the local models drift apart, but does not remove the bias of workers that take more steps than
  others; see `fednova`. The penalty is part of the gradient, so the inner optimizer's momentum contains it. Workers are
  sampled and optimizers are reset as in `fedavg`. The traffic is 2 (m/p) n bytes per worker and round on average. The
  evaluated model is z.

  Args:
    inner: optimizer of each worker, plain SGD in the paper; its state is reset in each round.
    proximal: weight of the penalty mu/2 |x_i - z|^2 (mu); tuned between 0.001 and 1 in the paper.
    period: local steps per round (tau).
    share: share of the workers to sample in each round (C), at least one worker.
    local_steps: number of steps that worker i takes in each round (tau_i <= tau), for slow workers; a tuple with fewer
      than p entries is repeated; if it is empty, all workers take tau steps. The other steps of a round take no
      virtual time, but their examples count.
  """
  takes = takes_step("fedprox", local_steps, period)

  def init(group: Group, params: Tree, key: Any) -> FedProxState:
    return FedProxState(inner.init(params), params, jnp.zeros((), jnp.int32), start(key))

  def local(group: Group, grads: Tree, state: FedProxState, params: Tree) -> tuple[Tree, FedProxState]:
    penalized = jax.tree.map(lambda g, x, z: g + proximal * (x - z), grads, params, state.server)  # g_i + mu (x_i - z)
    new, inner_state = descend(inner, penalized, state.inner, params)
    params = if_active(group, local_steps, state.done, new, params)
    return params, state._replace(inner=inner_state, done=state.done + 1)

  def launch(group: Group, state: FedProxState, params: Tree) -> tuple[Tree, FedProxState]:
    moved = jax.tree.map(lambda x, z: x - z, params, state.server)  # x_i - z
    return sampled_mean(group, state.round, share, moved), state

  def merge(group: Group, message: Tree, state: FedProxState, params: Tree) -> tuple[Tree, FedProxState]:
    server = jax.tree.map(lambda z, d: z + d, state.server, message)  # z <- z + (1/m) sum_{j in S} (x_j - z)
    inner_state, round_ = restart(inner, state.inner, params), draw(state.round)[1]
    return server, FedProxState(inner_state, server, jnp.zeros_like(state.done), round_)  # x_i <- z

  def evaluate(group: Group, state: FedProxState, params: Tree) -> Tree:
    return state.server

  return Algorithm(init, local, (Exchange(launch, merge, period),), evaluate, takes_step=takes)


SPEC = Spec(
  factory=fedprox,
  title="FedProx",
  citation="Li et al. 2018, arXiv 1812.06127",
  taxonomy=Taxonomy("data", "decentralized", "synchronous", "all-reduce", "differences"),
  symbols={"proximal": "mu", "period": "tau", "share": "C", "local_steps": "tau_i"},
)
