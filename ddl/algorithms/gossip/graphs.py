"""Graphs of workers, their mixing matrices, and mixing along their edges."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ddl import files
from ddl.api import Tree
from ddl.group import Group

GRAPHS = ("ring", "torus", "exponential", "one_peer_exponential")


class Hop(NamedTuple):
  """A permute in which each worker sends at most one message and receives at most one."""

  sources: tuple[int | None, ...]  # [workers]: the rank j from which worker i receives
  weights: np.ndarray  # [workers]: W_ij, 0 without a source
  shift: int | None  # i - j mod p if it is the same for all workers, else None


def mixing_steps(algorithm: str, graph: str, workers: int) -> list[list[Hop]]:
  """Return the hops of each mixing step; the sequence of steps repeats. Raises ValueError as `matrices` does."""
  return [hops(matrix) for matrix in matrices(algorithm, graph, workers)]


def mixing_change(group: Group, step: Sequence[Hop], tree: Tree) -> Tree:
  """Send a tree to the neighbors and return the change by mixing: sum_j W_ij x_j - x_i."""
  change = jax.tree.map(jnp.zeros_like, tree)
  for hop, received in from_neighbors(group, step, tree):
    weight = jnp.asarray(hop.weights)[group.index()]
    change = jax.tree.map(  # sum_j W_ij x_j - x_i = sum_j W_ij (x_j - x_i), because rows sum to one
      lambda c, y, x, w=weight: c + w.astype(x.dtype) * (y - x), change, received, tree
    )
  return change


def from_neighbors(group: Group, step: Sequence[Hop], tree: Tree) -> Iterator[tuple[Hop, Tree]]:
  """Send a tree along each hop; yield the hop and the received tree, which is zero on workers without a source."""
  for hop in step:
    yield hop, group.permute(tree, hop.sources) if hop.shift is None else group.shift(tree, hop.shift)


def own_zero(params: Tree, dtype: jax.typing.DTypeLike) -> jax.Array:
  """Return a scalar 0 that has the varying axes of `params` (see `jax.shard_map`), for states that differ by worker."""
  leaves = jax.tree.leaves(params)[:1]
  return jnp.asarray(sum(jnp.sum(jnp.ravel(x)[:0], dtype=dtype) for x in leaves), dtype)  # empty sums


def matrices(algorithm: str, graph: str, workers: int) -> list[np.ndarray]:
  """Return the mixing matrix W [workers, workers] of each step; the sequence of steps repeats.

  algorithm: the algorithm's name, for errors.

  Raises:
    ValueError: if the graph is unknown or does not support this number of workers, or if its file does not contain a
      doubly stochastic matrix [workers, workers].
  """
  ranks, powers = np.arange(workers), [2**k for k in range((workers - 1).bit_length())]
  if graph == "ring":
    return [_uniform(ranks - 1, ranks + 1)]
  if graph == "torus":
    rows = max(r for r in range(1, int(workers**0.5) + 1) if workers % r == 0)
    columns = workers // rows
    row = ranks - ranks % columns  # first rank of each rank's row
    return [_uniform(ranks - columns, ranks + columns, row + (ranks - 1) % columns, row + (ranks + 1) % columns)]
  if graph == "exponential":
    return [_uniform(ranks, *(ranks - k for k in powers))]
  if graph == "one_peer_exponential":
    if workers & (workers - 1):
      raise ValueError(f"{algorithm}.workers must be a power of two for the graph one_peer_exponential, got {workers}.")
    return [_uniform(ranks - k) for k in powers] or [np.eye(1)]
  if Path(graph).suffix not in (".npy", ".csv", ".txt"):
    raise ValueError(
      f"{algorithm}.graph must be one of {', '.join(GRAPHS)} (or a .npy, .csv or .txt file), got {graph!r}."
    )
  return [_checked(algorithm, graph, _read(algorithm, graph), workers)]


def hops(matrix: np.ndarray) -> list[Hop]:
  """Split the edges of W into permutes: full (cyclic) diagonals as shifts, the other edges by edge coloring."""
  p = len(matrix)
  ranks, left, result = np.arange(p), matrix.copy(), []
  np.fill_diagonal(left, 0.0)

  def take(sources: np.ndarray, shift: int | None) -> None:
    weights = np.where(sources < 0, 0.0, left[ranks, sources])
    result.append(Hop(tuple(int(s) if w > 0 else None for s, w in zip(sources, weights, strict=True)), weights, shift))
    left[ranks, sources] = np.where(sources < 0, left[ranks, sources], 0.0)

  for shift in sorted((-np.flatnonzero(left[0])) % p):  # a full diagonal has an entry in the first row
    if (left[ranks, ranks - shift] > 0).all():
      take((ranks - shift) % p, int(shift))
  for sources in _matchings(left > 0):
    take(sources, None)
  return result


def _matchings(edges: np.ndarray) -> list[np.ndarray]:
  """Split the edges of a bipartite graph, [p, p] bool, into as many matchings as its maximum degree (Koenig).

  A matching, [p], lists the column matched with each row, or -1.
  """
  from scipy.sparse import csr_array
  from scipy.sparse.csgraph import maximum_bipartite_matching

  count = edges.astype(np.int32)
  degree = int(max(count.sum(axis=0).max(), count.sum(axis=1).max()))
  missing = [degree - count.sum(axis=k) for k in (1, 0)]
  for i, j in zip(*(np.repeat(np.arange(len(edges)), m) for m in missing), strict=True):
    count[i, j] += 1  # dummy edges make all degrees equal, so that each matching is perfect
  left, ranks, result = edges.copy(), np.arange(len(edges)), []
  for _ in range(degree):
    match = np.asarray(maximum_bipartite_matching(csr_array(count), perm_type="column"))
    count[ranks, match] -= 1
    result.append(np.where(left[ranks, match], match, -1))
    left[ranks, match] = False
  return result


def _uniform(*sources: np.ndarray) -> np.ndarray:
  """Return the W that averages, with equal weights, each worker's model and those of its sources.

  sources: arrays [p], each with the rank of one source for each worker.
  """
  p = len(sources[0])
  received = np.eye(p, dtype=bool)
  for column in sources:
    received[np.arange(p), column % p] = True
  return received / received.sum(axis=1, keepdims=True)


def _read(algorithm: str, path: str) -> np.ndarray:
  try:
    file = files.regular(path)
    if path.endswith(".npy"):
      return np.asarray(np.load(file), np.float64)
    return np.loadtxt(file, delimiter="," if path.endswith(".csv") else None, ndmin=2)
  except (OSError, ValueError, TypeError, EOFError) as error:
    raise ValueError(f"{algorithm}.graph must be a readable file with a matrix, got {path} ({error}).") from error


def _checked(algorithm: str, path: str, matrix: np.ndarray, workers: int) -> np.ndarray:
  if matrix.shape != (workers, workers):
    raise ValueError(
      f"{algorithm}.graph must be a matrix of shape [{workers}, {workers}], got {list(matrix.shape)} in {path}."
    )
  if not (np.isfinite(matrix).all() and (matrix >= 0).all()):
    raise ValueError(f"{algorithm}.graph must be doubly stochastic, got negative or non-finite entries in {path}.")
  for name, axis in (("row", 1), ("column", 0)):
    sums = matrix.sum(axis=axis)
    worst = int(np.abs(sums - 1).argmax())
    if abs(sums[worst] - 1) > 1e-6:
      raise ValueError(
        f"{algorithm}.graph must be doubly stochastic, got a sum of {sums[worst]:.9g} in {name} {worst} of {path}."
      )
  return matrix
