"""Exact diffusion and D2."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from ddl.algorithms.gossip.graphs import hops, matrices, mixing_change
from ddl.api import Algorithm, Exchange, Spec, Taxonomy, Tree
from ddl.group import Group
from ddl.ranges import PositiveInt, UnitInterval, checked


class ExactDiffusionState(NamedTuple):
  inner: optax.OptState
  correction: Tree  # c_i, the sum of all changes of x_i by mixing


@checked
def exact_diffusion(
  inner: optax.GradientTransformation,
  *,
  graph: str = "ring",
  consensus_rate: UnitInterval = 0.5,
  workers: PositiveInt,
) -> Algorithm:
  """Mix models after each step, with a correction that removes the bias of D-PSGD (exact diffusion).

  z_i = x_i + inner(g_i) + c_i; x_i <- z_i + gamma (sum_j W_ij z_j - z_i); c_i <- c_i + (x_i - z_i)

  Yuan, Ying, Zhao, Sayed 2017, arXiv 1702.05122, with gamma = 1/2; with gamma = 1 this is D2, Tang, Lian, Yan, Zhang,
  Liu 2018, arXiv 1803.07068. c_i starts as 0 and is the sum of all earlier changes of x_i by mixing. The papers compute
  z_i = 2 x_i - x_i' - eta (g_i - g_i'), with x_i' and g_i' from the step before, which is the same for a constant rate;
  the form with c_i also allows schedules and other inner optimizers. mean_i c_i = 0 always holds. With a constant rate
  and exact gradients all workers converge to the minimum of the mean loss. A worker sends z_i (n bytes) to each
  neighbor in each step. The evaluated model is the mean of the models. If workers leave or join an elastic run, all
  workers reset c_i to 0.

  Args:
    inner: optimizer of each worker; its state stays local.
    graph: a graph with mixing matrix W, as in `d_psgd`. The factory raises ValueError if the differences between
      workers would not decay. If W is symmetric, they decay for gamma up to 2/3. With gamma = 1, all eigenvalues of W
      must exceed -1/3; a ring with an even number of workers >= 4 has the eigenvalue -1/3. On directed graphs of many
      workers, the differences may grow with every gamma.
    consensus_rate: share of the change by mixing that is applied (gamma); with 0 the workers are independent.
    workers: number of workers (p).
  """
  sequence = matrices("exact_diffusion", graph, workers)
  if isinstance(consensus_rate, int | float) and (growth := _growth(sequence, consensus_rate)) >= 1:
    raise ValueError(
      "exact_diffusion.consensus_rate must make the differences between workers decay with "
      f"graph={graph}, got {consensus_rate:g}, which multiplies them by up to {growth:.3g} per step. "
      "With graph=ring, any rate up to 2/3 works."
    )
  steps = [hops(matrix) for matrix in sequence]

  def init(group: Group, params: Tree, key: Any) -> ExactDiffusionState:
    return ExactDiffusionState(inner.init(params), jax.tree.map(jnp.zeros_like, params))

  def local(group: Group, grads: Tree, state: ExactDiffusionState, params: Tree) -> tuple[Tree, ExactDiffusionState]:
    updates, inner_state = inner.update(grads, state.inner, params)
    params = jax.tree.map(lambda x, u, c: x + u + c, params, updates, state.correction)  # z_i = x_i - eta g_i + c_i
    return params, state._replace(inner=inner_state)

  def exchange(k: int) -> Exchange:
    def launch(group: Group, state: ExactDiffusionState, params: Tree) -> tuple[Tree, ExactDiffusionState]:
      change = mixing_change(group, steps[k], params)  # sum_j W_ij z_j - z_i
      return jax.tree.map(lambda c: consensus_rate * c, change), state

    return Exchange(launch, merge, period=len(steps), offset=k + 1 - len(steps))

  def merge(group: Group, message: Tree, state: ExactDiffusionState, params: Tree) -> tuple[Tree, ExactDiffusionState]:
    params, correction = (
      jax.tree.map(lambda x, change: x + change, tree, message)  # x_i = z_i + change; c_i <- c_i + change
      for tree in (params, state.correction)
    )
    return params, state._replace(correction=correction)

  def evaluate(group: Group, state: ExactDiffusionState, params: Tree) -> Tree:
    return group.mean(params)

  def regroup(state: ExactDiffusionState) -> ExactDiffusionState:
    return state._replace(correction=jax.tree.map(jnp.zeros_like, state.correction))

  return Algorithm(init, local, tuple(map(exchange, range(len(steps)))), evaluate, regroup)


def _growth(sequence: list[np.ndarray], rate: float) -> float:
  """Return the largest factor by which a step multiplies differences between workers; 0 if the rate is always valid."""
  workers = len(sequence[0])
  if not rate:
    return 0.0  # workers are independent
  if len(sequence) == 1 and rate <= 2 / 3 and np.array_equal(sequence[0], sequence[0].T):
    return 0.0  # all eigenvalues of (1 - gamma) I + gamma W exceed -1/3
  centered, product = np.eye(workers) - 1 / workers, np.eye(2 * workers)
  for matrix in sequence:  # (x, c) -> (x, c) without gradients, applied to differences from the mean
    mixed = (1 - rate) * centered + rate * (matrix - 1 / workers)
    product = np.block([[mixed, mixed], [mixed - centered, mixed]]) @ product
  return float(np.abs(np.linalg.eigvals(product)).max() ** (1 / len(sequence))) + 1e-9


SPEC = Spec(
  factory=exact_diffusion,
  title="Exact diffusion, D2",
  citation="Yuan et al. 2017, arXiv 1702.05122; Tang et al. 2018, arXiv 1803.07068",
  taxonomy=Taxonomy("data", "decentralized", "synchronous", "peer to peer", "parameters"),
  symbols={"graph": "W", "consensus_rate": "gamma"},
)
