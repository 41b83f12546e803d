"""Gradient tracking."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from ddl.algorithms.gossip.graphs import mixing_change, mixing_steps
from ddl.api import Algorithm, Exchange, Spec, Taxonomy, Tree, descend
from ddl.group import Group
from ddl.ranges import PositiveInt, checked


class TrackingState(NamedTuple):
  inner: optax.OptState
  tracker: Tree  # y_i, whose mean is that of the gradients
  gradient: Tree  # g_i of the last step


@checked
def gradient_tracking(
  inner: optax.GradientTransformation, *, graph: str = "ring", adapt_first: bool = False, workers: PositiveInt
) -> Algorithm:
  """Descend along an estimate of the mean gradient, which workers mix like their models (gradient tracking, DSGT).

  y_i <- sum_j W_ij y_j + g_i - g_i'; x_i <- sum_j W_ij x_j + inner(y_i), with g_i' from the step before

  Pu and Nedic 2018, arXiv 1803.07741. y_i and g_i' start as 0, so that mean_i y_i = mean_i g_i after every step. Hence
  with a constant rate and exact gradients all workers converge to the minimum of the mean loss, unlike D-PSGD, whose
  limit is biased if the workers' data differ. The noise of y_i is larger than that of g_i. x_j and y_j are from before
  the step and are sent while the gradient is computed. Adapt-then-combine sends x_j + inner(y_j) and y_j after the
  step; on the complete graph this is synchronous SGD. A worker sends its model and y_i (2n bytes) to each neighbor in
  each step. The evaluated model is the mean of the models. If workers leave or join an elastic run, all workers reset
  y_i and g_i' to 0.

  Args:
    inner: optimizer of each worker, called with y_i as the gradient; its state stays local.
    graph: a graph with mixing matrix W, as in `d_psgd`; it may vary over the steps.
    adapt_first: whether models are mixed after the step (adapt-then-combine).
    workers: number of workers (p).
  """
  steps = mixing_steps("gradient_tracking", graph, workers)

  def init(group: Group, params: Tree, key: Any) -> TrackingState:
    zeros = jax.tree.map(jnp.zeros_like, params)
    return TrackingState(inner.init(params), zeros, zeros)

  def local(group: Group, grads: Tree, state: TrackingState, params: Tree) -> tuple[Tree, TrackingState]:
    tracker = jax.tree.map(  # y_i <- y_i + g_i - g_i'
      lambda y, new, old: y + new - old, state.tracker, grads, state.gradient
    )
    state = TrackingState(state.inner, tracker, grads)
    return adapt(state, params) if adapt_first else (params, state)

  def adapt(state: TrackingState, params: Tree) -> tuple[Tree, TrackingState]:
    params, inner_state = descend(inner, state.tracker, state.inner, params)  # x_i <- x_i - eta y_i
    return params, state._replace(inner=inner_state)

  def exchange(k: int) -> Exchange:
    def launch(group: Group, state: TrackingState, params: Tree) -> tuple[tuple[Tree, Tree], TrackingState]:
      return mixing_change(group, steps[k], (params, state.tracker)), state  # sum_j W_ij x_j - x_i, and of y

    delay = 0 if adapt_first else 1
    return Exchange(launch, merge, period=len(steps), delay=delay, offset=k + 1 - delay - len(steps))

  def merge(group: Group, message: tuple[Tree, Tree], state: TrackingState, params: Tree) -> tuple[Tree, TrackingState]:
    moved, change = message
    state = state._replace(tracker=jax.tree.map(lambda y, c: y + c, state.tracker, change))  # sum_j W_ij y_j + ...
    if not adapt_first:
      params, state = adapt(state, params)
    return jax.tree.map(lambda x, c: x + c, params, moved), state  # sum_j W_ij x_j - eta y_i

  def evaluate(group: Group, state: TrackingState, params: Tree) -> Tree:
    return group.mean(params)

  def regroup(state: TrackingState) -> TrackingState:
    zeros = jax.tree.map(jnp.zeros_like, state.tracker)
    return TrackingState(state.inner, zeros, zeros)

  return Algorithm(init, local, tuple(map(exchange, range(len(steps)))), evaluate, regroup)


SPEC = Spec(
  factory=gradient_tracking,
  title="Gradient tracking (DSGT)",
  citation="Pu and Nedic 2018, arXiv 1803.07741",
  taxonomy=Taxonomy("data", "decentralized", "synchronous", "peer to peer", "parameters"),
  symbols={"graph": "W"},
)
