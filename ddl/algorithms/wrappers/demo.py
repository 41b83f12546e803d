"""DeMo, decoupled momentum."""

from typing import Annotated, Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from ddl.algorithms.sparse import Chunks, Sparse, dense, mean_of_senders, top_k
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

  mean(g) becomes IDCT(q); m_i <- beta m_i + g_i; q_i = the k DCT coefficients of each chunk of m_i that are largest in
  magnitude; m_i <- m_i - IDCT(q_i); q = the mean of each coefficient over the workers that sent it

  Peng, Quesnelle, Kingma 2024, arXiv 2411.19870. All workers gather k values and k uint16 indices per chunk from each
  worker. The optimizer takes the paper's step, x <- (1 - eta wd) x - eta sign(mean); without weight decay it is
  `optax.sign_sgd`. The authors' code adds eta g_i instead of g_i to the momentum; a constant eta makes no difference,
  because it only scales q, and the step uses only signs. As in that code, the DCT is orthonormal, an array [..., m] is
  treated as the matrix [n, m], and the length of a chunk along each axis is the axis length's largest divisor that is
  at most `chunk`. Small arrays are also sent as coefficients, although these take more bytes than an uncompressed mean.

  Args:
    algorithm: a collective algorithm that uses only means and sums, of gradients or differences; means of models are
      rejected, because m_i would be a sum of models.
    decay: decay of each worker's momentum (beta); 0.999 in the paper.
    kept: coefficients sent per chunk (k); 32 in the paper.
    chunk: maximum length of a chunk along each axis (s); 64 in the paper.
  """
  check(f"demo.kept with chunk {chunk}", kept, integers(1, chunk**2))  # coefficients of a matrix's chunk

  def mean(group: Group, arrays: list[Any], memory: Tree) -> tuple[list[Any], Tree]:
    after, sent, transforms = list(memory), {}, {}
    for i, (x, m) in enumerate(zip(arrays, memory, strict=True)):
      if m is None:
        continue
      transform = _Transform(x, chunk)
      m = decay * m + x  # m_i <- beta m_i + g_i
      strongest = top_k(transform.forward(m), min(kept, transform.chunks.values))
      values = strongest.values.astype(x.dtype)  # q_i
      sent[i] = Sparse(values, strongest.places.astype(jnp.uint16))
      after[i] = m - transform.inverse(dense(transform.received(sent[i]), transform.chunks.values))
      transforms[i] = transform
    whole = group.mean({i: x for i, x in enumerate(arrays) if i not in sent})
    for i, message in group.gather(sent).items():
      coefficients = mean_of_senders(transforms[i].received(message), transforms[i].chunks.values)
      whole[i] = transforms[i].inverse(coefficients)
    return [whole[i] for i in range(len(arrays))], tuple(after)

  return compressed(algorithm, Compressor("demo", lambda arrays, key: unsent(arrays), mean))


class _Transform:
  """The orthonormal DCT of each chunk of an array."""

  def __init__(self, x: Any, chunk: int):
    self.dtype, self.wide, self.chunks = x.dtype, wide(x.dtype), Chunks(x.shape, chunk)
    self.bases = [jnp.asarray(_dct(n), self.wide) for n in self.chunks.sizes]

  def forward(self, x: jax.Array) -> jax.Array:
    """Return the DCT coefficients [chunks, values] of an array [...]."""
    return self._apply("cab,ka,lb->ckl", self.chunks.split(x.astype(self.wide)))

  def inverse(self, coefficients: jax.Array) -> jax.Array:
    """Return the array [...] with the given coefficients [chunks, values]."""
    return self.chunks.join(self._apply("ckl,ka,lb->cab", coefficients)).astype(self.dtype)

  def received(self, message: Sparse) -> Sparse:
    """Convert a message to the types used in computations: values in at least 32 bits, places as int32."""
    return Sparse(message.values.astype(self.wide), message.places.astype(jnp.int32))

  def _apply(self, rule: str, chunks: jax.Array) -> jax.Array:
    blocks = chunks.reshape(-1, *self.chunks.sizes)
    return jnp.einsum(rule, blocks, *self.bases, precision=lax.Precision.HIGHEST).reshape(chunks.shape)


def _dct(n: int) -> np.ndarray:
  """Return the matrix of the orthonormal DCT-II of n values: [n, n]."""
  k, i = np.mgrid[:n, :n]
  return np.where(k > 0, np.sqrt(2 / n), np.sqrt(1 / n)) * np.cos(np.pi * (2 * i + 1) * k / (2 * n))


SPEC = Wrapper(
  factory=demo,
  title="DeMo, decoupled momentum",
  citation="Peng, Quesnelle, Kingma 2024, arXiv 2411.19870",
  symbols={"decay": "beta", "kept": "k", "chunk": "s"},
)
