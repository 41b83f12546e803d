"""DES-LOC and MT-DAO as NumPy pseudo-code; see `reference.collective` for the signature.

An optimizer's moments are the attributes `first` and `second` of its update function, if it has them.
"""

import numpy as np
from reference.history import History


def average(updates, name):
  """Replace a moment of all workers by its mean."""
  values = [getattr(update, name) for update in updates if hasattr(update, name)]
  for update in updates if values else ():
    setattr(update, name, sum(values) / len(values))


def des_loc(x0, grad, *, workers, steps, inner, period, momentum_period=None, variance_period=None):
  """Iacob et al.: models, first moments and second moments are averaged after steps that their periods divide."""
  x, params, evaluate = np.array([x0] * workers), [], []
  updates = [inner() for _ in range(workers)]
  for t in range(1, steps + 1):
    for i in range(workers):
      x[i] = x[i] + updates[i](grad(i, t - 1, x[i]), x[i])
    if t % period == 0:
      x[:] = sum(x) / workers
    if t % (momentum_period or 3 * period) == 0:
      average(updates, "first")
    if t % (variance_period or 6 * period) == 0:
      average(updates, "second")
    params.append(x.copy())
    evaluate.append(sum(x) / workers)
  return History(np.array(params), np.array(evaluate))


def mt_dao(
  x0, grad, *, workers, steps, inner, period, momentum_period=None, variance_period=None, b1, b2, weight, eps
):  # fmt: skip
  """Iacob et al.: a mixture of the gradient and a slow momentum, divided by the root of the second moment."""
  x, params, evaluate = np.array([x0] * workers), [], []
  u, v, updates = np.zeros_like(x), np.zeros_like(x), [inner() for _ in range(workers)]
  for t in range(1, steps + 1):
    for i in range(workers):
      g = grad(i, t - 1, x[i])
      u[i] = b1 * u[i] + (1 - b1) * g
      v[i] = b2 * v[i] + (1 - b2) * g * g
      mixed = (1 - weight) * g + weight * u[i] / (1 - b1**t)
      x[i] = x[i] + updates[i](mixed / (np.sqrt(v[i] / (1 - b2**t)) + eps), x[i])
    if t % period == 0:
      x[:] = sum(x) / workers
    if t % (momentum_period or period) == 0:
      u[:] = sum(u) / workers
      average(updates, "first")
    if t % (variance_period or period) == 0:
      v[:] = sum(v) / workers
      average(updates, "second")
    params.append(x.copy())
    evaluate.append(sum(x) / workers)
  return History(np.array(params), np.array(evaluate))
