"""Means and sums of many leaves as one message each type, where a compiler overlaps one long collective better."""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from ddl.api import Tree
from ddl.group import Group


class PackedGroup(Group):
  """A group whose means and sums go as one vector for each type; the values are those of `Group`."""

  def sum(self, tree: Tree) -> Tree:
    """sum_i x_i."""
    return _packed(super().sum, tree)

  def mean(self, tree: Tree) -> Tree:
    """(1/p) sum_i x_i."""
    return _packed(super().mean, tree)


def _packed(reduce: Callable[[Tree], Tree], tree: Tree) -> Tree:
  leaves, structure = jax.tree.flatten(tree)
  leaves = [jnp.asarray(x) for x in leaves]
  together: dict[jnp.dtype, list[int]] = {}
  for place, x in enumerate(leaves):
    together.setdefault(x.dtype, []).append(place)
  vectors = reduce([jnp.concatenate([leaves[place].reshape(-1) for place in each]) for each in together.values()])
  for vector, each in zip(vectors, together.values(), strict=True):
    first = 0
    for place in each:
      shape, size = leaves[place].shape, leaves[place].size
      leaves[place] = vector[first : first + size].reshape(shape)
      first += size
  return jax.tree.unflatten(structure, leaves)
