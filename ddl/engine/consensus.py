"""Reports on a run: the model to evaluate, the distance between workers, and progress in real time."""

from operator import itemgetter
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ddl.api import Tree
from ddl.group import Group
from ddl.precision import cast, wide


class Consensus(NamedTuple):
  """The model to evaluate, equal on all devices."""

  params: Tree  # the result of the algorithm's `evaluate`
  extra: Tree  # the workers' mean (integers: maximum)
  distance: jax.Array | None  # []: root mean square over the workers of |x_i - mean x|; None: unknown


def host_distance(model: Consensus) -> float | None:
  """Return the distance between the workers as a float on the host; None if it is unknown."""
  return None if model.distance is None else float(np.asarray(model.distance.addressable_data(0)))


class Progress(NamedTuple):
  """The progress of a run in real time."""

  visits: int  # finished; if workers have different periods: steps of finished rounds / period, rounded up
  exchanges: int  # visits that sent a message; in gossip algorithms, visits without a peer send none
  seconds: float  # since the first worker rounds began, without process start and compilation


class NotFinite(ValueError):
  """Raised when a loss, a message or the center is not finite."""


def unstacked(tree: Tree) -> list[Tree]:
  """Split a tree along the leading axis of its leaves, such as the axis of runs."""
  return [jax.tree.map(itemgetter(run), tree) for run in range(len(jax.tree.leaves(tree)[0]))]


def agree(group: Group, params: Tree, extra: Tree) -> tuple[Tree, jax.Array]:
  """Return (mean of `extra`, distance between the workers) from one worker's parameters and non-trained state.

  distance = sqrt((1/p) sum_i |x_i - xbar|^2), computed from the differences to worker 0's parameters. So it is exactly
  0 if all workers are equal, although the mean of equal parameters may be rounded. For integer leaves of `extra`
  (counters), the maximum replaces the mean.
  """

  def mean(x: jax.Array) -> jax.Array:
    return (group.mean if jnp.issubdtype(x.dtype, jnp.floating) else group.max)(x)

  first = group.index() == 0
  origin = group.sum(jax.tree.map(lambda x: jnp.where(first, x, jnp.zeros_like(x)), params))  # x_0 plus zeros
  kind = wide(*(x.dtype for x in jax.tree.leaves(params)))
  differences = cast(jax.tree.map(jnp.subtract, params, origin), kind)
  gaps = jax.tree.map(lambda x, m: jnp.sum(jnp.square(x - m)), differences, group.mean(differences))
  square = group.mean(sum(jax.tree.leaves(gaps)))  # (1/p) sum_i |x_i - xbar|^2
  return jax.tree.map(mean, extra), jnp.sqrt(square)
