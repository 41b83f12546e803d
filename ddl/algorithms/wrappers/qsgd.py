"""QSGD: each value is rounded at random to one of 2s + 1 levels between -|v| and |v|, so that it is right on average.

Alistarh et al. 2017, arXiv 1610.02132. For a bucket v of up to d values of what a worker would send:
Q(v)_j = |v|_2 sign(v_j) xi_j;  l = floor(s |v_j| / |v|_2);  xi_j = (l + 1) / s with probability s |v_j| / |v|_2 - l,
else l / s.
E Q(v) = v, so there is no memory. Every worker sends its levels to all others, as in the paper, and adds up what it
gets: the bytes grow with p. A level takes ceil(log2(2s + 1)) bits, and a bucket one norm; the paper's Elias code, whose
length depends on the values, is not used. The vector is an algorithm's arrays end to end. The variance of Q(v) is at
most min(d / s^2, sqrt(d) / s) |v|^2, so that models are averaged only with buckets of d <= s^2 values.
"""

from typing import Annotated, Any

import jax
import jax.numpy as jnp
from jax import lax

from ddl.algorithms.draws import Draws, draw, own, start
from ddl.algorithms.wrappers.compressed import compressed
from ddl.algorithms.wrappers.vectors import blocks, of_vector
from ddl.api import Algorithm, Hyper, Tree, Wrapper
from ddl.group import Group
from ddl.ranges import PositiveInt, checked, integers


@checked
def qsgd(algorithm: Algorithm, *, levels: Annotated[int, integers(1, 127)], block: PositiveInt) -> Algorithm:
  """mean(x) becomes (1/p) sum_i Q(x_i): ceil(log2(2s + 1)) bits per value and a norm per bucket, gathered from all.

  Args:
    algorithm: one that uses means and sums of its group alone.
    levels: above zero (s), 1 to 127; 1, 7 and 127 fill 2, 4 and 8 bits.
    block: values of a bucket at most (d).

  Returns:
    An `Algorithm` whose `init` raises ValueError for an algorithm with other collectives, or that averages models with
    buckets of more than s^2 values. Arrays of integers, and empty ones, are sent as they are.

  Raises:
    ValueError: if the levels are outside 1..127 or the block is below 1.
  """
  bits = (2 * levels).bit_length()  # ceil(log2(2s + 1))

  def mean(group: Group, vector: jax.Array, memory: Draws) -> tuple[jax.Array, Tree]:
    key, after = draw(memory)
    (v,), size = blocks(vector, 1, block), vector.size
    norm = jnp.sqrt(jnp.sum(v * v, axis=1, keepdims=True))  # |v|_2
    scaled = levels * jnp.abs(v) / jnp.where(norm > 0, norm, jnp.ones_like(norm))  # s |v_j| / |v|_2
    level = jnp.floor(scaled + jax.random.uniform(own(key, group), v.shape, v.dtype))  # l or l + 1
    level = jnp.sign(v) * jnp.minimum(level, levels)
    codes = (level + levels).astype(jnp.uint8).reshape(-1)[:size]  # 0..2s
    planes = jnp.arange(bits, dtype=jnp.uint8)
    packed = jnp.packbits((codes[:, None] >> planes[None]) & 1)

    def add(total: jax.Array, message: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, None]:
      packed, norm = message
      found = jnp.unpackbits(packed, count=bits * size).reshape(size, bits)
      codes = jnp.sum(found << planes[None], axis=1, dtype=jnp.uint8).astype(v.dtype) - levels
      per_value = jnp.broadcast_to(norm, v.shape).reshape(-1)[:size]
      return total + per_value * codes / levels, None

    # Worker by worker: all together would take p vectors of memory.
    total, _ = lax.scan(add, jnp.zeros_like(vector), group.gather((packed, norm)))
    return total / group.size(), after

  def init(vector: jax.Array, key: Any) -> Draws:
    del vector
    return start(key)

  return compressed(algorithm, of_vector("qsgd", init, mean, models=lambda size: min(size, block) <= levels**2))


SPEC = Wrapper(
  factory=qsgd,
  title="QSGD",
  citation="Alistarh et al. 2017, arXiv 1610.02132",
  hyper={
    "levels": Hyper("s", 7, "levels above zero; 7 take 4 bits per value"),
    "block": Hyper("d", 512, "values per norm"),
  },
)
