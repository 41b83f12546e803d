"""SlowMo, BMUF, Eager DiLoCo and NoLoCo as NumPy pseudo-code; see `reference.collective` for the signature."""

import numpy as np
from reference.diloco import Outer, rate_at
from reference.history import History


def slowmo(x0, grad, *, workers, steps, inner, period, slow_rate, slow_momentum, rate=lambda step: 1.0):
  """Wang et al.: slow momentum in units of the inner rate gamma = rate(t) of the round's last step t."""
  x, z, u, params, evaluate = np.array([x0] * workers), x0.copy(), 0.0, [], []
  updates = [inner() for _ in range(workers)]
  for t in range(steps):
    for i in range(workers):
      x[i] = x[i] + updates[i](grad(i, t, x[i]), x[i])
    if (t + 1) % period == 0:
      gamma = rate(t)
      u = slow_momentum * u + (z - sum(x) / workers) / gamma
      z = z - rate_at(slow_rate, t // period) * gamma * u
      for i in range(workers):
        x[i] = z
    params.append(x.copy())
    evaluate.append(z.copy())
  return History(np.array(params), np.array(evaluate))


def bmuf(x0, grad, *, workers, steps, inner, period, block_learning_rate, block_momentum, nesterov):
  """Chen & Huo: block updates with momentum; the next block starts from W, or from W plus the momentum."""
  x, start, w, delta, params, evaluate = np.array([x0] * workers), x0.copy(), x0.copy(), np.zeros_like(x0), [], []
  updates = [inner() for _ in range(workers)]
  for t in range(1, steps + 1):
    for i in range(workers):
      x[i] = x[i] + updates[i](grad(i, t - 1, x[i]), x[i])
    if t % period == 0:
      g = sum(x) / workers - start
      zeta = rate_at(block_learning_rate, t // period - 1)
      delta = block_momentum * delta + zeta * g
      w = w + delta
      start = w + block_momentum * delta if nesterov else w
      for i in range(workers):
        x[i] = start
    params.append(x.copy())
    evaluate.append(start.copy())
  return History(np.array(params), np.array(evaluate))


def eager_diloco(x0, grad, *, workers, steps, inner, period, outer_learning_rate, outer_momentum):
  """Kale et al.: each worker's outer gradient has its own current share and the others' from the previous round."""
  x, theta, params, evaluate = np.array([x0] * workers), np.array([x0] * workers), [], []
  updates = [inner() for _ in range(workers)]
  outers = [Outer(outer_learning_rate, outer_momentum) for _ in range(workers)]
  before = np.zeros_like(x)  # D_i of the previous round
  for t in range(1, steps + 1):
    for i in range(workers):
      x[i] = x[i] + updates[i](grad(i, t - 1, x[i]), x[i])
    if t % period == 0:
      moved = theta - x
      for i in range(workers):
        others = sum(before[j] for j in range(workers) if j != i)
        theta[i] = outers[i].step(theta[i], (moved[i] + others) / workers)
        x[i] = theta[i]
      before = moved
    params.append(x.copy())
    evaluate.append(sum(theta) / workers)
  return History(np.array(params), np.array(evaluate))


def noloco(x0, grad, *, workers, steps, inner, period, outer_learning_rate, outer_momentum, attraction, pairings):
  """Kolehmainen et al.: pairs average their changes and pull their slow weights together."""
  x, phi, params, evaluate = np.array([x0] * workers), np.array([x0] * workers), [], []
  delta, updates = np.zeros_like(x), [inner() for _ in range(workers)]
  draw = np.random.default_rng(0)
  orders = [draw.permutation(workers) for _ in range(pairings)]
  for t in range(1, steps + 1):
    for i in range(workers):
      x[i] = x[i] + updates[i](grad(i, t - 1, x[i]), x[i])
    if t % period == 0:
      order, beta = orders[(t // period - 1) % pairings], rate_at(outer_learning_rate, t // period - 1)
      for start in range(0, workers, 2):
        group = order[start : start + 2]  # one worker has no partner if the number is odd
        moved = sum(x[j] - phi[j] for j in group) / len(group)
        mean = sum(phi[j] for j in group) / len(group)
        for j in group:
          delta[j] = outer_momentum * delta[j] + beta * moved + attraction * (mean - phi[j])
        for j in group:
          phi[j] = phi[j] + delta[j]
          x[j] = phi[j]
    params.append(x.copy())
    evaluate.append(sum(phi) / workers)
  return History(np.array(params), np.array(evaluate))
