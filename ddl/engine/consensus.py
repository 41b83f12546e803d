"""The reports of a run: the model to test, the workers' distance from each other, and its progress in real time."""

from operator import itemgetter
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ddl.api import Tree
from ddl.group import Group
from ddl.precision import cast, wide


class Consensus(NamedTuple):
  """The model to test, equal on all devices."""

  params: Tree  # `evaluate` of the algorithm
  extra: Tree  # the workers' mean
  distance: jax.Array | None  # []: root mean square over the workers of |x_i - mean x|; None: not known


def host_distance(model: Consensus) -> float | None:
  """Return the distance of a consensus on the host; None if it is not known."""
  return None if model.distance is None else float(np.asarray(model.distance.addressable_data(0)))


class Progress(NamedTuple):
  """How far a run in real time is."""

  visits: int
  exchanges: int  # visits that sent something: all but those of peer-to-peer algorithms without a peer
  seconds: float  # since the first worker rounds began, after compilation and the start of processes


class NotFinite(ValueError):
  """A loss, a message or the center is no longer finite."""


def unstacked(tree: Tree) -> list[Tree]:
  """Return the trees along the leading axis, as of several runs."""
  return [jax.tree.map(itemgetter(run), tree) for run in range(len(jax.tree.leaves(tree)[0]))]


def agree(group: Group, params: Tree, extra: Tree) -> tuple[Tree, jax.Array]:
  """Return (mean of `extra`, distance) from one worker's parameters and non-trained state.

  distance = sqrt((1/p) sum_i |x_i - xbar|^2), from the differences to worker 0: it is 0 where all workers are equal,
  whose mean would differ from them by the rounding of a sum. Of leaves that are not floating point (counters) the mean
  is the largest.
  """

  def mean(x: jax.Array) -> jax.Array:
    return (group.mean if jnp.issubdtype(x.dtype, jnp.floating) else group.max)(x)

  first = group.index() == 0
  origin = group.sum(jax.tree.map(lambda x: jnp.where(first, x, jnp.zeros_like(x)), params))  # x_0, zeros added to it
  kind = wide(*(x.dtype for x in jax.tree.leaves(params)))
  differences = cast(jax.tree.map(jnp.subtract, params, origin), kind)
  gaps = jax.tree.map(lambda x, m: jnp.sum(jnp.square(x - m)), differences, group.mean(differences))
  square = group.mean(sum(jax.tree.leaves(gaps)))  # (1/p) sum_i |x_i - xbar|^2
  return jax.tree.map(mean, extra), jnp.sqrt(square)
