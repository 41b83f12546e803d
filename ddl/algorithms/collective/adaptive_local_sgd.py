"""Local SGD with scheduled periods, and AdaComm's rule for computing the schedule."""

import math
from bisect import bisect_right
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import jax.numpy as jnp
import optax

from ddl.algorithms.collective.local_sgd import local_sgd
from ddl.api import Algorithm, Spec, Taxonomy
from ddl.ranges import NonNegativeInt, PositiveInt, checked


@checked
def adaptive_local_sgd(
  inner: optax.GradientTransformation,
  *,
  periods: tuple[tuple[NonNegativeInt, PositiveInt], ...] = ((0, 16), (500, 8), (1000, 4), (1500, 2)),
) -> Algorithm:
  """Average the models with a period that follows a fixed schedule (adaptive local SGD).

  `local_sgd` with tau = tau_j in each round that begins after t steps, s_j <= t < s_(j+1)

  After Wang, Joshi 2018, arXiv 1810.08313 (AdaComm): long periods at the start save time, short ones at the end reach a
  lower loss. A round consists of the local steps between two averages and is never cut short. A single pair is local
  SGD; ((0, 1), (t', tau)) is post-local SGD. AdaComm chooses each period from the loss during training. Here the
  schedule is fixed before training; `periods_by_loss` computes it from the losses of an earlier run.

  Args:
    inner: optimizer of each worker.
    periods: pairs (s_j, tau_j): from step s_j on, models are averaged every tau_j local steps; s_0 = 0, s_j increasing.
  """
  pairs = periods and all(len(pair) == 2 for pair in periods)
  if not (pairs and periods[0][0] == 0 and all(a[0] < b[0] for a, b in pairwise(periods))):
    raise ValueError(
      "adaptive_local_sgd.periods must be pairs (first step, local steps per average) whose first steps increase "
      f"from 0, got {periods}. A valid value is ((0, 1), (100, 16))."
    )
  rounds, taus = first_rounds(periods), [tau for _, tau in periods]

  def period(k: Any) -> Any:
    if isinstance(k, int):
      return taus[bisect_right(rounds, k) - 1]
    return jnp.asarray(taus, jnp.int32)[jnp.sum(k >= jnp.asarray(rounds, jnp.int32)) - 1]

  algorithm = local_sgd(inner, period=taus[0])
  (average,) = algorithm.exchanges
  return algorithm._replace(exchanges=(average._replace(period=period),))


def first_rounds(periods: tuple[tuple[int, int], ...]) -> list[int]:
  """Return the index of the first round of each pair (s_j, tau_j).

  A pair has no rounds if none begins in steps s_j to s_(j+1) - 1; its index is then that of the next pair.
  """
  rounds, step = [0], 0
  for (_, tau), (until, _) in pairwise(periods):
    count = max(0, -(-(until - step) // tau))  # rounds that begin before the next pair's first step
    rounds.append(rounds[-1] + count)
    step += count * tau
  return rounds


@checked
def periods_by_loss(
  steps: Sequence[float], losses: Sequence[float], *, period: PositiveInt, every: PositiveInt
) -> tuple[tuple[int, int], ...]:
  """Return the `periods` that AdaComm's rule derives from the losses of an earlier run.

  From step j T_0 on, tau_j = ceil(sqrt(F_j / F_0) tau_0) if this is below tau_(j-1), else max(1, floor(tau_(j-1) / 2))

  Wang & Joshi 2018, arXiv 1810.08313, for a constant learning rate. The paper also lengthens the period when the
  learning rate drops; this function does not. As in the paper's experiments, lower the learning rate only after the
  period has reached 1.

  Args:
    steps: increasing steps at which the losses were measured, the first one 0.
    losses: loss at each of these steps; F_j is the last loss at or before step j T_0. For example, pass
      `run.metrics.step` and `run.metrics.test_loss` of a run of `local_sgd` with the same `period`.
    period: first period (tau_0).
    every: steps between changes of the period (T_0).

  Raises:
    ValueError: if a loss is not finite and positive, the loss at step 0 is missing, or the lengths differ.
  """
  steps, losses = [*steps], [*losses]  # a pandas column does not support [-1]
  if len(steps) != len(losses) or not steps or steps[0] > 0:
    raise ValueError(
      "periods_by_loss.losses must have one value for each of the steps (the first of which is 0), got "
      f"{len(losses)} values for the steps {steps}."
    )
  if not all(loss > 0 and math.isfinite(loss) for loss in losses):
    raise ValueError(f"periods_by_loss.losses must be finite numbers > 0, got {losses}.")
  periods = [(0, period)]
  for first in range(every, int(steps[-1]) + 1, every):
    share = losses[bisect_right(steps, first) - 1] / losses[0]
    tau, before = math.ceil(math.sqrt(share) * period), periods[-1][1]
    periods.append((first, tau if tau < before else max(1, before // 2)))
  return tuple(periods)


SPEC = Spec(
  factory=adaptive_local_sgd,
  title="Adaptive local SGD (periods by schedule)",
  citation="after Wang & Joshi 2018, arXiv 1810.08313",
  taxonomy=Taxonomy("data", "decentralized", "synchronous", "all-reduce", "parameters"),
  symbols={"periods": "s, tau"},
)
