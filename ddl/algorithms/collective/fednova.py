"""FedNova."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from ddl.algorithms.collective.fedavg import restart, sampled_mean
from ddl.algorithms.collective.slowmo import or_one
from ddl.algorithms.draws import Draws, draw, start
from ddl.algorithms.local_steps import LocalSteps, if_active, takes_step
from ddl.api import Algorithm, Exchange, Spec, Taxonomy, Tree, descend
from ddl.group import Group
from ddl.ranges import PositiveInt, Share, checked


class FedNovaState(NamedTuple):
  inner: optax.OptState
  server: Tree  # z, equal on all workers
  unit: optax.OptState  # state of `inner` for a gradient of 1
  weight: jax.Array  # s_i, []
  done: jax.Array  # [] int32: steps of the round so far, equal on all workers
  round: Draws  # determines the round's sample S, equal on all workers


class Normalized(NamedTuple):
  """Means over the workers sampled for a round."""

  change: Tree  # (z - x_i) / s_i
  weight: jax.Array  # s_i, []


@checked
def fednova(
  inner: optax.GradientTransformation,
  *,
  period: PositiveInt = 10,
  share: Share = 0.5,
  local_steps: LocalSteps = (),
) -> Algorithm:
  """Divide each worker's change by the weight of its gradients, so that faster workers do not dominate (FedNova).

  x_i <- x_i + inner(g_i), s_i <- s_i - inner(1); after every tau-th step, with means over the sample:
  z <- z - mean_S(s_i) mean_S((z - x_i) / s_i), x_i <- z

  Wang, Liu, Liang, Joshi, Poor 2020, arXiv 2007.07481. If workers take different numbers of steps, `fedavg` converges
  to the minimum of a loss in which fast workers have more weight. z - x_i is a weighted sum of the gradients g_i, and
  s_i is the sum of their weights (eta |a_i|_1 in the paper): eta tau_i for SGD, and more with momentum, which applies
  the gradients of early steps repeatedly. s_i is measured, not derived from the optimizer's settings: it is minus the
  sum of the updates that `inner` computes for a gradient of 1 and parameters of 0. So it follows the learning-rate
  schedule, contains no weight decay, and is exact for SGD with or without momentum. For Adam it is the sum of the
  learning rates. If all s_i are equal this is `fedavg`. FedNova does not correct for differences between the workers'
  data; see `scaffold`. All sampled workers have the weight 1/m. The paper's server momentum is omitted. Workers are
  sampled and optimizers are reset as in `fedavg`. The traffic is 2 (m/p) (n + 4) bytes per worker and round on average,
  with m workers in the sample. The evaluated model is z.

  Args:
    inner: optimizer of each worker, which must also accept a single number as its parameters; its state is reset in
      each round.
    period: local steps per round (tau).
    share: share of the workers to sample in each round (C), at least one worker.
    local_steps: number of steps that worker i takes in each round (tau_i <= tau), for slow workers; a tuple with fewer
      than p entries is repeated; if it is empty, all workers take tau steps. The other steps of a round take no
      virtual time, but their examples count.
  """
  takes = takes_step("fednova", local_steps, period)

  def init(group: Group, params: Tree, key: Any) -> FedNovaState:
    done = jnp.zeros((), jnp.int32)
    return FedNovaState(inner.init(params), params, inner.init(_number(0)), _number(0), done, start(key))

  def local(group: Group, grads: Tree, state: FedNovaState, params: Tree) -> tuple[Tree, FedNovaState]:
    new, inner_state = descend(inner, grads, state.inner, params)
    updates, unit = inner.update(_number(1), state.unit, _number(0))
    weight = jax.tree.map(lambda s, u: s - u, state.weight, updates)  # s_i <- s_i - inner(1)
    new, weight = if_active(group, local_steps, state.done, (new, weight), (params, state.weight))
    return new, state._replace(inner=inner_state, unit=unit, weight=weight, done=state.done + 1)

  def launch(group: Group, state: FedNovaState, params: Tree) -> tuple[Normalized, FedNovaState]:
    weight = or_one(state.weight)
    change = jax.tree.map(lambda z, x: (z - x) / weight.astype(x.dtype), state.server, params)  # (z - x_i) / s_i
    return sampled_mean(group, state.round, share, Normalized(change, state.weight)), state

  def merge(group: Group, message: Normalized, state: FedNovaState, params: Tree) -> tuple[Tree, FedNovaState]:
    server = jax.tree.map(  # z <- z - mean_S(s_i) mean_S((z - x_i) / s_i)
      lambda z, d: z - message.weight.astype(d.dtype) * d, state.server, message.change
    )
    inner_state, unit = restart(inner, state.inner, params), restart(inner, state.unit, _number(0))
    weight, done, round_ = jnp.zeros_like(state.weight), jnp.zeros_like(state.done), draw(state.round)[1]
    return server, FedNovaState(inner_state, server, unit, weight, done, round_)  # x_i <- z

  def evaluate(group: Group, state: FedNovaState, params: Tree) -> Tree:
    return state.server

  return Algorithm(init, local, (Exchange(launch, merge, period),), evaluate, takes_step=takes)


def _number(value: float) -> jax.Array:
  """Return a scalar in JAX's default floating-point type."""
  return jnp.full((), value, jnp.result_type(float))


SPEC = Spec(
  factory=fednova,
  title="FedNova",
  citation="Wang et al. 2020, arXiv 2007.07481",
  taxonomy=Taxonomy("data", "decentralized", "synchronous", "all-reduce", "differences"),
  symbols={"period": "tau", "share": "C", "local_steps": "tau_i"},
)
