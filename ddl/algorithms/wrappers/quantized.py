"""The quantized all-reduce of `int8` and `fp8`, which stochastically rounds the blocks of a vector, each with a scale.

Let v be a block, c the largest number of the code, and R(y) the random choice between the numbers of the code just
below and above y with E R(y) = y:
scale = max|v| / c;  Q(v) = scale R(v / scale), hence E Q(v) = v.
Worker j receives slice j from all workers, sums the slices in at least 32 bits, and sends Q of their mean to all:
mean <- Q((1/p) sum_i Q(x_i)).
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from ddl.algorithms.draws import Draws, draw, start, worker_key
from ddl.algorithms.wrappers.compressed import compressed
from ddl.algorithms.wrappers.vectors import all_to_all, blocks, of_vector
from ddl.api import Algorithm, Tree
from ddl.group import Group


class Code(NamedTuple):
  """An 8-bit number format."""

  largest: float  # c
  encode: Callable[[jax.Array, jax.Array], jax.Array]  # (values in -c..c, random numbers in 0..1) -> bytes
  decode: Callable[[jax.Array, Any], jax.Array]  # (bytes, dtype) -> values


def quantized(algorithm: Algorithm, name: str, code: Code, block: int) -> Algorithm:
  """Return `algorithm` with its means and sums computed by a quantized all-reduce.

  name: the wrapper's name, for errors. block: maximum number of values per scale.
  """

  def quantize(v: jax.Array, key: Any) -> tuple[jax.Array, jax.Array]:
    scale = jnp.max(jnp.abs(v), axis=-1, keepdims=True) / code.largest  # max|v| / c
    y = jnp.clip(v / jnp.where(scale > 0, scale, jnp.ones_like(scale)), -code.largest, code.largest)
    return code.encode(y, jax.random.uniform(key, v.shape, v.dtype)), scale

  def mean(group: Group, vector: jax.Array, memory: Draws) -> tuple[jax.Array, Tree]:
    shared, after = draw(memory)
    first, second = jax.random.split(worker_key(shared, group))
    strips = blocks(vector, group.size(), block)  # [p, blocks, values]
    numbers, scales = all_to_all(group, quantize(strips, first))
    strip = jnp.sum(scales * code.decode(numbers, vector.dtype), axis=0) / group.size()  # (1/p) sum_i Q(x_i)
    numbers, scales = group.gather(quantize(strip, second))
    return (scales * code.decode(numbers, vector.dtype)).reshape(-1)[: vector.size], after

  return compressed(algorithm, of_vector(name, lambda vector, key: start(key), mean, models=lambda size: True))
