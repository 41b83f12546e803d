"""EDiT and A-EDiT."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from ddl.algorithms.local_steps import LocalSteps, if_active, takes_step
from ddl.api import Algorithm, Exchange, Spec, Taxonomy, Tree, at_step, descend, select
from ddl.group import Group
from ddl.ranges import Momentum, NonNegativeInt, OuterRate, PositiveFloat, PositiveInt, UnitInterval, checked


class Detector(NamedTuple):
  """Moving means and variances of the norms G_i of this worker's changes, one for each of the k parameter arrays."""

  mean: jax.Array  # m_i, [k]
  variance: jax.Array  # s_i^2, [k]
  count: jax.Array  # [k] int32: norms averaged so far


class EDiTState(NamedTuple):
  inner: optax.OptState
  anchor: Tree  # z, equal on all workers
  momentum: Tree  # b, equal on all workers
  detector: Detector
  step: jax.Array  # [] int32: finished steps, equal on all workers
  outer: optax.OptState  # the count of outer steps, if the rate is a schedule


class Weighted(NamedTuple):
  """Sums over the workers."""

  weight: jax.Array  # w_i, [k]
  change: list[jax.Array]  # w_i D_i, one entry per array


@checked
def edit(
  inner: optax.GradientTransformation,
  *,
  period: PositiveInt = 10,
  outer_learning_rate: OuterRate = 0.7,
  outer_momentum: Momentum = 0.8,
  temperature: PositiveFloat = 1.0,
  clip: PositiveFloat = 10.0,
  threshold: PositiveFloat = 3.0,
  detector_rate: UnitInterval = 0.02,
  detector_warmup: NonNegativeInt = 120,
  local_steps: LocalSteps = (),
) -> Algorithm:
  """Apply a robust weighted mean of local progress with an outer Nesterov optimizer (EDiT, A-EDiT).

  For each array, after every tau-th step: D_i = z - x_i, G_i = |D_i|; w_i = 0 if G_i > m_i + delta s_i, else
  w_i = exp(-G_i / T), m_i <- m_i + a (G_i - m_i), s_i^2 <- (1 - a) (s_i^2 + a (G_i - old m_i) (G_i - m_i));
  D = sum_i w_i D_i / sum_i w_i; D <- D min(1, c / (|all D| + 1e-6)); b <- mu b + D;
  z <- z - eta_out (D + mu b); x_i <- z

  Cheng, Gao, Yue, Ye, Jiang, Sha 2024, arXiv 2412.07210, and the authors' code. A worker's change of an array is left
  out if it is unusually large compared with the worker's earlier changes of this array; large changes have less weight,
  and the norm of the mean is limited. If the changes of all workers are left out, the array and its momentum do not
  change. With a large T and c and without detection this is `diloco`. exp(-G_i / T) depends on the scale: if norms
  differ by much more than T, D is the smallest change; if they differ by much less, D is the mean. As every array has
  its own weights, the new z is not an average of models. The authors' code also raises delta when recent scores vary;
  both the paper and the code train synchronously at first. These two rules are omitted, so start from a model that has
  left the initial phase, or use a warm-up of the learning rate. A worker sends n bytes per round, and two numbers per
  array. The evaluated model is z.

  A-EDiT exchanges after a fixed time, in which slow workers take fewer steps: set `local_steps` to the number of
  steps that each worker takes in this time.

  Args:
    inner: optimizer of each worker; its state is neither averaged nor reset.
    period: local steps per outer step (tau); for A-EDiT, those of the fastest worker.
    outer_learning_rate: rate of the outer steps (eta_out), or an optax schedule of it.
    outer_momentum: Nesterov momentum of the outer steps (mu).
    temperature: temperature of the weights (T).
    clip: largest norm of D over all arrays (c).
    threshold: number of standard deviations above its mean beyond which a norm is an outlier (delta); 3 in the paper.
    detector_rate: rate of the moving averages (a).
    detector_warmup: initial rounds in which no norm counts as an outlier; 120 in the authors' code. It must be clearly
      longer than the time in which norms grow, such as a warm-up of the learning rate: once an array is an outlier on
      all workers, its averages and z no longer change. The averages start at 0, so at least 6 rounds are needed even if
      norms are constant.
    local_steps: number of steps that worker i takes in each round (tau_i <= tau), for A-EDiT; a tuple with fewer than p
      entries is repeated; if it is empty, all workers take tau steps. The other steps of a round take no virtual time,
      but their examples count.
  """
  takes = takes_step("edit", local_steps, period)
  outer = optax.scale_by_learning_rate(outer_learning_rate, flip_sign=False)

  def init(group: Group, params: Tree, key: Any) -> EDiTState:
    zeros = jnp.zeros(len(jax.tree.leaves(params)), jnp.result_type(float))
    detector = Detector(zeros, zeros, jnp.zeros(zeros.shape, jnp.int32))
    momentum, step = jax.tree.map(jnp.zeros_like, params), jnp.zeros((), jnp.int32)
    return EDiTState(inner.init(params), params, momentum, detector, step, outer.init(params))

  def local(group: Group, grads: Tree, state: EDiTState, params: Tree) -> tuple[Tree, EDiTState]:
    new, waiting = descend(inner, grads, state.inner, params), (params, at_step(state.inner, state.step + 1))
    params, inner_state = if_active(group, local_steps, state.step % period, new, waiting)
    return params, state._replace(inner=inner_state, step=state.step + 1)

  def launch(group: Group, state: EDiTState, params: Tree) -> tuple[Weighted, EDiTState]:
    moved = jax.tree.leaves(jax.tree.map(lambda z, x: z - x, state.anchor, params))  # D_i = z - x_i
    norms = jnp.sqrt(jnp.stack(list(map(_squares, moved))))  # G_i = |D_i|
    outlier, detector = _detect(state.detector, norms, threshold, detector_rate, detector_warmup)
    scores = jnp.where(outlier, jnp.full_like(norms, -jnp.inf), -norms / temperature)
    largest = group.max(scores)
    weight = jnp.where(outlier, jnp.zeros_like(norms), jnp.exp(scores - largest))  # w_i = exp(-G_i / T), rescaled
    total = group.sum(Weighted(weight, [w.astype(d.dtype) * d for w, d in zip(weight, moved, strict=True)]))
    return total, state._replace(detector=detector)

  def merge(group: Group, message: Weighted, state: EDiTState, params: Tree) -> tuple[Tree, EDiTState]:
    valid = message.weight > 0  # [k]
    weight = jnp.where(valid, message.weight, jnp.ones_like(message.weight))
    mean = [d / w.astype(d.dtype) for d, w in zip(message.change, weight, strict=True)]  # D = sum w_i D_i / sum w_i
    scale = jnp.minimum(1.0, clip / (jnp.sqrt(sum(map(_squares, mean))) + 1e-6))  # min(1, c / (|all D| + 1e-6))
    structure = jax.tree.structure(params)
    change = structure.unflatten([d * scale.astype(d.dtype) for d in mean])
    updated = structure.unflatten(list(valid))
    momentum = jax.tree.map(  # b <- mu b + D
      lambda b, d, ok: jnp.where(ok, outer_momentum * b + d, b), state.momentum, change, updated
    )
    direction = jax.tree.map(lambda d, b, ok: jnp.where(ok, d + outer_momentum * b, d), change, momentum, updated)
    step, outer_state = outer.update(direction, state.outer)  # eta_out (D + mu b)
    anchor = jax.tree.map(lambda z, u: z - u, state.anchor, step)  # z <- z - eta_out (D + mu b)
    return anchor, state._replace(anchor=anchor, momentum=momentum, outer=outer_state)  # x_i <- z

  def evaluate(group: Group, state: EDiTState, params: Tree) -> Tree:
    return state.anchor

  return Algorithm(init, local, (Exchange(launch, merge, period),), evaluate, takes_step=takes)


