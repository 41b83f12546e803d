"""The schedules of a config: learning rates of optax after a linear warm-up from 0, and the local steps per round.

`floor` is the minimum of a learning rate, as a share of its peak.
"""

from collections.abc import Callable
from itertools import pairwise
from typing import Annotated, Any, NamedTuple

import jax.numpy as jnp
import optax

from ddl.algorithms.qsr import qsr
from ddl.api import Tree
from ddl.errors import OptionError
from ddl.ranges import Fraction, NonNegativeFloat, NonNegativeInt, PositiveFloat, Range, checked

Rate = float | optax.Schedule
Falling = Annotated[float, Range(0, 1, open_low=True, open_high=True)]


@checked
def constant(rate: float, steps: int, *, warmup: NonNegativeInt = 0) -> Rate:
  """Return a constant learning rate."""
  return _warm(optax.constant_schedule(rate), rate, warmup) if warmup else rate


@checked
def cosine(rate: float, steps: int, *, warmup: NonNegativeInt = 0, floor: Fraction = 0.0) -> Rate:
  """Return a cosine decay from the rate to floor * rate at the end of the run."""
  return _warm(optax.cosine_decay_schedule(rate, steps - warmup, floor), rate, warmup)


@checked
def linear(rate: float, steps: int, *, warmup: NonNegativeInt = 0, floor: Fraction = 0.0) -> Rate:
  """Return a linear decay from the rate to floor * rate at the end of the run."""
  return _warm(optax.linear_schedule(rate, floor * rate, steps - warmup), rate, warmup)


@checked
def exponential(
  rate: float,
  steps: int,
  *,
  warmup: NonNegativeInt = 0,
  factor: Falling = 0.1,
  every: NonNegativeInt = 0,
  floor: Fraction = 0.0,
) -> Rate:
  """Return an exponential decay: max(rate * factor^(t / every), floor * rate), t steps after the warm-up.

  every: number of steps over which the rate falls by `factor`; 0: the length of the run without the warm-up.
  """
  falling = optax.exponential_decay(rate, every or steps - warmup, factor, end_value=floor * rate)
  return _warm(falling, rate, warmup)


@checked
def decay(
  rate: float,
  steps: int,
  *,
  at: tuple[NonNegativeInt, ...] = (),
  factor: PositiveFloat = 0.1,
  warmup: NonNegativeInt = 0,
  floor: Fraction = 0.0,
) -> Rate:
  """Return a step decay: the rate is multiplied by `factor` at each of the steps `at`, but stays >= floor * rate."""
  if any(a >= b for a, b in pairwise(at)):
    raise OptionError("decay.at", "a tuple of strictly increasing steps (for example, (100, 150))", at)
  stairs = optax.piecewise_constant_schedule(rate, {step - warmup: factor for step in at})
  if floor:
    return _warm(lambda step: jnp.maximum(stairs(step), floor * rate), rate, warmup)
  return _warm(stairs, rate, warmup)


class RateState(NamedTuple):
  """Optimizer state with `hyperparams` as in `optax.inject_hyperparams`, from which SlowMo reads the learning rate."""

  count: Any
  hyperparams: dict[str, Any]
  inner_state: Any


def recorded(inner: optax.GradientTransformation, schedule: Rate) -> optax.GradientTransformation:
  """Make an optimizer record the last step's learning rate in its state, unless the rate is constant."""
  if not callable(schedule):
    return inner

  def init(params: Tree) -> RateState:
    return RateState(jnp.int32(0), {"learning_rate": jnp.asarray(schedule(0))}, inner.init(params))

  def update(updates: Any, state: Any, params: Any = None) -> tuple[Any, RateState]:
    updates, inner_state = inner.update(updates, state.inner_state, params)
    rate = {"learning_rate": jnp.asarray(schedule(state.count))}
    return updates, RateState(state.count + 1, rate, inner_state)

  return optax.GradientTransformation(init, update)


def _warm(schedule: optax.Schedule, rate: float, warmup: int) -> optax.Schedule:
  if not warmup:
    return schedule
  return optax.join_schedules([optax.linear_schedule(0.0, rate, warmup), schedule], [warmup])


SCHEDULES: dict[str, Callable[..., Rate]] = {
  "constant": constant,
  "cosine": cosine,
  "linear": linear,
  "exponential": exponential,
  "decay": decay,
}


def constant_period(period: int, rate: Rate, steps: int) -> int:
  """Return the same period for all rounds."""
  return period


@checked
def qsr_period(
  period: int, rate: Rate, steps: int, *, alpha: NonNegativeFloat, power: PositiveFloat = 2.0
) -> Callable[[int], int]:
  """Return the periods of the quadratic synchronization rule (`ddl.qsr`) as a function of the round.

  Each is at least config.algorithm.period, except that the last round ends with the run.
  """
  return qsr(rate, steps, alpha=alpha, least=period, power=power)


PERIOD_SCHEDULES: dict[str, Callable[..., int | Callable[[int], int]]] = {
  "constant": constant_period,
  "qsr": qsr_period,
}
