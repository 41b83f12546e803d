"""DiLoCo and its streaming variant as NumPy pseudo-code; see `reference.collective` for the signature."""

import numpy as np
from reference.history import History

FRAGMENTS = {"bias": slice(0, 1), "kernel": slice(1, None)}  # the arrays of `helpers.twins.tree_of`, in their order


def rate_at(rate, step):
  """Return an outer learning rate, a number or a function of the outer step, at an outer step 0, 1, ..."""
  return rate(step) if callable(rate) else rate


class Outer:
  """SGD with Nesterov momentum: m <- mu m + D; z <- z - eta (D + mu m)."""

  def __init__(self, rate, momentum):
    self.rate, self.momentum, self.m, self.steps = rate, momentum, 0.0, 0

  def step(self, z, delta):
    self.m, rate, self.steps = self.momentum * self.m + delta, rate_at(self.rate, self.steps), self.steps + 1
    return z - rate * (delta + self.momentum * self.m)


def diloco(x0, grad, *, workers, steps, inner, period, outer_learning_rate, outer_momentum):
  """Douillard et al.: an outer step on the mean change of the workers, which continue from its result."""
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


def streaming_diloco(
  x0, grad, *, workers, steps, inner, period, outer_learning_rate, outer_momentum, fragments, delay, keep
):
  """Douillard et al.: fragment p is sent at t = t_p, t_p + H, ..., t_p = (p + 1) H // P, arrives tau later."""
  x, theta, params, evaluate = np.array([x0] * workers), x0.copy(), [], []
  updates = [inner() for _ in range(workers)]
  parts = [[s for i, s in enumerate(FRAGMENTS.values()) if i % fragments == p] for p in range(fragments)]
  outers = {(p, s.start): Outer(outer_learning_rate, outer_momentum) for p, part in enumerate(parts) for s in part}
  in_flight = {}  # (fragment, the step after which it arrives) -> Delta_p

  def arrive(p, t):
    for s, delta in in_flight.pop((p, t), []):
      theta[s] = outers[p, s.start].step(theta[s], delta)
      for i in range(workers):
        x[i][s] = keep * x[i][s] + (1 - keep) * theta[s]

  for t in range(1, steps + 1):
    for i in range(workers):
      x[i] = x[i] + updates[i](grad(i, t - 1, x[i]), x[i])
    for p in range(fragments):
      arrive(p, t)
    for p, part in enumerate(parts):
      first = (p + 1) * period // fragments
      if t >= first and (t - first) % period == 0:
        in_flight[p, t + delay] = [(s, sum(theta[s] - x[i][s] for i in range(workers)) / workers) for s in part]
      if delay == 0:
        arrive(p, t)
    params.append(x.copy())
    evaluate.append(theta.copy())
  return History(np.array(params), np.array(evaluate))
