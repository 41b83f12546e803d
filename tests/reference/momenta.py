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
