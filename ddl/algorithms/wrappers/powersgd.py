"""PowerSGD."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from ddl.algorithms.matrices import orthonormal
from ddl.algorithms.wrappers.compressed import Compressor, compressed, compressible
from ddl.api import Algorithm, Tree, Wrapper
from ddl.group import Group
from ddl.ranges import PositiveInt, checked


class Factor(NamedTuple):
  """The state of a matrix [n, m]: its error memory and right factor."""

  error: jax.Array  # E_i: [n, m], of this worker
  q: jax.Array  # Q: [m, r], equal on all workers


@checked
def powersgd(algorithm: Algorithm, *, rank: PositiveInt = 2) -> Algorithm:
  """Send each matrix as a low-rank product, by one power iteration with error feedback (PowerSGD).

  mean(x) becomes P Q^T: M_i = X_i + E_i; P = orthonormal((1/p) sum_i M_i Q); Q <- (1/p) sum_i M_i^T P;
  E_i <- M_i - P Q^T

  Vogels, Karimireddy, Jaggi 2019, arXiv 1905.13727. Two successive means send r (n + m) values per matrix [n, m]. An
  array [..., m] is treated as the matrix [n, m]. As with the default settings of the authors' code, vectors and
  matrices with r (n + m) >= n m are sent unchanged.

  Args:
    algorithm: a collective algorithm that uses only means and sums.
    rank: columns of P and Q (r), limited to min(n, m).
  """

  def init(arrays: list[Any], key: Any) -> Tree:
    def one(x: Any, key: Any) -> Factor | None:
      if x.ndim < 2 or not compressible(x):
        return None
      n, m = x.size // x.shape[-1], x.shape[-1]
      r = min(rank, n, m)
      if r * (n + m) >= n * m:
        return None
      return Factor(jnp.zeros_like(x).reshape(n, m), jax.random.normal(key, (m, r), x.dtype))

    return tuple(one(x, jax.random.fold_in(key, i)) for i, x in enumerate(arrays))

  def mean(group: Group, arrays: list[Any], memory: Tree) -> tuple[list[Any], Tree]:
    after, whole = list(memory), list(arrays)
    m = {i: x.reshape(f.error.shape) + f.error for i, (x, f) in enumerate(zip(arrays, memory, strict=True)) if f}
    for i in m:
      whole[i] = m[i] @ memory[i].q  # M_i Q
    out = group.mean(whole)
    p = {i: orthonormal(out[i]) for i in m}  # P = (1/p) sum_i M_i Q, orthonormalized
    q = group.mean({i: m[i].T @ p[i] for i in m})  # Q <- (1/p) sum_i M_i^T P
    for i in m:
      low = p[i] @ q[i].T  # P Q^T
      out[i] = low.reshape(arrays[i].shape)
      after[i] = Factor(m[i] - low, q[i])  # E_i <- M_i - P Q^T
    return out, tuple(after)

  return compressed(algorithm, Compressor("powersgd", init, mean))


SPEC = Wrapper(
  factory=powersgd,
  title="PowerSGD",
  citation="Vogels et al. 2019, arXiv 1905.13727",
  symbols={"rank": "r"},
)
