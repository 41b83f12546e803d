"""Local SGD with two periods or changing ones, in NumPy; see `reference.collective` for the signature."""

import numpy as np
from reference.history import History


def hierarchical_sgd(x0, grad, *, workers, steps, inner, group_size, period, outer_period):
  """Lin et al.: blocks of workers average every tau steps, all workers every tau_o steps."""
  x, params, evaluate = np.array([x0] * workers), [], []
  updates = [inner() for _ in range(workers)]
  for t in range(1, steps + 1):
    for i in range(workers):
      x[i] = x[i] + updates[i](grad(i, t - 1, x[i]), x[i])
    if t % period == 0:
      for first in range(0, workers, group_size):
        block = range(first, first + group_size)
        mean = sum(x[j] for j in block) / group_size
        for j in block:
          x[j] = mean
    if t % outer_period == 0:
      mean = sum(x) / workers
      for i in range(workers):
        x[i] = mean
    params.append(x.copy())
    evaluate.append(sum(x) / workers)
  return History(np.array(params), np.array(evaluate))


def adaptive_local_sgd(x0, grad, *, workers, steps, inner, periods):
  """Wang & Joshi: a round that begins at step s has the period of the last pair with a first step <= s."""
  x, params, evaluate = np.array([x0] * workers), [], []
  updates = [inner() for _ in range(workers)]
  end = periods[0][1]
  for t in range(1, steps + 1):
    for i in range(workers):
      x[i] = x[i] + updates[i](grad(i, t - 1, x[i]), x[i])
    if t == end:
      mean = sum(x) / workers
      for i in range(workers):
        x[i] = mean
      for first, tau in periods:
        if first <= t:
          end = t + tau
    params.append(x.copy())
    evaluate.append(sum(x) / workers)
  return History(np.array(params), np.array(evaluate))
