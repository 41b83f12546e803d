"""Dion."""

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from ddl.algorithms.matrices import hidden_matrices, orthonormal
from ddl.api import Algorithm, Spec, Taxonomy, Tree, descend
from ddl.group import Group
from ddl.precision import wide
from ddl.ranges import Momentum, Share, checked

EPSILON = 1e-8  # added to the norms of columns, as in the authors' code


class Factor(NamedTuple):
  """The state of a matrix; n is its longer and m its shorter side."""

  momentum: jax.Array  # M_i: [n, m], of this worker
  q: jax.Array  # Q: [m, r], equal on all workers


class DionState(NamedTuple):
  inner: optax.OptState
  factors: dict[int, Factor]  # of the hidden matrices, by the array's index in the tree


@checked
def dion(inner: optax.GradientTransformation, *, rank: Share = 0.25, momentum: Momentum = 0.95) -> Algorithm:
  """Orthogonalize a low-rank approximation of each matrix's momentum, and synchronize only its factors (Dion).

  M_i <- M_i + g_i; P = orthonormal((1/p) sum_i M_i Q); R = (1/p) sum_i M_i^T P; M_i <- M_i - (1 - mu) P R^T;
  Q <- R with columns of norm 1; X <- X + inner(sqrt(n_out / n_in) P Q^T)

  Ahn, Xu, Abreu, Langford et al. 2025, arXiv 2504.05295. g_i is added to M_i without a factor 1 - mu, and M_i decays
  only along the columns of P; this is the error feedback. All workers have the same X, which equals that of a single
  worker with the mean gradient; only the M_i differ. The update applies to `ddl.hidden_matrices`, which are transposed
  if necessary so that P has the length of the longer side, as in the authors' code. Q starts with fixed Gaussian
  entries and does not change while R = 0. All other arrays get x <- x + inner((1/p) sum_i g_i).

  In each step, two successive means send r (n + m) values per matrix [n, m], with r = ceil(rank min(n, m)), and the
  other arrays whole. If r (n + m) >= n m, the mean of g_i is sent instead, which results in the same X. The evaluated
  model is X. Do not use a wrapper: the error feedback of a compressor would add errors of factors that belong to
  different Q.

  Args:
    inner: optimizer of the directions P Q^T and of the mean gradients, the same on all workers. It must not normalize
      or accumulate P Q^T again: use `sgd_adamw` of the config's optimizers, which applies SGD and weight decay to the
      matrices and AdamW to other arrays, or optax.partition with `ddl.hidden_matrices`.
    rank: r as a share of the shorter side; 1 in the authors' code; in the paper, 1/4 costs no accuracy at 3B
      parameters.
    momentum: decay along the orthonormal columns (mu); 0.95 in the paper.
  """

  def init(group: Group, params: Tree, key: Any) -> DionState:
    def one(i: int, x: jax.Array) -> Factor:
      m, start = min(x.shape), jax.random.fold_in(jax.random.key(0), i)
      return Factor(jnp.zeros_like(_tall(x, x)), jax.random.normal(start, (m, math.ceil(rank * m)), x.dtype))

    arrays = zip(jax.tree.leaves(params), jax.tree.leaves(hidden_matrices(params)), strict=True)
    factors = {i: one(i, x) for i, (x, hidden) in enumerate(arrays) if hidden and x.size}
    return DionState(inner.init(params), factors)

  def local(group: Group, grads: Tree, state: DionState, params: Tree) -> tuple[Tree, DionState]:
    gradients, structure = jax.tree.flatten(grads)
    factors, after = state.factors, dict[int, Factor]()
    compressed = [i for i, factor in factors.items() if _saves(factor)]
    m = {i: factors[i].momentum + _tall(gradients[i], gradients[i]) for i in compressed}  # M_i <- M_i + g_i
    out = group.mean([m[i] @ factors[i].q if i in m else g for i, g in enumerate(gradients)])  # (1/p) sum_i M_i Q
    whole = {i: factors[i].momentum + _tall(out[i], out[i]) for i in factors if i not in m}  # M <- M + (1/p) sum_i g_i
    p = {i: orthonormal(whole[i] @ factors[i].q if i in whole else out[i]) for i in factors}
    mean = group.mean({i: m[i].T @ p[i] for i in m}) if m else {}  # R = (1/p) sum_i M_i^T P
    for i, factor in factors.items():
      r = mean[i] if i in m else whole[i].T @ p[i]
      moved = (m | whole)[i] - (1 - momentum) * (p[i] @ r.T)  # M_i <- M_i - (1 - mu) P R^T
      norms = jnp.linalg.norm(r.astype(wide(r.dtype)), axis=0, keepdims=True).astype(r.dtype)
      moves = jnp.any(r != 0)  # False while R = 0
      q = jnp.where(moves, r / (norms + EPSILON), factor.q)  # Q <- R with columns of norm 1
      after[i] = Factor(moved, q)
      scale = math.sqrt(gradients[i].shape[1] / gradients[i].shape[0])  # sqrt(n_out / n_in)
      direction = jnp.where(moves, scale, 0.0).astype(r.dtype) * (p[i] @ q.T)
      out[i] = _tall(direction, gradients[i])
    params, inner_state = descend(inner, structure.unflatten(out), state.inner, params)
    return params, DionState(inner_state, after)

  def evaluate(group: Group, state: DionState, params: Tree) -> Tree:
    return params

  return Algorithm(init, local, (), evaluate)


def _tall(x: jax.Array, like: jax.Array) -> jax.Array:
  """Transpose x unless `like` [inputs, outputs] has more inputs than outputs; a second call undoes the first."""
  return x if like.shape[0] > like.shape[1] else x.T


def _saves(factor: Factor) -> bool:
  """Return whether the low-rank factors have fewer values than the matrix."""
  (n, m), r = factor.momentum.shape, factor.q.shape[1]
  return r * (n + m) < n * m


SPEC = Spec(
  factory=dion,
  title="Dion (distributed orthonormalized updates)",
  citation="Ahn et al. 2025, arXiv 2504.05295",
  taxonomy=Taxonomy("data", "centralized", "synchronous", "all-reduce", "gradients"),
  symbols={"rank": "r / min(n, m)", "momentum": "mu"},
  expects={
    "optimizer.clip_norm": (0, "it limits the norm of the orthonormal directions, not of the gradients"),
    "wrapper.name": ("none", "its error feedback adds the errors of factors with different Q"),
  },
)
