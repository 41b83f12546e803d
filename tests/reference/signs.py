"""Algorithms that send signs of momenta, as NumPy pseudo-code; see `reference.collective` for the signature."""

import numpy as np
from reference.history import History


def distributed_lion(x0, grad, *, workers, steps, inner, b1, b2, aggregate):
  """Liu et al.: workers send the sign of their Lion update; zeros and ties are plus."""
  x, m, update, params = x0.copy(), np.zeros((workers, len(x0))), inner(), []
  for t in range(steps):
    total = np.zeros(len(x0))
    for i in range(workers):
      g = grad(i, t, x)
      total += np.where(b1 * m[i] + (1 - b1) * g < 0, -1, 1)
      m[i] = b2 * m[i] + (1 - b2) * g
    direction = np.where(total < 0, -1.0, 1.0) if aggregate == "vote" else total / workers
    x = x + update(direction, x)
    params.append([x] * workers)
  params = np.array(params)
  return History(params, params[:, 0])
