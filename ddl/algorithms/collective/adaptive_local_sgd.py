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

  `local_sgd` with tau = tau_j in the rounds that begin at step s_j or later

  After Wang, Joshi 2018, arXiv 1810.08313 (AdaComm): long initial periods save time, short final ones reach a lower
  loss. A round that begins after t steps, s_j <= t < s_{j+1}, has tau_j steps and is never cut short. A single pair is
  local SGD; ((0, 1), (t', tau)) is post-local SGD. AdaComm chooses each period from the loss during training;
  `periods_by_loss` computes the schedule from the losses of an earlier run.

  Args:
    inner: optimizer of each worker.
    periods: pairs (s_j, tau_j): from step s_j on, models are averaged every tau_j local steps; s_0 = 0, s_j increasing.
  """
  pairs = periods and all(len(pair) == 2 for pair in periods)
  if not (pairs and periods[0][0] == 0 and all(a[0] < b[0] for a, b in pairwise(periods))):
    raise ValueError(
      "adaptive_local_sgd.periods must be pairs (first step, local steps per average) with first steps that increase "
      f"from 0, such as ((0, 1), (100, 16)), got {periods}."
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
  """Return the index of each pair's first round; a pair without rounds has the index of the next pair."""
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
  """Return AdaComm's `periods` for the losses of an earlier run.

  tau_j = ceil(sqrt(F_j / F_0) tau_0) from step j T_0 on, or max(1, floor(tau_(j-1) / 2)) if that is not below tau_(j-1)

  Wang & Joshi 2018, arXiv 1810.08313, for a constant learning rate. The paper also lengthens the periods when the rate
  drops; this is omitted. As the paper does in practice, lower the rate only after the periods have reached 1.

  Args:
    steps: increasing steps of the losses; F_j is the last loss at or before step j T_0.
    losses: for example those of `local_sgd` with this period: `run.metrics.step, run.metrics.test_loss`.
    period: first period (tau_0).
    every: steps between changes of the period (T_0).

  Raises:
    ValueError: if a loss is not positive or the loss at step 0 is missing.
  """
  steps, losses = [*steps], [*losses]  # a pandas column does not support [-1]
  if len(steps) != len(losses) or not steps or steps[0] > 0:
    raise ValueError(
      "periods_by_loss.losses must have one value for each step, and the first step must be 0, got "
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
