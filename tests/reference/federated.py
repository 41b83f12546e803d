"""FedAvg and SCAFFOLD as NumPy pseudo-code; see `reference.collective` for the signature.

samples: the ranks in each round r = 0, 1, ..., as drawn by ddl; None: all workers.
"""

import numpy as np
from reference.diloco import rate_at
from reference.history import History


def fedavg(x0, grad, *, workers, steps, inner, period, share, samples=None):
  """McMahan et al.: the sample trains from z with new optimizers; z is the mean of the resulting models."""
  assert samples or share == 1
  x, params, evaluate = np.array([x0] * workers), [], []
  updates = [inner() for _ in range(workers)]
  for t in range(1, steps + 1):
    for i in range(workers):
      x[i] = x[i] + updates[i](grad(i, t - 1, x[i]), x[i])
    if t % period == 0:
      settings = samples[t // period - 1] if samples else range(workers)
      z = sum(x[i] for i in settings) / len(settings)
      for i in range(workers):
        x[i], updates[i] = z, inner()
    params.append(x.copy())
    present = samples[t // period] if samples else range(workers)
    evaluate.append(sum(x[i] for i in present) / len(present))
  return History(np.array(params), np.array(evaluate))


def scaffold(x0, grad, *, workers, steps, inner, period, share, server_rate, samples=None, rate=None):
  """Karimireddy et al., option II.

  rate: compute c_i' from (x - y_i) / (K eta), as in the paper; None: from the mean of the gradients.
  """
  assert samples or share == 1
  x, y, params, evaluate = x0.copy(), np.array([x0] * workers), [], []
  updates, seen = [inner() for _ in range(workers)], [[] for _ in range(workers)]
  own, everybody = np.zeros((workers, len(x0))), np.zeros_like(x0)
  for t in range(1, steps + 1):
    for i in range(workers):
      g = grad(i, t - 1, y[i])
      seen[i].append(g)
      y[i] = y[i] + updates[i](g - own[i] + everybody, y[i])
    if t % period == 0:
      settings = samples[t // period - 1] if samples else range(workers)
      new = own.copy()
      for i in settings:
        new[i] = own[i] - everybody + (x - y[i]) / (period * rate) if rate else sum(seen[i]) / len(seen[i])
      x = x + rate_at(server_rate, t // period - 1) * sum(y[i] - x for i in settings) / len(settings)
      everybody = everybody + sum(new[i] - own[i] for i in settings) / workers
      own, seen = new, [[] for _ in range(workers)]
      for i in range(workers):
        y[i], updates[i] = x, inner()
    params.append(y.copy())
    evaluate.append(x.copy())
  return History(np.array(params), np.array(evaluate))
