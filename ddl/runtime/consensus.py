"""The model that is tested, and how far the workers are from each other."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from ddl.api import Tree
from ddl.group import Group


class Consensus(NamedTuple):
  """What is tested, equal on all devices."""

  params: Tree  # `evaluate` of the algorithm
  extra: Tree  # the workers' mean
  distance: jax.Array | None  # []: root mean square over the workers of |x_i - mean x|; None: not known


def agree(group: Group, params: Tree, extra: Tree) -> tuple[Tree, jax.Array]:
  """(mean of `extra`, distance) from one worker's parameters and non-trained state.

  distance = sqrt((1/p) sum_i |x_i - xbar|^2). Of leaves that are not floating point (counters) the mean is the largest.
  """

  def mean(x: jax.Array) -> jax.Array:
    return (group.mean if jnp.issubdtype(x.dtype, jnp.floating) else group.max)(x)

  gaps = jax.tree.map(lambda x, m: jnp.sum(jnp.square(x - m)), params, group.mean(params))
  square = group.mean(sum(jax.tree.leaves(gaps)))  # (1/p) sum_i |x_i - xbar|^2
  return jax.tree.map(mean, extra), jnp.sqrt(square)
