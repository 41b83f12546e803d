"""Sparse messages: the top-k values of each chunk of an array, and the sum of such messages over the workers.

parts = Chunks(x.shape)
message = top_k(parts.split(x), k)  # values and places, [chunks, k]
mean = parts.join(add_up(group.gather(message), parts.values) / group.size())
"""

from collections.abc import Sequence
from math import prod
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax


class Sparse(NamedTuple):
  """The values at k places of each chunk; all other values are 0."""

  values: jax.Array  # [..., chunks, k]
  places: jax.Array  # [..., chunks, k] int32: indices into a chunk


class Chunks:
  """The split of an array into chunks: an array [..., m] is treated as the matrix [n, m], a vector as one row.

  Along each axis of the matrix, the length of a chunk is the axis length's largest divisor that is at most `side`.
  """

  def __init__(self, shape: Sequence[int], side: int = 64):
    """Set the shape of a non-empty array, and the maximum length of a chunk along each axis."""
    self.shape, columns = tuple(shape), shape[-1] if len(shape) else 1
    sides = prod(self.shape) // columns, columns
    self.sizes = tuple(max(d for d in range(1, min(n, side) + 1) if n % d == 0) for n in sides)
    self._grid = tuple(n // d for n, d in zip(sides, self.sizes, strict=True))

  @property
  def values(self) -> int:
    """Return the number of values in a chunk."""
    return prod(self.sizes)

  def split(self, x: jax.Array) -> jax.Array:
    """Return the chunks of an array: [...] -> [chunks, values]."""
    (rows, columns), (height, width) = self._grid, self.sizes
    return x.reshape(rows, height, columns, width).swapaxes(1, 2).reshape(-1, self.values)

  def join(self, chunks: jax.Array) -> jax.Array:
    """Return the array with these chunks: [chunks, values] -> [...]."""
    (rows, columns), (height, width) = self._grid, self.sizes
    return chunks.reshape(rows, columns, height, width).swapaxes(1, 2).reshape(self.shape)


def top_k(chunks: jax.Array, k: int) -> Sparse:
  """Return the k values of each chunk that are largest in magnitude: [chunks, values] -> [chunks, k]."""
  _, places = lax.top_k(jnp.abs(chunks), k)
  return Sparse(jnp.take_along_axis(chunks, places, axis=-1), places)


def largest(x: jax.Array, share: float) -> Sparse:
  """Return the max(1, round(share n)) values of an array that are largest in magnitude, as one chunk: [1, k]."""
  return top_k(x.reshape(1, -1), max(1, round(share * x.size)))


def dense(message: Sparse, size: int) -> jax.Array:
  """Return the chunks that one worker's message describes, with zeros at places that were not sent: [chunks, size]."""
  return add_up(jax.tree.map(lambda x: x[None], message), size)


def add_up(messages: Sparse, size: int) -> jax.Array:
  """Return the sum of the workers' messages: [workers, chunks, k] -> [chunks, size]."""
  rows = jnp.arange(messages.places.shape[1], dtype=jnp.int32)[:, None]

  def add(total: jax.Array, message: Sparse) -> tuple[jax.Array, None]:
    # Add one worker at a time: a GPU's scatter-add has no fixed order, so results would differ between workers.
    return total.at[rows, message.places].add(message.values, unique_indices=True), None

  first, start = jax.tree.map(lambda x: x[0], messages), jnp.zeros((rows.size, size), messages.values.dtype)
  total = start.at[rows, first.places].set(first.values, unique_indices=True)
  return lax.scan(add, total, jax.tree.map(lambda x: x[1:], messages))[0]


def mean_of_senders(messages: Sparse, size: int) -> jax.Array:
  """Return the mean of each value over the workers that sent it, 0 if none did: [workers, chunks, k] -> [chunks, size].

  A worker counts as a sender of each place in its message, even if the value that it sends for this place is 0.
  """
  senders = add_up(messages._replace(values=jnp.ones_like(messages.values)), size)
  return add_up(messages, size) / jnp.maximum(senders, jnp.ones_like(senders))


def array_of(message: Sparse, like: jax.Array) -> jax.Array:
  """Return one worker's message from `largest` as an array like `like`, with zeros at the places that were not sent."""
  return dense(message, like.size).reshape(like.shape)


def mean_of(messages: Sparse, like: jax.Array) -> jax.Array:
  """Return the mean over the workers of their messages from `largest`, [workers, 1, k], with the shape of `like`."""
  return (add_up(messages, like.size) / len(messages.values)).reshape(like.shape)
