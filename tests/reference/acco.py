"""ACCO as NumPy pseudo-code; see `reference.collective` for the signature. A step is one half batch."""

import numpy as np
from reference.history import History


def acco(x0, grad, *, workers, steps, inner):
  """Nabli et al.: pairs of half batches. The optimizer is rebuilt from its start and the committed gradients."""
  theta, params, evaluate = x0.copy(), [], []
  commits = []  # the gradients that the optimizer has seen, each with its model

  def opt(g, x):
    update = inner()
    for number, (old_g, old_x) in enumerate(commits):
      update.step = 2 * number
      update(old_g, old_x)
    update.step = 2 * len(commits)
    return x + update(g, x)

  def half(t, x):
    return sum(grad(i, t, x) for i in range(workers)) / workers

  def record(x):
    params.append(np.array([x] * workers))
    evaluate.append(theta.copy())

  g1, estimate = half(0, theta), None
  record(theta)
  for t in range(1, steps):
    if t % 2 == 1:  # phase B: the second half at theta, while g1 is reduced
      g2 = half(t, theta)
      estimate = opt(g1, theta)
      record(estimate)
    else:  # phase A: the first half of the next pair at the estimate, while both are reduced
      next_g1 = half(t, estimate)
      mean, before = (g1 + g2) / 2, theta
      theta = opt(mean, theta)
      commits.append((mean, before))
      g1 = next_g1
      record(theta)
  return History(np.array(params), np.array(evaluate))
