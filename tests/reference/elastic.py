"""EASGD, its variants and SMA as NumPy pseudo-code; see `reference.collective` for the signature."""

import numpy as np
from reference.history import History


def easgd(x0, grad, *, workers, steps, inner, alpha, period):
  """Zhang et al., You et al. (1) and (2): x_i and z both move by alpha (x_i - z) from before the step."""
  x, z, params, evaluate = np.array([x0] * workers), x0.copy(), [], []
  updates = [inner() for _ in range(workers)]
  for t in range(steps):
    exchange = 1.0 if t % period == 0 else 0.0
    before, center = x.copy(), z.copy()
    for i in range(workers):
      x[i] = before[i] + updates[i](grad(i, t, before[i]), before[i]) - exchange * alpha * (before[i] - center)
      z = z + exchange * alpha * (before[i] - center)  # no 1/p
    params.append(x.copy())
    evaluate.append(z.copy())
  return History(np.array(params), np.array(evaluate))


def eamsgd(x0, grad, *, workers, steps, inner, alpha, momentum, period):
  """Zhang et al.: v' = delta v + u(x + delta v), x' = x + v' - alpha (x - z), z' = z + alpha sum_i (x_i - z).

  The params of the history are the look-ahead points x + delta v, where the next gradients are taken.
  """
  x, z, params, evaluate = np.array([x0] * workers), x0.copy(), [], []
  v = np.zeros_like(x)
  updates = [inner() for _ in range(workers)]
  for t in range(steps):
    exchange = 1.0 if t % period == 0 else 0.0
    before, center = x.copy(), z.copy()
    for i in range(workers):
      ahead = before[i] + momentum * v[i]
      v[i] = momentum * v[i] + updates[i](grad(i, t, ahead), ahead)
      x[i] = before[i] + v[i] - exchange * alpha * (before[i] - center)
      z = z + exchange * alpha * (before[i] - center)
    params.append(x + momentum * v)
    evaluate.append(z.copy())
  return History(np.array(params), np.array(evaluate))


def round_robin_easgd(x0, grad, *, workers, steps, inner, alpha):
  """You et al., Original EASGD: at step t only worker t mod p exchanges with the center."""
  x, z, params, evaluate = np.array([x0] * workers), x0.copy(), [], []
  updates = [inner() for _ in range(workers)]
  for t in range(steps):
    j = t % workers
    diff = x[j] - z
    for i in range(workers):
      x[i] = x[i] + updates[i](grad(i, t, x[i]), x[i])
    x[j] = x[j] - alpha * diff
    z = z + alpha * diff
    params.append(x.copy())
    evaluate.append(z.copy())
  return History(np.array(params), np.array(evaluate))


def sma(x0, grad, *, workers, steps, inner, alpha, momentum, period):
  """Koliousis et al.: corrections c_j, and a central average model with momentum."""
  w, z, previous, params, evaluate = np.array([x0] * workers), x0.copy(), x0.copy(), [], []
  updates = [inner() for _ in range(workers)]
  for t in range(steps):
    c = [alpha * (w[j] - z) if t % period == 0 else 0.0 for j in range(workers)]
    for j in range(workers):
      w[j] = w[j] + updates[j](grad(j, t, w[j]), w[j]) - c[j]
    if t % period == 0:
      z, previous = z + sum(c) + momentum * (z - previous), z
    params.append(w.copy())
    evaluate.append(z.copy())
  return History(np.array(params), np.array(evaluate))
