"""Distributed Lion."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from ddl.algorithms.bits import pack, unpack
from ddl.algorithms.wrappers.vectors import majority, negative_signs
from ddl.api import Algorithm, Spec, Taxonomy, Tree, descend
from ddl.group import Group
from ddl.precision import ravel
from ddl.ranges import Momentum, checked

AGGREGATES = ("vote", "mean")


class DistributedLionState(NamedTuple):
  inner: optax.OptState  # equal on all workers
  momentum: Tree  # m_i, of this worker


@checked
def distributed_lion(
  inner: optax.GradientTransformation, *, b1: Momentum = 0.9, b2: Momentum = 0.99, aggregate: str = "vote"
) -> Algorithm:
  """Send only the signs of each worker's Lion update, and apply their majority or their mean (Distributed Lion).

  c_i = sign(b1 m_i + (1 - b1) g_i); m_i <- b2 m_i + (1 - b2) g_i; x <- x + inner(sign(sum_i c_i)), or with "mean"
  x <- x + inner((1/p) sum_i c_i)

  Liu et al. 2024, arXiv 2404.00438. Worker j acts as the paper's server for slice j: it receives 1 bit per value from
  each worker and sends back 1 bit per value (vote) or ceil(log2(p + 1)) bits per value (mean). One bit cannot represent
  zero: zeros count as +1, and a tie of the vote is +1, as in `sign`, so even a value whose gradients are always 0 on
  all workers moves by eta per step. With one worker this is Lion (`optax.lion`), except for zeros. The evaluated model
  is x.

  Args:
    inner: optimizer that receives the sign or the mean as its gradient, normally SGD without momentum and with a third
      of AdamW's learning rate; the same on all workers. The paper's decoupled weight decay, which is not part of the
      vote, is `optax.chain(optax.add_decayed_weights(wd), optax.scale_by_learning_rate(eta))`. Gradients are not
      clipped; a clip in `inner` would act on the signs.
    b1: share of the momentum in the update that is sent (beta_1).
    b2: decay of each worker's momentum (beta_2).
    aggregate: "vote" (MaVo in the paper) or "mean" (Avg).
  """
  if aggregate not in AGGREGATES:
    raise ValueError(f"distributed_lion.aggregate must be one of {', '.join(AGGREGATES)}, got {aggregate!r}.")

  def init(group: Group, params: Tree, key: Any) -> DistributedLionState:
    return DistributedLionState(inner.init(params), jax.tree.map(jnp.zeros_like, params))

  def local(group: Group, grads: Tree, state: DistributedLionState, params: Tree) -> tuple[Tree, DistributedLionState]:
    update = jax.tree.map(lambda m, g: b1 * m + (1 - b1) * g, state.momentum, grads)  # its sign is c_i
    momentum = jax.tree.map(lambda m, g: b2 * m + (1 - b2) * g, state.momentum, grads)  # m_i <- b2 m_i + (1 - b2) g_i
    packed, unpacked = ravel(update)
    signs = majority(group, packed) if aggregate == "vote" else _mean_sign(group, packed)
    params, inner_state = descend(inner, unpacked(signs), state.inner, params)  # x <- x - eta sign(sum_i c_i)
    return params, DistributedLionState(inner_state, momentum)

  def evaluate(group: Group, state: DistributedLionState, params: Tree) -> Tree:
    return params

  return Algorithm(init, local, (), evaluate)


def _mean_sign(group: Group, vector: jax.Array) -> jax.Array:
  """Return (1/p) sum_i sign(v_i) of each value of a vector [n], where zeros count as +1."""
  bits = group.size().bit_length()  # ceil(log2(p + 1)), for counts 0..p
  negative = negative_signs(group, vector)
  counts = unpack(group.gather(pack(negative, bits)), bits, negative.size).reshape(-1)[: vector.size]
  return (group.size() - 2 * counts).astype(vector.dtype) / group.size()


SPEC = Spec(
  factory=distributed_lion,
  title="Distributed Lion",
  citation="Liu et al. 2024, arXiv 2404.00438",
  taxonomy=Taxonomy("data", "centralized", "synchronous", "all-reduce", "gradients"),
  symbols={"b1": "beta_1", "b2": "beta_2"},
  expects={"optimizer.clip_norm": (0, "it limits the norm of the signs, not of the gradients")},
)
