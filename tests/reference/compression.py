"""Compressed means as NumPy pseudo-code of their papers, and two algorithms around them.

A compressor is a function (x: [workers, n]) -> [n] that keeps a memory; n is that of `helpers.twins.tree_of`: a bias
and a kernel of 2 x 3.
"""

import numpy as np
from reference.history import History


class TopK:
  """Stich et al.: of v = x + e the k largest are sent, e <- v - sent; for each array."""

  def __init__(self, share):
    self.share, self.error = share, 0.0

  def __call__(self, x):
    v = x + self.error
    sent = np.zeros_like(v)
    for i in range(len(v)):
      for part in (slice(0, 1), slice(1, 7)):
        values = v[i, part]
        largest = np.argsort(-np.abs(values))[: max(1, round(self.share * len(values)))]
        sent[i, part][largest] = values[largest]
    self.error = v - sent
    return sent.mean(axis=0)


class PowerSGD:
  """Vogels et al.: P = orth(mean M Q), Q = mean M^T P, P Q^T; the bias as it is."""

  def __init__(self, q):
    self.q, self.error = q, 0.0

  def __call__(self, x):
    m = x[:, 1:].reshape(-1, 2, 3) + self.error
    p = sum(one @ self.q for one in m) / len(m)
    for k in range(p.shape[1]):  # Gram-Schmidt
      for j in range(k):
        p[:, k] -= (p[:, j] @ p[:, k]) * p[:, j]
      p[:, k] /= np.linalg.norm(p[:, k])
    self.q = sum(one.T @ p for one in m) / len(m)
    low = p @ self.q.T
    self.error = m - low
    return np.concatenate([x[:, :1].mean(axis=0), low.reshape(-1)])


def sync_sgd(x0, grad, *, workers, steps, inner, compressor):
  """The gradients' mean is compressed; the optimizer, with its momentum, comes after it."""
  x, update, params = x0.copy(), inner(), []
  for t in range(steps):
    g = compressor(np.array([grad(i, t, x) for i in range(workers)]))
    x = x + update(g, x)
    params.append([x] * workers)
  params = np.array(params)
  return History(params, params[:, 0])


def easgd(x0, grad, *, workers, steps, inner, alpha, compressor):
  """The sum of the differences is compressed, what a worker takes of its own is not."""
  x, z, params, evaluate = np.array([x0] * workers), x0.copy(), [], []
  updates = [inner() for _ in range(workers)]
  for t in range(steps):
    diff = x - z
    x = np.array([x[i] + updates[i](grad(i, t, x[i]), x[i]) - alpha * diff[i] for i in range(workers)])
    z = z + alpha * workers * compressor(diff)
    params.append(x.copy())
    evaluate.append(z.copy())
  return History(np.array(params), np.array(evaluate))
