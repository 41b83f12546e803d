"""Build compressors of the vector that concatenates an algorithm's arrays, and exchange slices of this vector."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from ddl.algorithms.wrappers.compressed import Compressor, compressible
from ddl.api import Tree
from ddl.group import Group
from ddl.precision import wide


def of_vector(
  name: str,
  init: Callable[[jax.Array, Any], Tree],
  mean: Callable[[Group, jax.Array, Tree], tuple[jax.Array, Tree]],
  models: Callable[[int], bool],
) -> Compressor:
  """Build a compressor for lists of arrays from functions that act on one vector.

  The vector has the widest type of the arrays, at least 32 bits. Integer and empty arrays are averaged uncompressed.

  Args:
    init: (vector [n], key) -> memory.
    mean: (group, vector [n], memory) -> (mean [n], memory).
    models: as in `Compressor`.
  """

  def start(arrays: list[Any], key: Any) -> Tree:
    places = _places(arrays)
    return init(_join(arrays, places), key) if places else ()

  def compress(group: Group, arrays: list[Any], memory: Tree) -> tuple[list[Any], Tree]:
    places, out = _places(arrays), list(arrays)
    others = [i for i in range(len(arrays)) if i not in places]
    if others:
      for i, x in zip(others, group.mean([arrays[i] for i in others]), strict=True):
        out[i] = x
    if places:
      vector, memory = mean(group, _join(arrays, places), memory)
      at = 0
      for i in places:
        x = arrays[i]
        out[i] = vector[at : at + x.size].reshape(x.shape).astype(x.dtype)
        at += x.size
    return out, memory

  return Compressor(name, start, compress, models)


def all_to_all(group: Group, tree: Tree) -> Tree:
  """Send row j of each array [p, ...] to worker j; row d of the result comes from the worker d ranks lower.

  Each worker sends p - 1 messages, one per distance d > 0, each with 1/p of the tree.
  """
  workers, rank = group.size(), group.index()
  received = [
    group.shift(jax.tree.map(lambda x, d=d: lax.dynamic_index_in_dim(x, (rank + d) % workers, keepdims=False), tree), d)
    for d in range(workers)
  ]
  return jax.tree.map(lambda *rows: jnp.stack(rows), *received)


def negative_signs(group: Group, vector: jax.Array) -> jax.Array:
  """Count the workers with a negative value at each place of this worker's strip of a vector [n]: [s] int32.

  Each worker sends 1 bit per value to the owner of the value's strip. A strip has s = 8 ceil(n / (8 p)) values; worker
  j owns values j s to (j + 1) s - 1.
  """
  workers = group.size()
  strip = -(-vector.size // (8 * workers))  # bytes
  negative = jnp.zeros(8 * strip * workers, bool).at[: vector.size].set(vector < 0)
  received = all_to_all(group, jnp.packbits(negative).reshape(workers, strip))
  return jnp.sum(jnp.unpackbits(received, axis=1), axis=0, dtype=jnp.int32)


def majority(group: Group, vector: jax.Array) -> jax.Array:
  """Return the majority's sign of each value, with 1 bit per value in each direction; zeros and ties count as +1."""
  negative = jnp.packbits(2 * negative_signs(group, vector) > group.size())
  return 1 - 2 * jnp.unpackbits(group.gather(negative).reshape(-1))[: vector.size].astype(vector.dtype)


def blocks(vector: jax.Array, parts: int, most: int) -> jax.Array:
  """Split a vector [n], padded with zeros, into [parts, blocks, values] with at most `most` values per block.

  The number of blocks is the smallest possible, and the same in each part.
  """
  strip = -(-vector.size // parts)
  count = -(-strip // most)
  length = -(-strip // count)
  filled = jnp.zeros(parts * count * length, vector.dtype).at[: vector.size].set(vector)
  return filled.reshape(parts, count, length)


def _places(arrays: list[Any]) -> list[int]:
  return [i for i, x in enumerate(arrays) if compressible(x)]


def _join(arrays: list[Any], places: list[int]) -> jax.Array:
  dtype = wide(*(arrays[i].dtype for i in places))
  return jnp.concatenate([arrays[i].reshape(-1).astype(dtype) for i in places])
