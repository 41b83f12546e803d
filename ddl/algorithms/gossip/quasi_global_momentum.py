"""QG-DSGDm, decentralized SGD with quasi-global momentum."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from ddl.algorithms.collective.slowmo import fast_rate, or_one, recorded_rates
from ddl.algorithms.gossip.graphs import mixing_change, mixing_steps
from ddl.api import Algorithm, Exchange, Spec, Taxonomy, Tree
from ddl.group import Group
from ddl.ranges import Momentum, PositiveInt, checked


class QuasiGlobalState(NamedTuple):
  inner: optax.OptState
  momentum: Tree  # m_i


@checked
def quasi_global_momentum(
  inner: optax.GradientTransformation,
  *,
  graph: str = "ring",
  momentum: Momentum = 0.9,
  buffer_decay: Momentum = 0.9,
  nesterov: bool = True,
  workers: PositiveInt,
) -> Algorithm:
  """Add to each step a momentum that follows the actual movement of the models, including mixing (QG-DSGDm).

  z_i = x_i + inner(g_i) - eta beta m_i; y_i = sum_j W_ij z_j; m_i <- mu m_i + (1 - mu) (x_i - y_i) / eta; x_i <- y_i

  Lin, Karimireddy, Stich, Jaggi 2021, arXiv 2102.04761. If the workers' data differ, a local momentum points to the
  worker's own minimum; m_i also contains the movement of the neighbors. With Nesterov momentum, as in the authors'
  script, z_i = x_i + (1 + beta) inner(g_i) - eta beta^2 m_i. A step uses the m_i of the step before. eta is the inner
  learning rate; it cancels if it is constant. With beta = 0 this is D-PSGD that mixes after the step. A worker sends
  z_i (n bytes) to each neighbor in each step. The evaluated model is the mean of the models. Use models without batch
  normalization: its statistics differ between workers.

  Args:
    inner: optimizer of each worker without momentum (SGD in the paper, with weight decay). eta is the "learning_rate"
      that `optax.inject_hyperparams` recorded in its state, or 1 without a record. `init` raises ValueError for several
      records, and for a schedule without a record. In steps with eta = 0, m_i <- mu m_i.
    graph: a graph with mixing matrix W, as in `d_psgd`.
    momentum: weight of m_i in a step (beta); 0.9 in the paper.
    buffer_decay: decay of m_i (mu); 0.9 in the paper.
    nesterov: whether the momentum is Nesterov's.
    workers: number of workers (p).
  """
  steps = mixing_steps("quasi_global_momentum", graph, workers)
  gradient_share, momentum_share = (1 + momentum, momentum**2) if nesterov else (1, momentum)

  def init(group: Group, params: Tree, key: Any) -> QuasiGlobalState:
    inner_state = inner.init(params)
    fast_rate("quasi_global_momentum", inner_state)  # raises ValueError for several records
    if is_scheduled(inner_state) and not recorded_rates(inner_state):
      raise ValueError(
        "quasi_global_momentum.inner must record the learning rate of its schedule, got no record. Use "
        "optax.inject_hyperparams(optax.sgd)(learning_rate=schedule)."
      )
    return QuasiGlobalState(inner_state, jax.tree.map(jnp.zeros_like, params))

  def local(group: Group, grads: Tree, state: QuasiGlobalState, params: Tree) -> tuple[Tree, QuasiGlobalState]:
    updates, inner_state = inner.update(grads, state.inner, params)
    eta = fast_rate("quasi_global_momentum", inner_state)
    moved = jax.tree.map(  # z_i - x_i = inner(g_i) - eta beta m_i
      lambda u, m: gradient_share * u - momentum_share * eta(m) * m, updates, state.momentum
    )
    momentum = jax.tree.map(lambda m, d: buffer_decay * m + gain(eta(m)) * -d, state.momentum, moved)
    return jax.tree.map(lambda x, d: x + d, params, moved), QuasiGlobalState(inner_state, momentum)

  def gain(eta: jax.Array) -> jax.Array:
    """Return (1 - mu) / eta, or 0 if eta is 0."""
    return jnp.where(eta == 0, jnp.zeros_like(eta), (1 - buffer_decay) / or_one(eta))

  def exchange(k: int) -> Exchange:
    def launch(group: Group, state: QuasiGlobalState, params: Tree) -> tuple[Tree, QuasiGlobalState]:
      return mixing_change(group, steps[k], params), state  # sum_j W_ij z_j - z_i

    return Exchange(launch, merge, period=len(steps), offset=k + 1 - len(steps))

  def merge(group: Group, message: Tree, state: QuasiGlobalState, params: Tree) -> tuple[Tree, QuasiGlobalState]:
    eta = fast_rate("quasi_global_momentum", state.inner)
    params = jax.tree.map(lambda z, change: z + change, params, message)  # y_i = sum_j W_ij z_j
    momentum = jax.tree.map(  # x_i - y_i = (x_i - z_i) - change
      lambda m, change: m - gain(eta(m)) * change, state.momentum, message
    )
    return params, state._replace(momentum=momentum)

  def evaluate(group: Group, state: QuasiGlobalState, params: Tree) -> Tree:
    return group.mean(params)

  return Algorithm(init, local, tuple(map(exchange, range(len(steps)))), evaluate)


def is_scheduled(state: optax.OptState) -> bool:
  """Return whether an optimizer's state counts the steps of an optax schedule."""

  def scheduled(part: Any) -> bool:
    return isinstance(part, optax.ScaleByScheduleState)

  return any(map(scheduled, jax.tree.leaves(state, is_leaf=scheduled)))


SPEC = Spec(
  factory=quasi_global_momentum,
  title="QG-DSGDm (quasi-global momentum)",
  citation="Lin et al. 2021, arXiv 2102.04761",
  taxonomy=Taxonomy("data", "decentralized", "synchronous", "peer to peer", "parameters"),
  symbols={"graph": "W", "momentum": "beta", "buffer_decay": "mu"},
)
