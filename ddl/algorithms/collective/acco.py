"""ACCO."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from ddl.api import Algorithm, Exchange, Spec, Taxonomy, Tree, at_step, descend, select
from ddl.group import Group
from ddl.ranges import checked


class ACCOState(NamedTuple):
  inner: optax.OptState  # S, equal on all workers
  committed: Tree  # theta, equal on all workers
  grads: Tree  # g_i of the last step, which the next message averages
  first: Tree  # g_1, the mean gradient of the pair's first half batch, equal on all workers
  arrived: jax.Array  # [] int32: messages so far, equal on all workers


@checked
def acco(inner: optax.GradientTransformation) -> Algorithm:
  """Send the gradients of each half batch while those of the other are computed (ACCO).

  Messages arrive one step late. The first of a pair gives an estimate, x <- theta + inner(g_1; S), without changing S;
  the second commits the pair: theta, S <- theta + inner((g_1 + g_2) / 2; S); x <- theta

  Nabli, Fournier, Erbacher, Serrano, Belilovsky, Oyallon 2024, arXiv 2406.02613. A step of ddl is a half batch, so a
  batch of ACCO is two steps, and theta changes after every other step. In each pair, g_2 is the mean gradient at theta,
  and g_1 is that at the last estimate of theta, which was computed from only half of the data. Hence gradients are
  taken close to where they are applied, whereas those of `pipe_sgd` with width 2 (the paper's baseline DPU) are one
  step old. All replicas stay equal. The optimizer runs after each step, but learning-rate schedules count steps: a
  commit uses the rate of the first step of its pair. Each step has an all-reduce of n bytes (a worker sends
  2 (p - 1) / p n bytes), so each batch has two, as in the paper, whose sharded optimizer splits each all-reduce into a
  reduce-scatter and an all-gather. In every other step, the training loss is that of an estimate. Workers compute
  equal numbers of gradients, so means are not weighted by these numbers as in the authors' code. The evaluated model is
  theta.

  Args:
    inner: optimizer, the same on all workers; AdamW in the paper.
  """

  def init(group: Group, params: Tree, key: Any) -> ACCOState:
    zeros = jax.tree.map(jnp.zeros_like, params)
    return ACCOState(inner.init(params), params, zeros, zeros, jnp.zeros((), jnp.int32))

  def local(group: Group, grads: Tree, state: ACCOState, params: Tree) -> tuple[Tree, ACCOState]:
    return params, state._replace(grads=grads)

  def launch(group: Group, state: ACCOState, params: Tree) -> tuple[Tree, ACCOState]:
    return group.mean(state.grads), state  # g = (1/p) sum_i g_i

  def merge(group: Group, message: Tree, state: ACCOState, params: Tree) -> tuple[Tree, ACCOState]:
    commits = state.arrived % 2 == 1
    both = jax.tree.map(lambda a, b: (a + b) / 2, state.first, message)
    gradient = select(commits, both, message)  # (g_1 + g_2) / 2, or g_1
    inner_state = at_step(state.inner, state.arrived // 2 * 2)
    params, new_state = descend(inner, gradient, inner_state, state.committed)  # x <- theta + inner(g; S)
    committed, inner_state = select(commits, (params, new_state), (state.committed, state.inner))
    return params, ACCOState(inner_state, committed, state.grads, message, state.arrived + 1)

  def evaluate(group: Group, state: ACCOState, params: Tree) -> Tree:
    return state.committed

  return Algorithm(init, local, (Exchange(launch, merge, period=1, delay=1),), evaluate)


SPEC = Spec(
  factory=acco,
  title="ACCO",
  citation="Nabli et al. 2024, arXiv 2406.02613",
  taxonomy=Taxonomy("data", "centralized", "delayed", "all-reduce", "gradients"),
)
