"""The group of workers through which an algorithm communicates, over one named axis or a pair of axes."""

from collections.abc import Sequence
from math import prod
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from ddl.api import AxisName, Tree


class Group:
  """p workers along one named axis, or along a pair of axes: worker id = outer index * inner size + inner index.

  Every worker calls the same methods in the same order. Trees are sent leaf by leaf.
  """

  def __init__(self, axis: AxisName):
    """Use a named axis, or a pair of them, of `jax.vmap(axis_name=...)`, `jax.shard_map` or `jax.pmap`.

    Raises:
      ValueError: for more than two axes.
    """
    self.axes = axis if isinstance(axis, tuple) else (axis,)
    if len(self.axes) > 2:
      raise ValueError(f"axis must be one named axis or a pair of them, got {axis}.")

  def size(self) -> int:
    """Return the number of workers p."""
    return prod(lax.axis_size(name) for name in self.axes)

  def index(self) -> jax.Array:
    """Return this worker's rank: [] int32 in 0..p-1."""
    return lax.axis_index(self.axes)

  def sum(self, tree: Tree) -> Tree:
    """Return sum_i x_i."""
    return lax.psum(tree, self.axes)

  def mean(self, tree: Tree) -> Tree:
    """Return (1/p) sum_i x_i."""
    return lax.pmean(tree, self.axes)

  def partial_sum(self, tree: Tree, member: Any, count: int) -> Tree:
    """Return, on all workers, the sum over the `count` workers whose `member` ([] bool) is true.

    All workers take part in the collective. Its traffic is counted as if only the `count` workers sent x_i to a server
    and received the sum.
    """
    return self.sum(jax.tree.map(lambda x: jnp.where(member, x, jnp.zeros_like(x)), tree))

  def max(self, tree: Tree) -> Tree:
    """Return max_i x_i."""
    return lax.pmax(tree, self.axes)

  def gather(self, tree: Tree) -> Tree:
    """Return every worker's value in rank order: [...] -> [p, ...]."""

    def one(x: jax.Array) -> jax.Array:
      shape = jnp.shape(x)
      for name in reversed(self.axes):
        x = lax.all_gather(x, name)
      return x.reshape((-1, *shape))

    return jax.tree.map(one, tree)

  def reduce_scatter(self, tree: Tree) -> Tree:
    """Return slice i of sum_j x_j on worker i: [p n, ...] -> [n, ...].

    Raises:
      ValueError: if p does not divide the leading dimension.
    """

    def one(x: jax.Array) -> jax.Array:
      if x.shape[0] % self.size():
        raise ValueError(
          f"the size of the leading axis must be a multiple of {self.size()} (the number of workers), got {x.shape[0]}."
        )
      for name in self.axes:
        x = lax.psum_scatter(x, name, tiled=True)
      return x

    return jax.tree.map(one, tree)

  def shift(self, tree: Tree, steps: int) -> Tree:
    """Return the value of worker (rank - steps) mod p on a ring, with at most two permutes per named axis."""

    def ring(x: jax.Array, name: Any, by: int) -> jax.Array:
      count = lax.axis_size(name)
      return lax.ppermute(x, name, [(i, (i + by) % count) for i in range(count)]) if by % count else x

    def one(x: jax.Array) -> jax.Array:
      if len(self.axes) == 1:
        return ring(x, self.axes[0], steps)
      outer, inner = self.axes
      jump, rest = divmod(steps % self.size(), lax.axis_size(inner))
      x = ring(x, inner, rest)
      if not rest:
        return ring(x, outer, jump)
      # Values that wrap around the inner ring come from one outer step further back.
      return jnp.where(lax.axis_index(inner) < rest, ring(x, outer, jump + 1), ring(x, outer, jump))

    return jax.tree.map(one, tree)

  def permute(self, tree: Tree, sources: Sequence[int | None]) -> Tree:
    """Return the value of worker sources[rank], or zeros if sources[rank] is None.

    Raises:
      ValueError: if `sources` does not have one entry per worker, repeats a rank, or contains a rank outside 0..p-1.
    """
    senders = [s for s in sources if s is not None]
    if len(sources) != self.size() or len({*senders}) < len(senders) or not {*senders} <= {*range(self.size())}:
      raise ValueError(
        f"sources of permute must have {self.size()} entries (distinct ranks or None), got {list(sources)}."
      )
    if len(self.axes) == 1:
      rounds = [(_complete({s: i for i, s in enumerate(sources) if s is not None}, len(sources)), None, None)]
    else:
      rounds = _rounds(sources, *(lax.axis_size(name) for name in self.axes))
    row, takes = lax.axis_index(self.axes[0]), jnp.asarray([s is not None for s in sources])[self.index()]

    def one(x: jax.Array) -> jax.Array:
      if len(self.axes) == 1:
        out = lax.ppermute(x, self.axes[0], rounds[0][0])
      else:
        local, out, slot = lax.all_gather(x, self.axes[1]), jnp.zeros_like(x), lax.axis_index(self.axes[1])
        for pairs, send, take in rounds:
          moved = lax.ppermute(local[jnp.asarray(send)[row]], self.axes[0], pairs)
          out = jnp.where(jnp.asarray(take)[row] == slot, moved, out)
      return out if None not in sources else jnp.where(takes, out, jnp.zeros_like(out))

    return jax.tree.map(one, tree)


