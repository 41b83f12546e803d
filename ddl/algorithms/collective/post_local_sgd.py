"""Post-local SGD: average after every step at first, local SGD from step `start` on.

Lin et al. 2018, arXiv 1808.07217, where `start` is the first decay of the learning rate.
"""

import optax

from ddl.algorithms.collective.adaptive_local_sgd import adaptive_local_sgd
from ddl.api import Algorithm, Hyper, Spec, Taxonomy
from ddl.ranges import NonNegativeInt, PositiveInt, checked


@checked
def post_local_sgd(inner: optax.GradientTransformation, *, period: PositiveInt, start: NonNegativeInt) -> Algorithm:
  """`local_sgd` with tau = 1 for the first `start` steps and tau = `period` after them.

  Args:
    inner: optimizer of each worker.
    period: local steps per average (tau) from step `start` on; averages follow steps start + tau, start + 2 tau, ...
    start: steps that each end in an average.

  Returns:
    An `Algorithm` that sends parameters.

  Raises:
    ValueError: if start is negative.
  """
  return adaptive_local_sgd(inner, periods=((0, 1), (start, period)) if start else ((0, period),))


SPEC = Spec(
  factory=post_local_sgd,
  title="Post-local SGD",
  citation="Lin et al. 2018, arXiv 1808.07217",
  taxonomy=Taxonomy("data", "decentralized", "synchronous", "all-reduce", "parameters"),
  hyper={
    "period": Hyper("tau", 16, "local steps per average, from step `start` on"),
    "start": Hyper("t'", None, "first step with local phases (the paper: the first decay of the learning rate)"),
  },
)
