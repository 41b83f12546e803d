"""Algorithms that send sparse messages, as NumPy pseudo-code; see `reference.collective` for the signature.

n is the size of `helpers.twins.tree_of`: a bias and a kernel [2, 3], which are one chunk each.
"""

import numpy as np
from reference.compression import PARTS
from reference.diloco import rate_at
from reference.history import History


def largest(values, count):
  """Return the places of the `count` values that are largest in magnitude."""
  return np.argsort(-np.abs(values), kind="stable")[:count]


def two_bits(values):
  """Return each value's mean over the values at its level, of four levels around the mean."""
  centered = values - values.mean()
  deviation = np.sqrt((centered**2).sum() / (len(values) - 1)) if len(values) > 1 else 0.0
  scale = 6 * deviation / 4 or 1.0
  levels = [min(max(round(v / scale) + 2, 0), 3) for v in centered]
  table = {level: np.mean([v for v, other in zip(values, levels, strict=True) if other == level]) for level in levels}
  return np.array([table[level] for level in levels])


def sparseloco(
  x0, grad, *, workers, steps, inner, period, kept, decay, outer_learning_rate, quantize, aggregate, memory_rate=1.0
):
  """Sarfi et al.: top-k of each chunk of a decaying memory of the changes, two bits per value.

  memory_rate: factor of the changes in the memory; in the authors' code it is the outer rate.
  """
  x, z, e, params, evaluate = np.array([x0] * workers), x0.copy(), np.zeros((workers, len(x0))), [], []
  updates = [inner() for _ in range(workers)]
  for t in range(1, steps + 1):
    for i in range(workers):
      x[i] = x[i] + updates[i](grad(i, t - 1, x[i]), x[i])
    if t % period == 0:
      total, senders = np.zeros(len(x0)), np.zeros(len(x0))
      for i in range(workers):
        e[i] = decay * e[i] + memory_rate * (z - x[i])
        for part in PARTS:
          size = part.stop - part.start
          places = part.start + largest(e[i, part], max(1, round(size * kept / 4096)))
          sent = two_bits(e[i, places]) if quantize else e[i, places]
          total[places] += sent
          senders[places] += 1
          e[i, places] -= sent
      mean = total / (np.maximum(senders, 1) if aggregate == "senders" else workers)
      z = z - rate_at(outer_learning_rate, t // period - 1) * mean
      x = np.array([z] * workers)
    params.append(x.copy())
    evaluate.append(z.copy())
  return History(np.array(params), np.array(evaluate))
