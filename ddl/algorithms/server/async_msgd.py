"""Asynchronous momentum SGD."""

import optax

from ddl.algorithms.server.async_sgd import async_sgd
from ddl.api import ServerAlgorithm, Spec, Taxonomy
from ddl.ranges import Momentum, checked


@checked
def async_msgd(inner: optax.GradientTransformation, *, momentum: Momentum = 0.9) -> ServerAlgorithm:
  """Apply each worker's gradient with momentum at the master (asynchronous momentum SGD).

  V <- mu V + inner(g); Wb <- Wb + V, one worker's g at a time

  You, Buluc, Demmel 2017, arXiv 1708.02983, section 5, equations (3) and (4).

  Args:
    inner: plain `optax.sgd(eta)`, whose update is -eta g; eta may be a schedule of the worker's step. Momentum is part
      of this algorithm.
    momentum: the master's momentum (mu); 0.9 in the paper.
  """
  master = optax.chain(inner, optax.trace(decay=momentum))  # V <- mu V - eta g
  return async_sgd(master)  # Wb <- Wb + V


SPEC = Spec(
  factory=async_msgd,
  title="Async MSGD (momentum at the master)",
  citation="You et al. 2017, arXiv 1708.02983",
  taxonomy=Taxonomy("data", "centralized", "asynchronous", "parameter server", "gradients"),
  symbols={"momentum": "mu"},
)
