"""Signs, levels and 8-bit numbers in NumPy: functions (x: [workers, n]) -> [n] with a memory.

`uniform(time, worker, shape)` returns the random numbers of a worker for mean number `time`.
"""

import ml_dtypes
import numpy as np


class MajorityVote:
  """Bernstein et al.: v <- beta v + (1 - beta) g; the sign of most workers; zeros and ties are plus."""

  def __init__(self, momentum):
    self.momentum, self.v = momentum, 0.0

  def __call__(self, x):
    self.v = self.momentum * self.v + (1 - self.momentum) * x
    votes = np.where(self.v < 0, -1, 1).sum(axis=0)
    return np.where(votes < 0, -1.0, 1.0)


class QSGD:
  """Alistarh et al.: sign(v) |v|_2 l / s for each bucket, with l rounded stochastically."""

  def __init__(self, levels, block, uniform):
    self.levels, self.block, self.uniform, self.time = levels, block, uniform, 0

  def __call__(self, x):
    count = -(-x.shape[1] // self.block)
    length = -(-x.shape[1] // count)
    out = np.zeros(x.shape)
    for i, v in enumerate(x):
      u = self.uniform(self.time, i, (count, length))
      for b in range(count):
        bucket = v[b * length : (b + 1) * length]
        norm = np.sqrt((bucket**2).sum())
        for j, value in enumerate(bucket):
          exact = self.levels * abs(value) / norm
          level = np.floor(exact)
          level += u[b, j] >= 1 - (exact - level)
          out[i, b * length + j] = norm * np.sign(value) * level / self.levels
    self.time += 1
    return out.mean(axis=0)


def integers():
  """Return -127..127."""
  return np.arange(-127.0, 128.0)


def floats(kind):
  """Return all finite numbers of an 8-bit format."""
  every = np.arange(256, dtype=np.uint8).view(getattr(ml_dtypes, kind)).astype(float)
  return np.unique(every[np.isfinite(every)])


class Quantized:
  """Round strips of the vector to a grid; their owners add them up and round the means again."""

  def __init__(self, grid, block, uniform):
    """Set uniform(time, worker, stage, shape); stages 0 and 1 are the two roundings."""
    self.grid, self.block, self.uniform, self.time = grid, block, uniform, 0

  def __call__(self, x):
    workers, n = x.shape
    strip = -(-n // workers)
    count = -(-strip // self.block)
    length = -(-strip // count)
    padded = np.zeros((workers, workers * count * length))
    padded[:, :n] = x
    padded = padded.reshape(workers, workers, count, length)
    total = np.zeros((workers, count, length))
    for i in range(workers):
      u = self.uniform(self.time, i, 0, (workers, count, length))
      total += [[self.rounded(padded[i, j, b], u[j, b]) for b in range(count)] for j in range(workers)]
    out = []
    for j in range(workers):
      u = self.uniform(self.time, j, 1, (count, length))
      out += [self.rounded(total[j, b] / workers, u[b]) for b in range(count)]
    self.time += 1
    return np.concatenate(out)[:n]

  def rounded(self, v, u):
    """Round stochastically without bias."""
    scale = np.abs(v).max() / self.grid[-1]
    if scale == 0:
      return v
    out = []
    for y, chance in zip(np.clip(v / scale, self.grid[0], self.grid[-1]), u, strict=True):
      at = min(np.searchsorted(self.grid, y, side="right") - 1, len(self.grid) - 2)
      low, high = self.grid[at : at + 2]
      out.append(high if chance >= 1 - (y - low) / (high - low) else low)
    return scale * np.array(out)
