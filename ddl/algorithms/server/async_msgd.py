"""Asynchronous momentum SGD: async SGD whose master keeps one velocity, moved by every worker's gradient.

You, Buluc, Demmel 2017, arXiv 1708.02983, section 5, equations (3) and (4); mu is about 0.9.
Worker: g = grad(W), W of its last reply. Master, first come, first served: V <- mu V - eta g, Wb <- Wb + V, replies Wb.
"""

import optax

from ddl.algorithms.server.async_sgd import async_sgd
from ddl.api import Hyper, ServerAlgorithm, Spec, Taxonomy
from ddl.ranges import Momentum, PositiveInt, checked


@checked
def async_msgd(inner: optax.GradientTransformation, *, momentum: Momentum, workers: PositiveInt) -> ServerAlgorithm:
  """V <- mu V + inner(g); Wb <- Wb + V, one worker's g at a time.

  Args:
    inner: gives -eta g, with its schedule by the worker's step; plain `optax.sgd(eta)`, since the momentum is this
      algorithm's own.
    momentum: mu, in 0..1.
    workers: number of workers p (the rule does not depend on it).

  Returns:
    A `ServerAlgorithm` of one step a worker round.

  Raises:
    ValueError: if the momentum is not in [0, 1).
  """
  master = optax.chain(inner, optax.trace(decay=momentum))  # V <- mu V - eta g
  return async_sgd(master, workers=workers)  # Wb <- Wb + V


SPEC = Spec(
  factory=async_msgd,
  title="Async MSGD (momentum at the master)",
  citation="You et al. 2017, arXiv 1708.02983",
  taxonomy=Taxonomy("data", "centralized", "asynchronous", "parameter server", "gradients"),
  hyper={"momentum": Hyper("mu", 0.9, "the master's momentum; the authors' choice is 0.9")},
)