def _complete(targets: dict[int, int], count: int) -> list[tuple[int, int]]:
  """Complete {source: target} to a permutation, as `lax.ppermute` under vmap requires; add pairs (i, i) if possible."""
  free = set(range(count)) - set(targets.values())
  left = [i for i in range(count) if i not in targets]
  unmoved = {i: i for i in left if i in free}
  rest = zip([i for i in left if i not in unmoved], sorted(free - set(unmoved)), strict=True)
  return sorted((targets | unmoved | dict(rest)).items())


def _rounds(sources: Sequence[int | None], outer: int, inner: int) -> list[tuple[list[tuple[int, int]], Any, Any]]:
  """Split a permutation of workers into permutations of devices, each of which moves at most one value per device.

  Args:
    sources: as for `Group.permute`.
    outer: number of devices.
    inner: number of workers per device.

  Returns:
    A list with one tuple per permutation of devices: its pairs (source device, target device); for each device, the
    index of its worker that sends, [outer]; for each device, the index of its worker that receives, or -1, [outer].
  """
  from scipy.sparse import csr_array
  from scipy.sparse.csgraph import maximum_bipartite_matching

  left = {i: s for i, s in enumerate(sources) if s is not None}
  rounds = []
  while left:
    edges: dict[tuple[int, int], int] = {(s // inner, i // inner): i for i, s in left.items()}
    rows, columns = zip(*edges, strict=True)
    graph = csr_array((np.ones(len(edges)), (rows, columns)), shape=(outer, outer))
    match = maximum_bipartite_matching(graph, perm_type="column")  # the target of each device, or -1
    moves = {a: int(b) for a, b in enumerate(match) if b >= 0}
    send, take = np.zeros(outer, np.int32), np.full(outer, -1, np.int32)
    for a, b in moves.items():
      i = edges[a, b]
      send[a], take[b] = left.pop(i) % inner, i % inner
    rounds.append((_complete(moves, outer), send, take))
  return rounds


class Present(Group):
  """A group with absent workers: `sum`, `mean` and `max` omit their values, and all workers receive the result."""

  def __init__(self, group: Group, present: Any):
    """Restrict the reductions of `group` to the present workers. present: whether this worker is present, [] bool."""
    super().__init__(group.axes)
    self.group, self.present = group, present

  def sum(self, tree: Tree) -> Tree:
    """Return the sum over the present workers."""
    return self.group.sum(self._contribution(tree))

  def mean(self, tree: Tree) -> Tree:
    """Return the mean over the present workers."""
    total, count = self.group.sum((self._contribution(tree), jnp.asarray(self.present, jnp.int32)))  # as one message
    return jax.tree.map(lambda x: x / count.astype(x.dtype), total)

  def max(self, tree: Tree) -> Tree:
    """Return the maximum over the present workers."""

    def lowest(x: jax.Array) -> jax.Array:
      return jnp.full_like(x, -jnp.inf if jnp.issubdtype(x.dtype, jnp.floating) else jnp.iinfo(x.dtype).min)

    return self.group.max(jax.tree.map(lambda x: jnp.where(self.present, x, lowest(x)), tree))

  def _contribution(self, tree: Tree) -> Tree:
    """Return this worker's contribution to a sum: zeros if it is absent."""
    return jax.tree.map(lambda x: jnp.where(self.present, x, jnp.zeros_like(x)), tree)
