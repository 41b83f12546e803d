"""QSGD."""

from typing import Annotated, Any

import jax
import jax.numpy as jnp
from jax import lax

from ddl.algorithms.bits import pack, unpack
from ddl.algorithms.draws import Draws, draw, start, worker_key
from ddl.algorithms.wrappers.compressed import compressed
from ddl.algorithms.wrappers.vectors import blocks, of_vector
from ddl.api import Algorithm, Tree, Wrapper
from ddl.group import Group
from ddl.ranges import PositiveInt, checked, integers


@checked
def qsgd(algorithm: Algorithm, *, levels: Annotated[int, integers(1, 127)] = 7, block: PositiveInt = 512) -> Algorithm:
  """Round each value stochastically to one of 2s + 1 levels between -|v| and |v| (QSGD).

  mean(x) becomes (1/p) sum_i Q(x_i); Q(v)_j = |v|_2 sign(v_j) xi_j, for a bucket v of up to d values;
  l = floor(s |v_j| / |v|_2); xi_j = (l + 1) / s with probability s |v_j| / |v|_2 - l, else l / s

  Alistarh et al. 2017, arXiv 1610.02132. E Q(v) = v, so there is no error memory. All workers gather all levels, as in
  the paper: ceil(log2(2s + 1)) bits per value and a norm per bucket, so the bytes that a worker receives grow with p.
  The paper's Elias code, whose length depends on the values, is not used. The variance of Q(v) is at most
  min(d / s^2, sqrt(d) / s) |v|^2, so algorithms that average models are accepted only with buckets of d <= s^2 values.

  Args:
    algorithm: a collective algorithm that uses only means and sums.
    levels: number of positive levels (s); 1, 7 and 127 use 2, 4 and 8 bits per value.
    block: maximum number of values per norm (d).
  """
  bits = (2 * levels).bit_length()  # ceil(log2(2s + 1))

  def mean(group: Group, vector: jax.Array, memory: Draws) -> tuple[jax.Array, Tree]:
    key, after = draw(memory)
    (v,), size = blocks(vector, 1, block), vector.size
    norm = jnp.sqrt(jnp.sum(v * v, axis=1, keepdims=True))  # |v|_2
    scaled = levels * jnp.abs(v) / jnp.where(norm > 0, norm, jnp.ones_like(norm))  # s |v_j| / |v|_2
    level = jnp.floor(scaled + jax.random.uniform(worker_key(key, group), v.shape, v.dtype))  # l or l + 1
    level = jnp.sign(v) * jnp.minimum(level, levels)
    codes = (level + levels).astype(jnp.uint8).reshape(-1)[:size]  # 0..2s

    def add(total: jax.Array, message: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, None]:
      packed, norm = message
      signed = unpack(packed, bits, size).astype(v.dtype) - levels  # sign(v_j) l
      per_value = jnp.broadcast_to(norm, v.shape).reshape(-1)[:size]
      return total + per_value * signed / levels, None

    # One worker at a time: all at once would need memory for p vectors.
    total, _ = lax.scan(add, jnp.zeros_like(vector), group.gather((pack(codes, bits), norm)))
    return total / group.size(), after

  def init(vector: jax.Array, key: Any) -> Draws:
    return start(key)

  return compressed(algorithm, of_vector("qsgd", init, mean, models=lambda size: min(size, block) <= levels**2))


SPEC = Wrapper(
  factory=qsgd,
  title="QSGD",
  citation="Alistarh et al. 2017, arXiv 1610.02132",
  symbols={"levels": "s", "block": "d"},
)
