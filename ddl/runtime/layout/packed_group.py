"""Means and sums of many leaves as one message each type, where one long collective is better than several."""

import math
from collections.abc import Callable

import jax
import jax.numpy as jnp

from ddl.api import AxisName, Tree
from ddl.group import Group


class PackedGroup(Group):
  """A group whose means and sums go as one vector for each type; the values are those of `Group`."""

  def __init__(self, axis: AxisName, below: float = math.inf):
    """axis: see `Group`; below: bytes from which on a leaf goes alone, as its copies take longer than a message."""
    super().__init__(axis)
    self.below = below

  def sum(self, tree: Tree) -> Tree:
    """sum_i x_i."""
    return self._packed(super().sum, tree)

  def mean(self, tree: Tree) -> Tree:
    """(1/p) sum_i x_i."""
    return self._packed(super().mean, tree)

  def _packed(self, reduce: Callable[[Tree], Tree], tree: Tree) -> Tree:
    leaves, structure = jax.tree.flatten(tree)
    leaves = [jnp.asarray(x) for x in leaves]
    together: dict[object, list[int]] = {}
    for place, x in enumerate(leaves):
      together.setdefault(x.dtype if x.nbytes < self.below else place, []).append(place)
    vectors = reduce([jnp.concatenate([leaves[place].reshape(-1) for place in each]) for each in together.values()])
    for vector, each in zip(vectors, together.values(), strict=True):
      first = 0
      for place in each:
        shape, size = leaves[place].shape, leaves[place].size
        leaves[place] = vector[first : first + size].reshape(shape)
        first += size
    return jax.tree.unflatten(structure, leaves)