def _squares(x: jax.Array) -> jax.Array:
  """Return the sum of the squares of an array, in JAX's default floating-point type."""
  return jnp.sum(x.astype(jnp.result_type(float)) ** 2)


def _detect(
  state: Detector, norms: jax.Array, threshold: Any, rate: Any, warmup: int
) -> tuple[jax.Array, Detector]:  # fmt: skip
  """Return which norms [k] are outliers, [k] bool, and the detector with the other norms added to its averages."""
  deviation = jnp.sqrt(state.variance)  # s_i
  outlier = (state.count >= warmup) & (deviation > 0) & (norms - state.mean > threshold * deviation)
  mean = state.mean + rate * (norms - state.mean)  # m_i' = m_i + a (G_i - m_i)
  variance = (1 - rate) * (state.variance + rate * (norms - state.mean) * (norms - mean))
  return outlier, select(outlier, state, Detector(mean, variance, state.count + 1))


SPEC = Spec(
  factory=edit,
  title="EDiT",
  citation="Cheng et al. 2024, arXiv 2412.07210",
  taxonomy=Taxonomy("data", "decentralized", "synchronous", "all-reduce", "differences"),
  symbols={
    "period": "tau",
    "outer_learning_rate": "eta_out",
    "outer_momentum": "mu",
    "temperature": "T",
    "clip": "c",
    "threshold": "delta",
    "detector_rate": "a",
    "local_steps": "tau_i",
  },
)
