"""EDiT as NumPy pseudo-code; see `reference.collective` for the signature."""

import numpy as np
from reference.diloco import FRAGMENTS, rate_at
from reference.history import History


class Detector:
  """The moving mean and variance of the norms of one worker and one array."""

  def __init__(self, rate, threshold, warmup):
    self.rate, self.threshold, self.warmup = rate, threshold, warmup
    self.mean, self.variance, self.count = 0.0, 0.0, 0

  def is_outlier(self, norm):
    if self.count < self.warmup or self.variance == 0:
      return False
    return (norm - self.mean) / np.sqrt(self.variance) > self.threshold

  def update(self, norm):
    before = norm - self.mean
    self.mean += self.rate * before
    self.variance = (1 - self.rate) * (self.variance + self.rate * before * (norm - self.mean))
    self.count += 1


def edit(
  x0, grad, *, workers, steps, inner, period, outer_learning_rate, outer_momentum, temperature, clip, threshold,
  detector_rate, detector_warmup, local_steps
):  # fmt: skip
  """Cheng et al.: outliers are left out, the others have softmax weights, and the mean of all arrays is clipped."""
  x, z, b, params, evaluate = np.array([x0] * workers), x0.copy(), np.zeros_like(x0), [], []
  updates = [inner() for _ in range(workers)]
  arrays = list(FRAGMENTS.values())
  detectors = [[Detector(detector_rate, threshold, detector_warmup) for _ in arrays] for _ in range(workers)]
  for t in range(1, steps + 1):
    for i in range(workers):
      if not local_steps or (t - 1) % period < local_steps[i % len(local_steps)]:
        x[i] = x[i] + updates[i](grad(i, t - 1, x[i]), x[i])
    if t % period == 0:
      mean, changed = np.zeros_like(z), np.zeros(len(z), bool)
      for k, part in enumerate(arrays):
        valid = []
        for i in range(workers):
          norm = np.linalg.norm((z - x[i])[part])
          if not detectors[i][k].is_outlier(norm):
            detectors[i][k].update(norm)
            valid.append((np.exp(-norm / temperature), (z - x[i])[part]))
        if valid:
          changed[part] = True
          mean[part] = sum(w * d for w, d in valid) / sum(w for w, _ in valid)
      mean = mean * min(1, clip / (np.linalg.norm(mean) + 1e-6))
      b = np.where(changed, outer_momentum * b + mean, b)
      rate = rate_at(outer_learning_rate, t // period - 1)
      z = np.where(changed, z - rate * (mean + outer_momentum * b), z)
      for i in range(workers):
        x[i] = z
    params.append(x.copy())
    evaluate.append(z.copy())
  return History(np.array(params), np.array(evaluate))
