"""Collectives over the workers, whether they are one named axis or the pair ("device", "virtual").

JAX's psum, pmean, pmax and axis_index take a tuple of axes as they are; gather, scatter and shift need two levels,
because a permutation or a split of the product axis is none of either axis alone. Worker ids are row-major: the
last axis is the fastest.
"""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from ddl.api import AxisName, Tree


def axes(axis: AxisName) -> Sequence[Any]:
  """The axis as a tuple of names, slowest first."""
  return axis if isinstance(axis, tuple) else (axis,)


def size(axis: AxisName) -> int:
  """Number of workers p, a Python integer."""
  count = 1
  for name in axes(axis):
    count *= lax.axis_size(name)
  return count


def index(axis: AxisName) -> jax.Array:
  """This worker's rank: [] int32 in 0..p-1."""
  return lax.axis_index(axes(axis))


def psum(tree: Tree, axis: AxisName) -> Tree:
  """Sum over the workers: sum_i x_i, leaf by leaf."""
  return lax.psum(tree, axes(axis))


def pmean(tree: Tree, axis: AxisName) -> Tree:
  """Mean over the workers: (1/p) sum_i x_i, leaf by leaf."""
  return lax.pmean(tree, axes(axis))


def pmax(tree: Tree, axis: AxisName) -> Tree:
  """Maximum over the workers, leaf by leaf."""
  return lax.pmax(tree, axes(axis))


def all_gather(x: jax.Array, axis: AxisName) -> jax.Array:
  """Every worker's x in rank order: [...] -> [p, ...]."""
  shape = x.shape
  for name in reversed(axes(axis)):
    x = lax.all_gather(x, name)
  return x.reshape((-1, *shape))


def psum_scatter(x: jax.Array, axis: AxisName) -> jax.Array:
  """Sum over the workers, of which worker i keeps strip i: [p * n, ...] -> [n, ...]. ("part-reduce")

  Raises:
    ValueError: if p does not divide the leading dimension.
  """
  if x.shape[0] % size(axis):
    raise ValueError(f"psum_scatter: {size(axis)} workers do not divide {x.shape[0]} values; pad them first")
  for name in axes(axis):
    x = lax.psum_scatter(x, name, tiled=True)
  return x


def shift(tree: Tree, steps: int, axis: AxisName) -> Tree:
  """The value of worker (rank - steps) mod p on a ring, leaf by leaf; at most two permutes per level."""
  names = axes(axis)
  if len(names) > 2:
    raise ValueError(f"shift: takes one axis or a pair, not {names}")

  def ring(x: jax.Array, name: Any, by: int) -> jax.Array:
    count = lax.axis_size(name)
    return lax.ppermute(x, name, [(i, (i + by) % count) for i in range(count)]) if by % count else x

  def one(x: jax.Array) -> jax.Array:
    if len(names) == 1:
      return ring(x, names[0], steps)
    outer, inner = names
    jump, rest = divmod(steps % size(axis), lax.axis_size(inner))
    x = ring(x, inner, rest)
    if not rest:
      return ring(x, outer, jump)
    # Values that wrapped round the inner ring come from one outer step further back.
    return jnp.where(lax.axis_index(inner) < rest, ring(x, outer, jump + 1), ring(x, outer, jump))

  return jax.tree.map(one, tree)
