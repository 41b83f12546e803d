"""CoCoD, Overlap-Local-SGD and Pipe-SGD as NumPy pseudo-code; see `reference.collective` for the signature."""

import numpy as np
from reference.history import History


def cocod(x0, grad, *, workers, steps, inner, period):
  """Shen et al.: in each round take the mean of the initial models and add the worker's own change."""
  x, params, evaluate = np.array([x0] * workers), [], []
  updates = [inner() for _ in range(workers)]
  start = x.copy()
  for t in range(1, steps + 1):
    for i in range(workers):
      x[i] = x[i] + updates[i](grad(i, t - 1, x[i]), x[i])
    if t % period == 0:
      mean = sum(start) / workers
      for i in range(workers):
        x[i] = mean + (x[i] - start[i])
      start = x.copy()
    params.append(x.copy())
    evaluate.append(sum(x) / workers)
  return History(np.array(params), np.array(evaluate))


def overlap_local_sgd(x0, grad, *, workers, steps, inner, period, pull, momentum):
  """Wang et al., as in the authors' code: each worker moves its copy of the anchor; the copies are averaged."""
  x, anchor, params, evaluate = np.array([x0] * workers), x0.copy(), [], []
  velocity, updates = np.zeros_like(x), [inner() for _ in range(workers)]
  for t in range(1, steps + 1):
    for i in range(workers):
      x[i] = x[i] + updates[i](grad(i, t - 1, x[i]), x[i])
    if t % period == 0:  # the average sent one period ago arrives
      copies = []
      for i in range(workers):
        x[i] = (1 - pull) * x[i] + pull * anchor
        velocity[i] = momentum * velocity[i] + (anchor - x[i])
        copies.append(anchor - velocity[i])
      anchor = sum(copies) / workers
    params.append(x.copy())
    evaluate.append(sum(x) / workers)
  return History(np.array(params), np.array(evaluate))


def pipe_sgd(x0, grad, *, workers, steps, inner, width):
  """Li et al.: x(t+1) = x(t) + u, with u from the mean of the gradients at x(t - K + 1)."""
  x, update, params, evaluate = [x0], inner(), [], []
  for t in range(steps):
    now = x[-1]
    old = t - width + 1
    if old >= 0:
      g = sum(grad(i, old, x[old]) for i in range(workers)) / workers
      now = now + update(g, now)
    x.append(now)
    params.append([now.copy() for _ in range(workers)])
    evaluate.append(now.copy())
  return History(np.array(params), np.array(evaluate))
