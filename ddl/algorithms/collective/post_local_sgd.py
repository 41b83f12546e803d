"""Post-local SGD."""

import optax

from ddl.algorithms.collective.adaptive_local_sgd import adaptive_local_sgd
from ddl.api import Algorithm, Spec, Taxonomy
from ddl.ranges import NonNegativeInt, PositiveInt, checked


@checked
def post_local_sgd(
  inner: optax.GradientTransformation, *, period: PositiveInt = 16, start: NonNegativeInt
) -> Algorithm:
  """Average the models after every step at first, then after every tau-th step (post-local SGD).

  `local_sgd` with tau = 1 for the first `start` steps and tau = `period` afterwards

  Lin et al. 2018, arXiv 1808.07217, where `start` is the step of the first learning-rate decay.

  Args:
    inner: optimizer of each worker.
    start: first step of the local phase (t').
    period: local steps per average from step `start` on (tau); averages happen after start + tau, start + 2 tau, ...
      steps.
  """
  return adaptive_local_sgd(inner, periods=((0, 1), (start, period)) if start else ((0, period),))


SPEC = Spec(
  factory=post_local_sgd,
  title="Post-local SGD",
  citation="Lin et al. 2018, arXiv 1808.07217",
  taxonomy=Taxonomy("data", "decentralized", "synchronous", "all-reduce", "parameters"),
  symbols={"period": "tau", "start": "t'"},
)
