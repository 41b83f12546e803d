"""Post-local SGD: average after every step at first, local SGD from step `start` on.

Lin et al. 2018, arXiv 1808.07217, where `start` is the first decay of the learning rate.
"""

import optax

from ddl.algorithms.collective.local_sgd import local_sgd
from ddl.api import Algorithm, AxisName, Hyper, Spec, Taxonomy


def post_local_sgd(inner: optax.GradientTransformation, *, period: int, start: int, axis_name: AxisName) -> Algorithm:
  """`local_sgd` with tau = 1 for the first `start` steps and tau = `period` after them.

  Args:
    inner: optimizer of each worker.
    period: local steps per average (tau) from step `start` on; averages follow steps start + tau, start + 2 tau, ...
    start: steps that each end in an average.
    axis_name: the workers' named axis, or a tuple of axes.

  Returns:
    An `Algorithm` that sends parameters.
  """
  return local_sgd(inner, period=period, axis_name=axis_name)._replace(start=start)  # tau = 1 if t < start


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
