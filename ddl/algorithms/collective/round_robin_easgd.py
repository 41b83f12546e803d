"""Round robin EASGD: the Original EASGD baseline, in which the center serves one worker per step, in rank order.

You, Buluc, Demmel 2017, arXiv 1708.02983, on Zhang et al. 2014, arXiv 1412.6651. At step t worker j = t mod p and the
center pull at each other, with x_j and z from before the step; the other workers only take their local step:
x_j(t+1) = x_j(t) - eta g_j(t) - alpha (x_j(t) - z(t)),  z(t+1) = z(t) + alpha (x_j(t) - z(t)).
In the paper's implementation the others idle while j computes; here a step gives every worker its gradient, so that
each worker exchanges once in p of its steps. Counted are the 2 n bytes of worker j's visit to the center, 2 n / p per
worker and step on average. The program here sends more: all workers take part in the sum that tells them x_j - z.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from ddl.api import Algorithm, Exchange, Hyper, Spec, Taxonomy, Tree, descend
from ddl.group import Group
from ddl.ranges import UnitInterval, checked


class RoundRobinEASGDState(NamedTuple):
  inner: optax.OptState
  center: Tree  # z, equal on all workers
  rank: jax.Array  # [] int32: t mod p, the rank that exchanges at this step


@checked
def round_robin_easgd(inner: optax.GradientTransformation, *, alpha: UnitInterval) -> Algorithm:
  """x_i <- x_i + inner(g_i); then, for j = t mod p alone, x_j -= alpha (x_j - z) and z += alpha (x_j - z).

  Stable on a quadratic of curvature 1 for 0 <= eta <= 2 and 0 <= alpha <= (4 - 2 eta) / (4 - eta).

  Args:
    inner: optimizer of each worker; the elastic term stays outside its momentum.
    alpha: elastic rate (eta rho).

  Returns:
    An `Algorithm` with period 1; the difference travels during the step (delay 1).
  """

  def init(group: Group, params: Tree, key: Any) -> RoundRobinEASGDState:
    del group, key
    return RoundRobinEASGDState(inner.init(params), params, jnp.zeros((), jnp.int32))

  def local(group: Group, grads: Tree, state: RoundRobinEASGDState, params: Tree) -> tuple[Tree, RoundRobinEASGDState]:
    del group
    params, inner_state = descend(inner, grads, state.inner, params)  # x_i <- x_i - eta g_i
    return params, state._replace(inner=inner_state)

  def launch(group: Group, state: RoundRobinEASGDState, params: Tree) -> tuple[tuple[Tree, Tree], RoundRobinEASGDState]:
    mine = group.index() == state.rank  # i = j
    diff = jax.tree.map(lambda x, z: jnp.where(mine, x - z, jnp.zeros_like(z)), params, state.center)
    return (diff, group.partial_sum(diff, mine, 1)), state  # x_j - z, known to all

  def merge(
    group: Group, message: tuple[Tree, Tree], state: RoundRobinEASGDState, params: Tree
  ) -> tuple[Tree, RoundRobinEASGDState]:
    diff, total = message
    params = jax.tree.map(lambda x, d: x - alpha * d, params, diff)  # x_j <- x_j - alpha (x_j - z); others: diff 0
    center = jax.tree.map(lambda z, s: z + alpha * s, state.center, total)  # z <- z + alpha (x_j - z)
    rank = (state.rank + 1) % group.size()  # j = (t + 1) mod p
    return params, RoundRobinEASGDState(state.inner, center, rank)

  def evaluate(group: Group, state: RoundRobinEASGDState, params: Tree) -> Tree:
    del group, params
    return state.center

  return Algorithm(init, local, (Exchange(launch, merge, period=1, delay=1, offset=-1),), evaluate)


SPEC = Spec(
  factory=round_robin_easgd,
  title="Round robin EASGD (Original EASGD)",
  citation="Zhang et al. 2014, arXiv 1412.6651; You et al. 2017, arXiv 1708.02983",
  taxonomy=Taxonomy("data", "decentralized", "synchronous", "round robin", "differences"),
  hyper={"alpha": Hyper("alpha", lambda workers: 0.9 / workers, "elastic rate eta rho; 0.9 / p as in EASGD")},
)
