"""8-bit floating-point numbers with stochastic rounding."""

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from ddl.algorithms.wrappers.quantized import Code, quantized
from ddl.api import Algorithm, Wrapper
from ddl.ranges import PositiveInt, checked

FORMATS = {"e4m3": jnp.float8_e4m3fn, "e5m2": jnp.float8_e5m2}


@checked
def fp8(algorithm: Algorithm, *, format: str = "e4m3", block: PositiveInt = 512) -> Algorithm:
  """All-reduce 8-bit floating-point numbers with a scale per block and stochastic rounding (fp8).

  mean(x) becomes Q((1/p) sum_i Q(x_i)); scale = max|v| / c; Q(v) = scale q floor(v / (scale q) + u), u uniform in 0..1,
  c the format's largest number, q the spacing of its numbers at v / scale

  Formats of Micikevicius et al. 2022, arXiv 2209.05433: e4m3 has a 3-bit mantissa and magnitudes from 2^-9 to 448, e5m2
  a 2-bit mantissa and magnitudes from 2^-16 to 57344. The all-reduce is that of `int8`.

  Args:
    algorithm: a collective algorithm that uses only means and sums.
    format: bits of exponent and mantissa: "e4m3" or "e5m2".
    block: maximum number of values per scale (b).
  """
  if format not in FORMATS:
    raise ValueError(f"fp8.format must be one of {', '.join(FORMATS)}, got {format!r}.")
  kind, info = FORMATS[format], jnp.finfo(FORMATS[format])
  largest = float(info.max)

  def encode(y: jax.Array, u: jax.Array) -> jax.Array:
    _, exponent = jnp.frexp(y)  # |y| in 2^(exponent - 1) .. 2^exponent
    q = jnp.ldexp(jnp.ones_like(y), jnp.maximum(exponent - 1, info.minexp) - info.nmant)
    rounded = jnp.clip(q * jnp.floor(y / q + u), -largest, largest)  # representable in the format, so the cast is exact
    return lax.bitcast_convert_type(rounded.astype(kind), jnp.uint8)

  def decode(numbers: jax.Array, dtype: Any) -> jax.Array:
    return lax.bitcast_convert_type(numbers, kind).astype(dtype)

  return quantized(algorithm, "fp8", Code(largest, encode, decode), block)


SPEC = Wrapper(
  factory=fp8,
  title="8-bit floating point, rounded at random",
  citation="formats of Micikevicius et al. 2022, arXiv 2209.05433",
  symbols={"block": "b"},
)
