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


def one_bit(a, live):
  """Return sign(a) |a|_2 / sqrt(n) of the live values; zeros are plus."""
  scale = np.sqrt((a[live] ** 2).sum() / max(live.sum(), 1))
  return np.where(live, np.where(a < 0, -scale, scale), 0.0)


def one_bit_adam(x0, grad, *, workers, steps, inner, freeze_step, b1, b2, eps):
  """Tang et al.: Adam; then momenta with a sign per value, with errors of the workers and of the strips' owners."""
  x, update, params, n = x0.copy(), inner(), [], len(x0)
  m, v, e, d = np.zeros(n), np.zeros(n), np.zeros((workers, n)), np.zeros(n)
  strip = 8 * int(np.ceil(n / (8 * workers)))
  for t in range(steps):
    g = [grad(i, t, x) for i in range(workers)]
    if t < freeze_step:
      mean = sum(g) / workers
      m, v = b1 * m + (1 - b1) * mean, b2 * v + (1 - b2) * mean**2
    else:
      live, total = v > 0, np.zeros(n)
      for i in range(workers):
        a = np.where(live, b1 * m + (1 - b1) * g[i] + e[i], 0)
        sent = one_bit(a, live)
        e[i] = a - sent
        total = total + sent
      r = np.where(live, total / workers + d, 0)
      m = np.concatenate([one_bit(r[j : j + strip], live[j : j + strip]) for j in range(0, n, strip)])
      d = r - m
    x = x + update(m / (np.sqrt(v) + eps), x)
    params.append([x] * workers)
  params = np.array(params)
  return History(params, params[:, 0])
