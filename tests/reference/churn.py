"""Collective algorithms with joining and leaving workers, in NumPy; see `reference.collective` for the signature.

changes: [(first step, ids)], from step 0 on: the workers that train from a step on. A leaving worker takes its model
and optimizer state with it. A joining worker starts from the consensus model of the remaining workers, with a new
optimizer. State that all workers share does not change.
"""

import numpy as np
from reference.decentralized import compressed
from reference.diloco import Outer
from reference.gossip import mixing_matrix


class Mean:
  """Independent workers; the consensus model is the mean of their models."""

  def __init__(self, x0, grad, inner):
    self.x0, self.grad, self.inner, self.x, self.updates = x0, grad, inner, {}, {}

  def begin(self, ids):
    for i in ids:
      self.join(i, self.x0)

  def join(self, i, model):
    self.x[i], self.updates[i] = model.copy(), self.inner()

  def agreed(self, ids):
    return sum(self.x[i] for i in ids) / len(ids)

  def changed(self):
    """Reset what depends on the set of workers."""

  def local(self, t, ids):
    for i in ids:
      self.x[i] = self.x[i] + self.updates[i](self.grad(i, t, self.x[i]), self.x[i])


class SyncSGD(Mean):
  def begin(self, ids):
    super().begin(ids)
    self.update = self.inner()

  def step(self, t, ids):
    g = sum(self.grad(i, t, self.x[i]) for i in ids) / len(ids)
    u = self.update(g, self.x[ids[0]])
    for i in ids:
      self.x[i] = self.x[i] + u


class LocalSGD(Mean):
  def __init__(self, *args, period):
    super().__init__(*args)
    self.period = period

  def step(self, t, ids):
    self.local(t, ids)
    if (t + 1) % self.period == 0:
      mean = self.agreed(ids)
      for i in ids:
        self.x[i] = mean


class DaSGD(Mean):
  def __init__(self, *args, period, delay, keep):
    super().__init__(*args)
    self.period, self.delay, self.keep, self.in_flight = period, delay, keep, {}

  def step(self, t, ids):
    if t and t % self.period == 0:
      self.in_flight[t + self.delay] = self.agreed(ids)
    self.local(t, ids)
    if t + 1 in self.in_flight:
      for i in ids:
        self.x[i] = self.keep * self.x[i] + (1 - self.keep) * self.in_flight[t + 1]


class EASGD(Mean):
  def __init__(self, *args, period, alpha):
    super().__init__(*args)
    self.period, self.alpha, self.z = period, alpha, self.x0.copy()

  def agreed(self, ids):
    return self.z

  def step(self, t, ids):
    pull = {i: (t % self.period == 0) * self.alpha * (self.x[i] - self.z) for i in ids}
    self.local(t, ids)
    for i in ids:
      self.x[i] = self.x[i] - pull[i]
      self.z = self.z + pull[i]


class DiLoCo(Mean):
  def __init__(self, *args, period, outer_learning_rate, outer_momentum):
    super().__init__(*args)
    self.period, self.theta, self.outer = period, self.x0.copy(), Outer(outer_learning_rate, outer_momentum)

  def agreed(self, ids):
    return self.theta

  def step(self, t, ids):
    self.local(t, ids)
    if (t + 1) % self.period == 0:
      self.theta = self.outer.step(self.theta, sum(self.theta - self.x[i] for i in ids) / len(ids))
      for i in ids:
        self.x[i] = self.theta


class DPSGD(Mean):
  """D-PSGD on the graph of the present workers, in the order of their ids."""

  def __init__(self, *args, graph):
    super().__init__(*args)
    self.graph = graph

  def step(self, t, ids):
    w, before = mixing_matrix(self.graph, len(ids), t), {i: self.x[i] for i in ids}
    self.local(t, ids)
    for a, i in enumerate(ids):
      self.x[i] = self.x[i] - before[i] + sum(w[a, b] * before[j] for b, j in enumerate(ids))


class GradientTracking(DPSGD):
  """Gradient tracking (combine, then adapt); after a change all workers start to track again from zero."""

  def changed(self):
    self.y, self.g = {}, {}

  def step(self, t, ids):
    w, before = mixing_matrix(self.graph, len(ids), t), {i: self.x[i] for i in ids}
    g = {i: self.grad(i, t, before[i]) for i in ids}
    mixed = {i: sum(w[a, b] * self.y.get(j, 0.0) for b, j in enumerate(ids)) for a, i in enumerate(ids)}
    self.y = {i: mixed[i] + g[i] - self.g.get(i, 0.0) for i in ids}
    self.g = g
    for a, i in enumerate(ids):
      self.x[i] = sum(w[a, b] * before[j] for b, j in enumerate(ids)) + self.updates[i](self.y[i], before[i])


class ExactDiffusion(DPSGD):
  """Exact diffusion with gamma = 1/2; after a change all workers restart with psi_old = x."""

  def changed(self):
    self.psi = {}

  def step(self, t, ids):
    w = (np.eye(len(ids)) + mixing_matrix(self.graph, len(ids), t)) / 2
    psi = {i: self.x[i] + self.updates[i](self.grad(i, t, self.x[i]), self.x[i]) for i in ids}
    phi = {i: psi[i] + self.x[i] - self.psi.get(i, self.x[i]) for i in ids}
    self.psi = psi
    for a, i in enumerate(ids):
      self.x[i] = sum(w[a, b] * phi[j] for b, j in enumerate(ids))


class Choco(DPSGD):
  """CHOCO-SGD with gamma = 1/2 that adapts first; after a change all public copies are zero."""

  def __init__(self, *args, graph, compressor):
    super().__init__(*args, graph=graph)
    self.compressor = compressor

  def changed(self):
    self.copies = {}

  def step(self, t, ids):
    w = mixing_matrix(self.graph, len(ids), t)
    self.local(t, ids)
    known = {i: self.copies.get(i, np.zeros_like(self.x0)) for i in ids}
    self.copies = known = {i: known[i] + compressed(self.x[i] - known[i], self.compressor, 1.0) for i in ids}
    for a, i in enumerate(ids):
      self.x[i] = self.x[i] + sum(w[a, b] * (known[j] - known[i]) for b, j in enumerate(ids)) / 2


CHURN = {
  "sync_sgd": SyncSGD, "local_sgd": LocalSGD, "dasgd": DaSGD, "easgd": EASGD, "diloco": DiLoCo, "d_psgd": DPSGD,
  "gradient_tracking": GradientTracking, "exact_diffusion": ExactDiffusion, "choco_sgd": Choco,
}  # fmt: skip


def churn(name, x0, grad, *, changes, steps, inner, **hyper):
  """Return (ids of the present workers, their models [present, n], evaluated model [n]) after each step."""
  rule, history = CHURN[name](x0, grad, inner, **hyper), []
  ids = changes[0][1]
  rule.begin(ids)
  rule.changed()
  for t in range(steps):
    for first, now in changes[1:]:
      if first == t:
        model = rule.agreed([i for i in ids if i in now])
        for i in now:
          if i not in ids:
            rule.join(i, model)
        ids = now
        rule.changed()
    rule.step(t, ids)
    history.append((ids, np.array([rule.x[i] for i in ids]), np.array(rule.agreed(ids))))
  return history
