"""D-PSGD, and the mixing matrices of its graphs."""

from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from ddl import files
from ddl.algorithms.collective.independent import independent
from ddl.api import Algorithm, Exchange, Spec, Taxonomy, Tree
from ddl.group import Group
from ddl.ranges import PositiveInt, checked

GRAPHS = ("ring", "torus", "exponential", "one_peer_exponential")


class Hop(NamedTuple):
  """A permute in which each worker sends at most one message and receives at most one."""

  sources: tuple[int | None, ...]  # [workers]: the rank j from which worker i receives
  weights: np.ndarray  # [workers]: W_ij, 0 without a source
  shift: int | None  # i - j mod p if it is the same for all workers, else None


@checked
def d_psgd(inner: optax.GradientTransformation, *, graph: str = "ring", workers: PositiveInt) -> Algorithm:
  """Average each model with those of its neighbours on a graph, while the gradient is computed (D-PSGD).

  x_i <- sum_j W_ij x_j + inner(g_i), with x_j from before the step

  Lian et al. 2017, arXiv 1705.09056. W is doubly stochastic, and W_ij > 0 only if j sends to i. The gradient is that of
  the model before mixing. Mixing conserves the mean of all models. W is symmetric in the paper; here it need not be,
  which allows directed graphs. The exponential graphs are those of Assran et al. 2018, arXiv 1811.10792.

  Args:
    inner: optimizer of each worker; its state stays local.
    graph: the name of a graph on which a worker and its neighbours have equal weights, or a file with a doubly
      stochastic matrix W [p, p]. Names: "ring" (two neighbours), "torus" (four neighbours, on a grid as square as p
      allows; a ring if p is prime), "exponential" (ceil(log2 p) neighbours) and "one_peer_exponential" (one neighbour,
      2^k ranks lower, with k = step mod log2 p; p must be a power of two, and without gradients all workers reach the
      mean after log2 p steps). Files: .npy, or text with commas (.csv) or blanks (.txt).
    workers: number of workers (p).
  """
  steps = [hops(w) for w in matrices(graph, workers)]

  def exchange(k: int) -> Exchange:
    def launch(group: Group, state: optax.OptState, params: Tree) -> tuple[Tree, optax.OptState]:
      change = jax.tree.map(jnp.zeros_like, params)
      for hop in steps[k]:
        received = group.permute(params, hop.sources) if hop.shift is None else group.shift(params, hop.shift)
        weight = jnp.asarray(hop.weights)[group.index()]
        change = jax.tree.map(  # sum_j W_ij x_j - x_i = sum_j W_ij (x_j - x_i), as a row sums to one
          lambda c, y, x, w=weight: c + w.astype(x.dtype) * (y - x), change, received, params
        )
      return change, state

    return Exchange(launch, merge, period=len(steps), delay=1, offset=k - len(steps))

  def merge(group: Group, message: Tree, state: optax.OptState, params: Tree) -> tuple[Tree, optax.OptState]:
    return jax.tree.map(lambda x, c: x + c, params, message), state  # sum_j W_ij x_j - eta g_i(x_i)

  worker = independent(inner)  # x_i <- x_i - eta g_i, evaluated at the mean of the models
  return worker._replace(exchanges=tuple(map(exchange, range(len(steps)))))


def matrices(graph: str, workers: int) -> list[np.ndarray]:
  """Return the mixing matrices W [workers, workers] of successive steps, which repeat.

  Raises:
    ValueError: for an invalid graph.
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
      raise ValueError(f"d_psgd.workers must be a power of two for the graph one_peer_exponential, got {workers}.")
    return [_uniform(ranks - k) for k in powers]
  if Path(graph).suffix not in (".npy", ".csv", ".txt"):
    raise ValueError(f"d_psgd.graph must be one of {', '.join(GRAPHS)} (or a .npy, .csv or .txt file), got {graph!r}.")
  return [_checked(graph, _read(graph), workers)]


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
  """Return the W that averages, with equal weights, each worker's model and those of its sources (each [p])."""
  p = len(sources[0])
  received = np.eye(p, dtype=bool)
  for column in sources:
    received[np.arange(p), column % p] = True
  return received / received.sum(axis=1, keepdims=True)


def _read(path: str) -> np.ndarray:
  try:
    file = files.regular(path)
    if path.endswith(".npy"):
      return np.asarray(np.load(file), np.float64)
    return np.loadtxt(file, delimiter="," if path.endswith(".csv") else None, ndmin=2)
  except (OSError, ValueError, TypeError, EOFError) as error:
    raise ValueError(f"d_psgd.graph must be a readable file with a matrix, got {path} ({error}).") from error


def _checked(path: str, matrix: np.ndarray, workers: int) -> np.ndarray:
  if matrix.shape != (workers, workers):
    raise ValueError(
      f"d_psgd.graph must be a matrix of shape [{workers}, {workers}], got {list(matrix.shape)} in {path}."
    )
  if not (np.isfinite(matrix).all() and (matrix >= 0).all()):
    raise ValueError(f"d_psgd.graph must be doubly stochastic, got negative or non-finite entries in {path}.")
  for name, axis in (("row", 1), ("column", 0)):
    sums = matrix.sum(axis=axis)
    worst = int(np.abs(sums - 1).argmax())
    if abs(sums[worst] - 1) > 1e-6:
      raise ValueError(
        f"d_psgd.graph must be doubly stochastic, got a sum of {sums[worst]:.9g} in {name} {worst} of {path}."
      )
  return matrix


SPEC = Spec(
  factory=d_psgd,
  title="D-PSGD (decentralized parallel SGD)",
  citation="Lian et al. 2017, arXiv 1705.09056",
  taxonomy=Taxonomy("data", "decentralized", "synchronous", "peer to peer", "parameters"),
  symbols={"graph": "W"},
)
