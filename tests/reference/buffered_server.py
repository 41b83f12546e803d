"""Server algorithms that collect, weigh or ignore messages, in NumPy; see `reference.server` for the signature.

The server stores with each worker the version of the center, its number of updates, that the worker pulled.
"""

import numpy as np
from reference.collective import Grad, Inner
from reference.diloco import Outer, rate_at
from reference.history import History


def of_rows(rows) -> History:
  params, evaluate = zip(*rows, strict=True)
  return History(np.array(params), np.array(evaluate))  # [events, n] each


class HeavyBall(Outer):
  """SGD with momentum: m <- mu m + D; z <- z - eta m."""

  def step(self, z, delta):
    self.m, rate, self.steps = self.momentum * self.m + delta, rate_at(self.rate, self.steps), self.steps + 1
    return z - rate * self.m


def fedbuff(
  x0, grad: Grad, *, order, peers, workers: int, inner: Inner, buffer: int, weight: str,
  outer_learning_rate: float, outer_momentum: float, nesterov: bool, period: int, dylu: bool = False,
) -> History:  # fmt: skip
  """Nguyen et al.: the buffer receives s(tau) D; when it contains K of them, an outer step on their sum over K.

  dylu: False, or the number of steps per round of each worker.
  """
  z, version, arrived = x0, 0, []
  updates = [inner() for _ in range(workers)]
  outer = (Outer if nesterov else HeavyBall)(outer_learning_rate, outer_momentum)
  pulled, steps, rows = [(x0, 0)] * workers, [0] * workers, []
  for i in order:
    start, old = pulled[i]
    x = start
    for _ in range(dylu[i] if dylu else period):
      x, steps[i] = x + updates[i](grad(i, steps[i], x), x), steps[i] + 1
    arrived.append((start - x) * {"constant": 1.0, "polynomial": (1 + version - old) ** -0.5}[weight])
    if len(arrived) == buffer:
      z, version, arrived = outer.step(z, sum(arrived) / buffer), version + 1, []
    rows.append((x, z))
    pulled[i] = (z, version)
  return of_rows(rows)


def rennala_sgd(x0, grad: Grad, *, order, peers, workers: int, inner: Inner, gradients: int) -> History:
  """Tyurin, Richtarik: a step on the mean of B gradients at the same center; gradients at older ones are ignored."""
  z, version, collected, update = x0, 0, [], inner()
  pulled, steps, rows = [(x0, 0)] * workers, [0] * workers, []
  for i in order:
    x, old = pulled[i]
    g, update.step = grad(i, steps[i], x), steps[i]
    if old == version:
      collected.append(g)
    if len(collected) == gradients:
      z, version, collected = z + update(sum(collected) / gradients, z), version + 1, []
    rows.append((x, z))
    pulled[i], steps[i] = (z, version), steps[i] + 1
  return of_rows(rows)


def ringmaster_asgd(x0, grad: Grad, *, order, peers, workers: int, inner: Inner, threshold: int) -> History:
  """Maranjyan et al.: an update by each gradient whose delay is below R; older gradients are ignored."""
  z, version, update = x0, 0, inner()
  pulled, steps, rows = [(x0, 0)] * workers, [0] * workers, []
  for i in order:
    x, old = pulled[i]
    g, update.step = grad(i, steps[i], x), steps[i]
    if version - old < threshold:
      z, version = z + update(g, z), version + 1
    rows.append((x, z))
    pulled[i], steps[i] = (z, version), steps[i] + 1
  return of_rows(rows)
