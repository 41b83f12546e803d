"""The quadratic synchronization rule (QSR), which sets each round's number of local steps from the learning rate."""

from collections.abc import Callable
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from ddl.ranges import NonNegativeFloat, OuterRate, PositiveFloat, PositiveInt, check, check_all, checked, integers

ROUNDING = 1e-6  # relative tolerance: rounding of rates in float32 must not shorten a period by a step


@checked
def qsr(
  learning_rate: float | optax.Schedule,
  steps: int,
  *,
  alpha: NonNegativeFloat,
  least: PositiveInt = 4,
  power: PositiveFloat = 2.0,
) -> Callable[[int], int]:
  """Return a function from rounds to periods, which grow as the learning rate falls (quadratic synchronization rule).

  H = min(max(H_min, floor((alpha / eta_t)^2)), T - t) for a round that begins after t of T steps

  Gu, Lyu, Arora, Zhang, Huang 2023, arXiv 2310.14423. Pass the result as `period` to an algorithm, such as
  `ddl.local_sgd`. A round's period follows from the learning rate at its first step, and the last round ends with the
  run. The steps before the schedule's first maximum are a warm-up: its small rates would give very long rounds, so
  rounds that begin in it have the period H_init that follows from the maximum rate. In the authors' code, H_init is an
  option. With alpha = 0, all rounds have H_min steps. For rounds after the last step, the function returns the mean
  period, which predictions of a run's time use. The authors recompute the statistics of batch normalization before they
  test the averaged model.

  Args:
    learning_rate: the rate of the inner optimizer, or an optax schedule of it by steps (not by epochs).
    steps: steps of the run (T).
    alpha: growth coefficient (alpha), to be tuned; for example, 0.0175 for a peak rate of 0.008.
    least: minimum period (H_min), 4 in the authors' scripts for ViT.
    power: exponent; 2 in the paper, which also tests 1 and 3.
  """
  check_all(OuterRate, learning_rate, "qsr.learning_rate")
  check("qsr.steps", steps, integers(1))

  @cache  # computed at the first call, because it initializes JAX's devices
  def periods() -> list[int]:
    return rounds(_rates(learning_rate, steps), alpha, least, power)

  def period(k: Any) -> Any:
    taus = periods()
    later = round(steps / len(taus))
    if isinstance(k, int):
      return taus[k] if k < len(taus) else later
    return jnp.asarray([*taus, later], jnp.int32)[jnp.minimum(k, len(taus))]

  return period


def rounds(rates: np.ndarray, alpha: float, least: int, power: float) -> list[int]:
  """Return the period of each round of a run. rates: the learning rate of each step, [steps]."""
  peak, steps, growth = int(np.argmax(rates)), len(rates), np.zeros(len(rates))
  if alpha:
    with np.errstate(divide="ignore", over="ignore"):  # infinite periods end with the run
      growth = (alpha / np.maximum(rates, 0)) ** power * (1 + ROUNDING)
  taus, step = [], 0
  while step < steps:
    taus.append(int(min(max(least, growth[max(step, peak)]), steps - step)))  # H; in the warm-up, H at the peak rate
    step += taus[-1]
  return taus


def _rates(learning_rate: float | optax.Schedule, steps: int) -> np.ndarray:
  if not callable(learning_rate):
    return np.full(steps, learning_rate)
  with jax.ensure_compile_time_eval():  # `period` may be traced
    return np.asarray(jax.vmap(learning_rate)(jnp.arange(steps)), np.float64)
