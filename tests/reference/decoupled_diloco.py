"""Decoupled DiLoCo in NumPy; see `reference.server` for the signature."""

import numpy as np
from reference.buffered_server import of_rows
from reference.collective import Grad, Inner
from reference.diloco import FRAGMENTS, Outer
from reference.history import History


def radial(moved, weights):
  """Return r u / |u|: the mean direction of vectors, with the mean of their norms; the mean if u = 0 up to rounding."""
  total = sum(weights)
  r = sum(w * np.linalg.norm(d) for w, d in zip(weights, moved, strict=True)) / total
  u = sum(w * d / np.linalg.norm(d) for w, d in zip(weights, moved, strict=True) if np.linalg.norm(d)) / total
  return r * u / np.linalg.norm(u) if np.linalg.norm(u) > 1e-13 else mean(moved, weights)


def mean(moved, weights):
  return sum(w * d for w, d in zip(weights, moved, strict=True)) / sum(weights)


class Learner:
  """A learner with its base, and the syncer's last reply: (fragment, values by array)."""

  def __init__(self, x0, fragments, update):
    self.x, self.base, self.update, self.step = x0.copy(), x0.copy(), update, 0
    self.since, self.reply = [0] * fragments, None


def decoupled_diloco(
  x0, grad: Grad, *, order, peers, workers: int, inner: Inner, quorum, average, fragments, period, delay, keep,
  outer_learning_rate, outer_momentum,
) -> History:  # fmt: skip
  """Douillard et al.: a fragment is merged when K learners have sent its difference to their bases."""
  parts = [[s for k, s in enumerate(FRAGMENTS.values()) if k % fragments == q] for q in range(fragments)]
  theta, version = x0.copy(), [0] * fragments
  outers = {s.start: Outer(outer_learning_rate, outer_momentum) for part in parts for s in part}
  learners = [Learner(x0, fragments, inner()) for _ in range(workers)]
  taken = [[0] * fragments for _ in range(workers)]
  arrived = [{} for _ in range(fragments)]  # per fragment: learner -> (its difference [n], steps)
  rows, visited = [], set()

  def send(i):
    learner = learners[i]
    q = (learner.step // period - 1) % fragments
    steps = learner.step - learner.since[q]
    if steps:
      d, before = arrived[q].get(i, (0.0, 0))
      arrived[q][i] = (d + learner.base - learner.x, before + steps)
    if len(arrived[q]) >= quorum:
      ds, weights = zip(*arrived[q].values(), strict=True)
      for s in parts[q]:
        d = (radial if average == "radial" else mean)([d[s] for d in ds], weights)
        theta[s] = outers[s.start].step(theta[s], d)
      arrived[q], version[q] = {}, version[q] + 1
    for s in parts[q]:
      learner.base[s] = learner.x[s]
    learner.since[q], learner.reply = learner.step, None
    lacking = [f for f in [(q - k) % fragments for k in range(fragments)] if version[f] > taken[i][f]]
    if lacking:
      f = lacking[0]
      taken[i][f], learner.reply = version[f], (f, theta.copy())

  def receive(learner):
    if learner.reply:
      f, values = learner.reply
      for s in parts[f]:
        learner.base[s] = values[s]
        learner.x[s] = keep * learner.x[s] + (1 - keep) * values[s]
      learner.since[f] = learner.step

  for i in order:
    learner = learners[i]
    if i in visited or delay == 0:
      for s in range(period):
        if delay == 0 and s == 0:
          receive(learner)
        learner.x = learner.x + learner.update(grad(i, learner.step, learner.x), learner.x)
        learner.step += 1
        if s + 1 == delay:
          receive(learner)
    visited.add(i)
    before = learner.x.copy()
    send(i)
    rows.append((before, theta.copy()))
  return of_rows(rows)
