"""FedAdam, FedYogi and FedAdagrad as NumPy pseudo-code; see `reference.collective` for the signature.

samples: the ranks in each round r = 0, 1, ..., as drawn by ddl; None: all workers. As in the paper's algorithm 2, delta
is the mean of x_i - z, which is added.
"""

import numpy as np
from reference.diloco import rate_at
from reference.history import History


def fedadam(x0, grad, *, b2, adaptivity, **how):
  """Reddi et al.: v is an exponential moving average."""
  return adaptive(x0, grad, lambda v, d: b2 * v + (1 - b2) * d**2, adaptivity=adaptivity, **how)


def fedyogi(x0, grad, *, b2, adaptivity, **how):
  """Reddi et al.: v moves towards d^2 by an amount that depends on d only."""

  def second(v, d):
    return np.array([
      before - (1 - b2) * one**2 if before > one**2 else before + (1 - b2) * one**2
      for before, one in zip(v, d, strict=True)
    ])  # fmt: skip

  return adaptive(x0, grad, second, adaptivity=adaptivity, **how)


def fedadagrad(x0, grad, *, adaptivity, **how):
  """Reddi et al.: v is a sum."""
  return adaptive(x0, grad, lambda v, d: v + d**2, adaptivity=adaptivity, **how)


def adaptive(
  x0, grad, second, *, workers, steps, inner, period, share, server_rate, b1, adaptivity, samples=None
):  # fmt: skip
  """Train with new optimizers from z in each round; then z takes an adaptive step."""
  assert samples or share == 1
  z, x, params, evaluate = x0.copy(), np.array([x0] * workers), [], []
  updates = [inner() for _ in range(workers)]
  m, v = np.zeros_like(x0), np.full_like(x0, adaptivity**2)
  for t in range(1, steps + 1):
    for i in range(workers):
      x[i] = x[i] + updates[i](grad(i, t - 1, x[i]), x[i])
    if t % period == 0:
      settings = samples[t // period - 1] if samples else range(workers)
      delta = sum(x[i] - z for i in settings) / len(settings)
      m = b1 * m + (1 - b1) * delta
      v = second(v, delta)
      z = z + rate_at(server_rate, t // period - 1) * m / (np.sqrt(v) + adaptivity)
      for i in range(workers):
        x[i], updates[i] = z, inner()
    params.append(x.copy())
    evaluate.append(z.copy())
  return History(np.array(params), np.array(evaluate))
