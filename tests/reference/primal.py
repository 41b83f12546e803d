"""SNOO and GPA as NumPy pseudo-code; see `reference.collective` for the signature."""

import numpy as np
from reference.diloco import rate_at
from reference.history import History


def snoo(x0, grad, *, workers, steps, inner, period, outer_learning_rate, outer_momentum):
  """Kallusky et al.: every K steps w moves by Nesterov momentum on the change of the fast weights."""
  fast, slow, b, params, evaluate, update, count = x0.copy(), x0.copy(), np.zeros_like(x0), [], [], inner(), 0
  for t in range(steps):
    g = sum(grad(i, t, fast) for i in range(workers)) / workers
    fast = fast + update(g, fast)
    if (t + 1) % period == 0:
      s = slow - fast
      b = outer_momentum * b + s
      slow = slow - rate_at(outer_learning_rate, count) * (outer_momentum * b + s)
      fast, count = slow, count + 1
    params.append([fast] * workers)
    evaluate.append(slow)
  return History(np.array(params), np.array(evaluate))


def gpa(x0, grad, *, workers, steps, inner, train_weight, average_weight):
  """Defazio et al.: steps of z with gradients at y, between z and the average x."""
  x, z, params, evaluate, update = x0.copy(), x0.copy(), [], [], inner()
  y = train_weight * x + (1 - train_weight) * z
  for t in range(steps):
    g = sum(grad(i, t, y) for i in range(workers)) / workers
    z = z + update(g, z)
    x = average_weight * x + (1 - average_weight) * z
    y = train_weight * x + (1 - train_weight) * z
    params.append([y] * workers)
    evaluate.append(x)
  return History(np.array(params), np.array(evaluate))
