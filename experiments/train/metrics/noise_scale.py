"""The gradient noise scale of the consensus model: the batch beyond which more examples, or workers, pay little.

McCandlish, Kaplan, Amodei et al. 2018, arXiv 1812.06162. Of k gradients g_j, each of b examples drawn with replacement,
with the mean gbar:
tr(Sigma) ~ S = b / (k - 1) sum_j |g_j - gbar|^2,   |G|^2 ~ |gbar|^2 - S / (k b),   B_simple = tr(Sigma) / |G|^2.
These are the paper's unbiased estimates from batches of b and of k b examples, S = (|g|^2 - |gbar|^2) / (1/b - 1/(k b))
and |G|^2 = (k b |gbar|^2 - b |g|^2) / (k b - b), |g|^2 = (1/k) sum_j |g_j|^2, without their difference of two squares.
A ratio of them is biased, so both are averaged over the last evaluations first.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ddl.api import Model, Tree
from ddl.runtime.layout.placement import beside, local
from ddl.runtime.rounds.consensus import Consensus
from ddl.runtime.rounds.local_step import gradient_of
from experiments.config.experiment import noise_key

WINDOW = 5  # evaluations, whose means are divided: gradients shrink too fast in training for a longer memory
NORM2, TRACE, SCALE = "grad_norm2", "grad_noise", "noise_scale"  # of a line of metrics


class NoiseEstimator:
  """Estimates of |G|^2 and tr(Sigma) of one model, on one device."""

  def __init__(self, model: Model):
    """Compiles when first called."""
    self._add, self._square = jax.jit(_accumulate(model)), jax.jit(_square)

  def __call__(
    self, consensus: Consensus, batches: Iterable[Mapping[str, np.ndarray]], key: jax.Array
  ) -> dict[str, float]:
    """{"grad_norm2": |G|^2, "grad_noise": tr(Sigma) of one example}, from at least two batches of one size."""
    params, extra = local((consensus.params, consensus.extra))
    mean, spread, count, size = jax.tree.map(_zeros, params), jnp.zeros(()), 0, 0
    for count, batch in enumerate(batches, 1):
      size = len(jax.tree.leaves(batch)[0])
      mean, spread = self._add(
        (mean, spread), float(count), params, extra, beside(batch, params), jax.random.fold_in(key, count)
      )
    trace = size * float(spread) / (count - 1)  # S
    return {NORM2: float(self._square(mean)) - trace / (count * size), TRACE: trace}


def draw(size: int, *, batches: int, batch: int, seed: int, step: int) -> np.ndarray:
  """The examples of an evaluation after this step: [batches, batch], drawn with replacement from 0..size-1."""
  return np.random.default_rng(np.random.SeedSequence((seed, step, batches, batch))).integers(
    size, size=(batches, batch)
  )


def key_of(seed: int, step: int) -> jax.Array:
  """Key of the losses of that evaluation."""
  return jax.random.fold_in(noise_key(seed), step)


def recent(before: Sequence[Sequence[float]], line: Mapping[str, float]) -> list[list[float]]:
  """(|G|^2, tr(Sigma)) of the last evaluations with this line's; one without the figures changes nothing."""
  return [*map(list, before), *([[line[NORM2], line[TRACE]]] if NORM2 in line else [])][-WINDOW:]


def ratio(found: Sequence[Sequence[float]]) -> dict[str, float]:
  """{"noise_scale": B_simple in examples}, of sums; nothing where |G|^2 is not told from zero."""
  norm2, trace = np.sum(found, axis=0).tolist() if found else (0.0, 0.0)
  return {SCALE: trace / norm2} if norm2 > 0 else {}


def _accumulate(model: Model) -> Any:
  """((mean, sum_j |g_j - mean|^2), number, ...) -> the same with one gradient more (Welford)."""
  gradient = gradient_of(model)

  def add(carry: Any, count: Any, params: Tree, extra: Tree, batch: Any, key: Any) -> Any:
    mean, spread = carry
    grads = gradient(params, extra, batch, key)[1]
    before = jax.tree.map(lambda g, m: g.astype(m.dtype) - m, grads, mean)
    mean = jax.tree.map(lambda m, d: m + d / jnp.asarray(count, m.dtype), mean, before)
    after = jax.tree.map(lambda g, m: g.astype(m.dtype) - m, grads, mean)
    return mean, spread + _total(jax.tree.map(lambda d, e: jnp.sum(d * e), before, after))

  return add


def _square(tree: Tree) -> jax.Array:
  return _total(jax.tree.map(lambda x: jnp.sum(jnp.square(x)), tree))


def _total(terms: Tree) -> jax.Array:
  return sum((x.astype(jnp.result_type(float)) for x in jax.tree.leaves(terms)), start=jnp.zeros(()))


def _zeros(x: jax.Array) -> jax.Array:
  return jnp.zeros(x.shape, x.dtype if jnp.finfo(x.dtype).bits >= 32 else jnp.float32)
