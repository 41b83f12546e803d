"""DeMo, decoupled momentum."""

from typing import Annotated, Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from ddl.algorithms.wrappers.compressed import Compressor, compressed, unsent
from ddl.api import Algorithm, Tree, Wrapper
from ddl.group import Group
from ddl.precision import wide
from ddl.ranges import Momentum, PositiveInt, check, checked, integers


@checked
def demo(
  algorithm: Algorithm, *, decay: Momentum = 0.999, kept: PositiveInt = 32, chunk: Annotated[int, integers(1, 256)] = 64
) -> Algorithm:
  """Keep the momentum local and send only its strongest frequencies (DeMo).

  mean(g) becomes IDCT(q); m_i <- beta m_i + g_i; q_i = the k largest DCT coefficients of each chunk of m_i;
  m_i <- m_i - IDCT(q_i); q = for each coefficient, the mean over the workers that sent it

  Peng, Quesnelle, Kingma 2024, arXiv 2411.19870. k values and k uint16 indices per chunk are gathered from all workers.
  The paper's step, x <- (1 - eta wd) x - eta sign(mean), is left to the optimizer: `optax.sign_sgd`. The authors' code
  adds eta g_i to the momentum. A constant eta has no effect, because it only scales q, and the step uses only signs. As
  in that code, a chunk has along each axis the largest divisor of the axis up to `chunk` as its length, the DCT is
  orthonormal, an array [..., m] is treated as the matrix [n, m], and small arrays are also sent this way, although they
  take more bytes than their mean.

  Args:
    algorithm: a collective algorithm that uses only means and sums, of gradients or differences; with models the
      momentum would be a sum of models.
    decay: decay of each worker's momentum (beta); 0.999 in the paper.
    kept: coefficients sent per chunk (k); 32 in the paper.
    chunk: maximum length of a chunk along each axis (s); 64 in the paper.
  """
  check(f"demo.kept with chunk {chunk}", kept, integers(1, chunk**2))  # coefficients of a matrix's chunk

  def mean(group: Group, arrays: list[Any], memory: Tree) -> tuple[list[Any], Tree]:
    after, sent, spectra = list(memory), {}, {}
    for i, (x, m) in enumerate(zip(arrays, memory, strict=True)):
      if m is None:
        continue
      transform = _Transform(x, chunk)
      m = decay * m + x  # m_i <- beta m_i + g_i
      coefficients = transform.forward(m)  # [chunks, values]
      _, places = lax.top_k(jnp.abs(coefficients), min(kept, coefficients.shape[1]))
      values = jnp.take_along_axis(coefficients, places, axis=1).astype(x.dtype)  # q_i
      sent[i] = values, places.astype(jnp.uint16)
      after[i] = m - transform.inverse(_mean_of_senders(coefficients, *(y[None] for y in sent[i])))
      spectra[i] = transform, coefficients
    whole = group.mean({i: x for i, x in enumerate(arrays) if i not in sent})
    for i, message in group.gather(sent).items():
      transform, coefficients = spectra[i]
      whole[i] = transform.inverse(_mean_of_senders(coefficients, *message))
    return [whole[i] for i in range(len(arrays))], tuple(after)

  return compressed(algorithm, Compressor("demo", lambda arrays, key: unsent(arrays), mean))


class _Transform:
  """The orthonormal DCT of an array, in chunks."""

  def __init__(self, x: Any, chunk: int):
    self.shape, self.dtype = x.shape, x.dtype
    self.wide = wide(x.dtype)
    columns = x.shape[-1] if x.ndim > 1 else x.size
    self.sizes = [max(d for d in range(1, min(n, chunk) + 1) if n % d == 0) for n in (x.size // columns, columns)]
    self.split = (x.size // columns // self.sizes[0], self.sizes[0], columns // self.sizes[1], self.sizes[1])
    self.bases = [jnp.asarray(_dct(n), self.wide) for n in self.sizes]

  def forward(self, x: jax.Array) -> jax.Array:
    """Return the DCT coefficients [chunks, values] of an array [...]."""
    out = self._apply("yaxb,ka,lb->yxkl", x.astype(self.wide).reshape(self.split))
    return out.reshape(-1, self.sizes[0] * self.sizes[1])

  def inverse(self, coefficients: jax.Array) -> jax.Array:
    """Return the array [...] with the given coefficients [chunks, values]."""
    chunks = coefficients.reshape(self.split[0], self.split[2], *self.sizes)
    return self._apply("yxkl,ka,lb->yaxb", chunks).reshape(self.shape).astype(self.dtype)

  def _apply(self, rule: str, x: jax.Array) -> jax.Array:
    return jnp.einsum(rule, x, *self.bases, precision=lax.Precision.HIGHEST)


def _dct(n: int) -> np.ndarray:
  """Return the matrix of the orthonormal DCT-II of n values: [n, n]."""
  k, i = np.mgrid[:n, :n]
  return np.where(k > 0, np.sqrt(2 / n), np.sqrt(1 / n)) * np.cos(np.pi * (2 * i + 1) * k / (2 * n))


def _mean_of_senders(like: jax.Array, values: jax.Array, places: jax.Array) -> jax.Array:
  """Return the mean of each coefficient [chunks, values] over the workers that sent it; 0 if none did.

  values, places: the values that the workers sent, and their indices, [workers, chunks, k]. like: an array with the
  shape and type of the result.
  """
  rows = jnp.arange(like.shape[0], dtype=jnp.int32)[:, None]

  def add(carry: tuple[jax.Array, jax.Array], message: tuple[jax.Array, jax.Array]) -> tuple[Any, None]:
    # Add one worker at a time: a GPU's scatter-add has no fixed order, so workers' results would differ by rounding.
    total, senders = carry
    values, places = message
    place = (rows, places.astype(jnp.int32))
    return (
      total.at[place].add(values.astype(total.dtype)),
      senders.at[place].add(jnp.ones_like(values, total.dtype)),
    ), None

  (total, senders), _ = lax.scan(add, (jnp.zeros_like(like), jnp.zeros_like(like)), (values, places))
  return total / jnp.maximum(senders, jnp.ones_like(senders))


SPEC = Wrapper(
  factory=demo,
  title="DeMo, decoupled momentum",
  citation="Peng, Quesnelle, Kingma 2024, arXiv 2411.19870",
  symbols={"decay": "beta", "kept": "k", "chunk": "s"},
)
