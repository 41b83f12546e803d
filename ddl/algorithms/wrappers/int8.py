"""8-bit integers with stochastic rounding."""

from typing import Any

import jax
import jax.numpy as jnp

from ddl.algorithms.wrappers.quantized import Code, quantized
from ddl.api import Algorithm, Wrapper
from ddl.ranges import PositiveInt, checked


@checked
def int8(algorithm: Algorithm, *, block: PositiveInt = 512) -> Algorithm:
  """All-reduce 8-bit integers with a scale per block and stochastic rounding, so that the mean is unbiased (int8).

  mean(x) becomes Q((1/p) sum_i Q(x_i)); scale = max|v| / 127; Q(v) = scale floor(v / scale + u), u uniform in 0..1

  The rounding is that of Alistarh et al. 2017, arXiv 1610.02132, but scaled by the largest magnitude instead of the
  norm. The all-reduce with two quantizations is that of Streaming DiLoCo, Douillard et al. 2025, arXiv 2501.18512, but
  with 8 bits instead of 4. Its reduce-scatter and its all-gather each send one byte per value and a scale per block.

  Args:
    algorithm: a collective algorithm that uses only means and sums.
    block: maximum number of values per scale.
  """

  def encode(y: jax.Array, u: jax.Array) -> jax.Array:
    return jnp.clip(jnp.floor(y + u), -127, 127).astype(jnp.int8)  # floor(v / scale + u)

  def decode(numbers: jax.Array, dtype: Any) -> jax.Array:
    return numbers.astype(dtype)

  return quantized(algorithm, "int8", Code(127.0, encode, decode), block)


SPEC = Wrapper(
  factory=int8,
  title="8-bit integers, rounded at random",
  citation="after Alistarh et al. 2017, arXiv 1610.02132, and Douillard et al. 2025, arXiv 2501.18512",
  symbols={"block": "b"},
)
