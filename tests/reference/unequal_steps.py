"""FedProx and FedNova as NumPy pseudo-code; see `reference.collective` for the signature.

samples: the ranks in each round r = 0, 1, ..., as drawn by ddl; None: all workers. local_steps: steps of worker i in a
round, repeated if there are more workers; (): all take `period`.
"""

import numpy as np
from reference.history import History


def fedprox(x0, grad, *, proximal, period, local_steps, **how):
  """Li et al.: SGD on the local loss plus mu/2 |x - z|^2; the average of the results."""

  def worker(i, z, first, update, count):
    x, path = z.copy(), []
    for k in range(count):
      if k < steps_of(local_steps, i, period):
        x = x + update(grad(i, first + k, x) + proximal * (x - z), x)
      path.append(x.copy())
    return path, None

  return rounds(x0, worker, lambda z, ends, _: sum(ends) / len(ends), period=period, **how)


def fednova(x0, grad, *, period, local_steps, inner, **how):
  """Wang et al.: every change is divided by the sum of the weights of its gradients, its value for gradients of 1."""

  def worker(i, z, first, update, count):
    x, path, tau = z.copy(), [], steps_of(local_steps, i, period)
    for k in range(count):
      if k < tau:
        x = x + update(grad(i, first + k, x), x)
      path.append(x.copy())
    response = inner()
    return path, -sum(response(1.0, 0.0) for _ in range(tau))

  def server(z, ends, weights):
    change = sum((z - x) / s for x, s in zip(ends, weights, strict=True)) / len(ends)
    return z - sum(weights) / len(weights) * change

  return rounds(x0, worker, server, period=period, inner=inner, **how)


def steps_of(local_steps, i, period):
  """Return tau_i."""
  return local_steps[i % len(local_steps)] if local_steps else period


def rounds(x0, worker, server, *, workers, steps, inner, period, share, samples=None):
  """Run whole rounds: worker(i, z, first step, new optimizer, steps) -> (models after each step, weight)."""
  assert samples or share == 1
  z, params, evaluate = x0.copy(), [], []
  for r in range(-(-steps // period)):
    count = min(period, steps - r * period)  # the last round may be incomplete
    results = [worker(i, z, r * period, inner(), count) for i in range(workers)]
    for k in range(count):
      params.append(np.array([path[k] for path, _ in results]))
      evaluate.append(z.copy())
    if count < period:
      break
    settings = samples[r] if samples else range(workers)
    z = server(z, [results[i][0][-1] for i in settings], [results[i][1] for i in settings])
    params[-1], evaluate[-1] = np.array([z] * workers), z.copy()
  return History(np.array(params), np.array(evaluate))
