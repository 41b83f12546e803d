"""Compressed means as the pseudo-code of their papers, in NumPy, and two algorithms that use them.

A compressor is a function (x: [workers, n]) -> [n] with a memory; n is the size of `helpers.twins.tree_of`: a bias and
a kernel [2, 3].
"""

import numpy as np
from reference.history import History
from scipy.fft import dctn, idctn

PARTS = (slice(0, 1), slice(1, 7))


class TopK:
  """Stich et al.: for each array send the k largest of v = x + e, then e <- v - sent."""

  def __init__(self, share):
    self.share, self.error = share, 0.0

  def __call__(self, x):
    v = x + self.error
    sent = np.zeros_like(v)
    for i in range(len(v)):
      for part in PARTS:
        values = v[i, part]
        largest = np.argsort(-np.abs(values))[: max(1, round(self.share * len(values)))]
        sent[i, part][largest] = values[largest]
    self.error = v - sent
    return sent.mean(axis=0)


class RandomK:
  """Stich et al.: all workers send the same k values of v = x + e, then e <- v - sent.

  choose(time, part, size, k) -> indices.
  """

  def __init__(self, share, choose):
    self.share, self.choose, self.error, self.time = share, choose, 0.0, 0

  def __call__(self, x):
    v = x + self.error
    sent = np.zeros_like(v)
    for number, part in enumerate(PARTS):
      size = part.stop - part.start
      places = part.start + self.choose(self.time, number, size, max(1, round(self.share * size)))
      assert len({*places}) == len(places)
      sent[:, places] = v[:, places]
    self.error, self.time = v - sent, self.time + 1
    return sent.mean(axis=0)


class DeMo:
  """Peng et al.: m <- beta m + g; send the k largest DCT coefficients per chunk, subtract them; mean over senders."""

  def __init__(self, decay, kept, chunk):
    self.decay, self.kept, self.chunk, self.m = decay, kept, chunk, 0.0

  def __call__(self, x):
    self.m = self.decay * self.m + x
    out = np.zeros(7)
    for part, shape in zip(PARTS, [(1, 1), (2, 3)], strict=True):
      h, w = (max(d for d in range(1, self.chunk + 1) if n % d == 0) for n in shape)
      matrices, mean = self.m[:, part].reshape(-1, *shape), np.zeros(shape)
      for top in range(0, shape[0], h):
        for left in range(0, shape[1], w):
          total, senders = np.zeros(h * w), np.zeros(h * w)
          for m in matrices:
            chunk = m[top : top + h, left : left + w]  # a view of self.m
            coefficients = dctn(chunk, norm="ortho").ravel()
            sent = np.zeros(h * w)
            largest = np.argsort(-np.abs(coefficients))[: self.kept]
            sent[largest] = coefficients[largest]
            chunk -= idctn(sent.reshape(h, w), norm="ortho")
            total += sent
            senders[largest] += 1
          mean[top : top + h, left : left + w] = idctn((total / np.maximum(senders, 1)).reshape(h, w), norm="ortho")
      out[part] = mean.ravel()
    return out


class PowerSGD:
  """Vogels et al.: P = orth(mean M Q), Q = mean M^T P, result P Q^T; the bias is not compressed."""

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
  """Compress the mean of the gradients before the optimizer step."""
  x, update, params = x0.copy(), inner(), []
  for t in range(steps):
    g = compressor(np.array([grad(i, t, x) for i in range(workers)]))
    x = x + update(g, x)
    params.append([x] * workers)
  params = np.array(params)
  return History(params, params[:, 0])


def easgd(x0, grad, *, workers, steps, inner, alpha, compressor):
  """Compress the sum of the differences; each worker's own difference is exact."""
  x, z, params, evaluate = np.array([x0] * workers), x0.copy(), [], []
  updates = [inner() for _ in range(workers)]
  for t in range(steps):
    diff = x - z
    x = np.array([x[i] + updates[i](grad(i, t, x[i]), x[i]) - alpha * diff[i] for i in range(workers)])
    z = z + alpha * workers * compressor(diff)
    params.append(x.copy())
    evaluate.append(z.copy())
  return History(np.array(params), np.array(evaluate))


def sparta(x0, grad, *, workers, steps, inner, share, choose):
  """Average a random share of the values after each local step; choose: as in `RandomK`."""
  x, params, evaluate = np.array([x0] * workers), [], []
  updates = [inner() for _ in range(workers)]
  for t in range(steps):
    for i in range(workers):
      x[i] = x[i] + updates[i](grad(i, t, x[i]), x[i])
    for number, part in enumerate(PARTS):
      size = part.stop - part.start
      for j in part.start + choose(t, number, size, max(1, round(share * size))):
        x[:, j] = x[:, j].sum() / workers
    params.append(x.copy())
    evaluate.append(x.mean(axis=0))
  return History(np.array(params), np.array(evaluate))
