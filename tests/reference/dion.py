"""Dion as NumPy pseudo-code; see `reference.collective` for the signature."""

import math

import numpy as np
from reference.history import History

# The right factor that ddl draws for the kernel [2, 3] of `helpers.twins.tree_of`, in float64, for each rank.
START = {
  1: np.array([[-1.400884102827668], [1.4321449977776874]]),
  2: np.array([[-1.400884102827668, 1.4321449977776874], [0.6248106961344603, 0.20048727190797802]]),
}


def orthonormalized(columns):
  """Return the columns made orthonormal one by one (Gram-Schmidt)."""
  basis = []
  for column in columns.T:
    for other in basis:
      column = column - (other @ column) * other
    basis.append(column / math.sqrt(column @ column))
  return np.stack(basis, axis=1)


def dion(x0, grad, *, workers, steps, inner, rank, momentum, start=None, whole=False, own=False):
  """Ahn et al.: low-rank orthonormalization of decoupled momenta, for the kernel; the bias gets the mean gradient.

  start: Q of the first step, else START. whole: send the gradient instead of the factors. own: use each worker's own
  R in the error feedback instead of the mean.
  """
  x, params, update = x0.copy(), [], inner()
  q = START[math.ceil(2 * rank)] if start is None else start
  m = np.zeros((workers, 3, 2))  # [outputs, inputs], as in the authors' code
  for t in range(steps):
    g = [grad(i, t, x) for i in range(workers)]
    if whole:
      g = [sum(g) / workers] * workers
    for i in range(workers):
      m[i] += g[i][1:].reshape(2, 3).T
    p = orthonormalized(sum(m[i] @ q for i in range(workers)) / workers)
    rs = [m[i].T @ p for i in range(workers)]
    r = sum(rs) / workers
    for i in range(workers):
      m[i] -= (1 - momentum) * p @ (rs[i] if own else r).T
    q = r / (np.sqrt((r**2).sum(axis=0)) + 1e-8)
    direction = math.sqrt(3 / 2) * p @ q.T
    mean = sum(g) / workers
    mean[1:] = direction.T.reshape(-1)
    x = x + update(mean, x)
    params.append([x.copy()] * workers)
  return History(np.array(params), np.array(params)[:, 0])
