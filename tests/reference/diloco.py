"""DiLoCo as NumPy pseudo-code of its paper; see `reference.collective` for the form."""

import numpy as np
from reference.history import History


class Outer:
  """SGD with Nesterov momentum: m <- mu m + D; z <- z - eta (D + mu m)."""

  def __init__(self, rate, momentum):
    self.rate, self.momentum, self.m = rate, momentum, 0.0

  def step(self, z, delta):
    self.m = self.momentum * self.m + delta
    return z - self.rate * (delta + self.momentum * self.m)


def diloco(x0, grad, *, workers, steps, inner, period, outer_learning_rate, outer_momentum):
  """Douillard et al.: an outer step on the mean of what the workers moved; all go on from its result."""
  x, theta, params, evaluate = np.array([x0] * workers), x0.copy(), [], []
  updates, outer = [inner() for _ in range(workers)], Outer(outer_learning_rate, outer_momentum)
  for t in range(1, steps + 1):
    for i in range(workers):
      x[i] = x[i] + updates[i](grad(i, t - 1, x[i]), x[i])
    if t % period == 0:
      theta = outer.step(theta, sum(theta - x[i] for i in range(workers)) / workers)
      for i in range(workers):
        x[i] = theta
    params.append(x.copy())
    evaluate.append(theta.copy())
  return History(np.array(params), np.array(evaluate))
