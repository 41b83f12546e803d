"""Compressors of momenta in NumPy: functions (x: [workers, n]) -> [n] with a memory, as in `reference.compression`."""

import numpy as np
from reference.compression import PARTS
from reference.sparse import largest


class EF21:
  """Richtarik et al., Fatkhullin et al.: v <- a v + (1 - a) x; send the k largest of v - h_i; h_i <- h_i + sent."""

  def __init__(self, share, momentum):
    self.share, self.momentum, self.v, self.h = share, momentum, None, 0.0

  def __call__(self, x):
    self.v = x if self.v is None else self.momentum * self.v + (1 - self.momentum) * x
    sent = np.zeros_like(x)
    for i, change in enumerate(self.v - self.h):
      for part in PARTS:
        places = part.start + largest(change[part], max(1, round(self.share * (part.stop - part.start))))
        sent[i, places] = change[places]
    self.h = self.h + sent
    return self.h.mean(axis=0)


class DGC:
  """Lin et al.: u <- r u + g; v <- v + u; send the k largest of the kernel's v; clear u and v there."""

  def __init__(self, share, momentum, *, masking=True, clip=np.inf):
    self.share, self.momentum, self.masking, self.clip, self.u, self.v = share, momentum, masking, clip, 0.0, 0.0

  def __call__(self, x):
    bias, kernel = PARTS
    most = self.clip / np.sqrt(len(x))
    g = np.array([row * min(1, most / np.linalg.norm(row)) for row in x])
    self.u = self.momentum * self.u + g
    self.v = self.v + self.u
    sent = np.zeros_like(x)
    for i in range(len(x)):
      places = kernel.start + largest(self.v[i, kernel], max(1, round(self.share * (kernel.stop - kernel.start))))
      sent[i, places] = self.v[i, places]
      self.v[i, places] = 0
      if self.masking:
        self.u[i, places] = 0
    sent[:, bias] = self.u[:, bias]  # a scalar is sent whole
    return sent.mean(axis=0)
