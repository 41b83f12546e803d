"""The inner optimizers and learning-rate schedules that a config can name; all of them are optax's."""

from collections.abc import Callable
from itertools import pairwise

import optax

Rate = float | optax.Schedule


def sgd(rate: Rate, *, momentum: float = 0.0, nesterov: bool = False, weight_decay: float = 0.0):
  """SGD, with momentum (heavy ball or Nesterov) and L2 decay added to the gradient."""
  step = optax.sgd(rate, momentum=momentum or None, nesterov=nesterov)
  return optax.chain(optax.add_decayed_weights(weight_decay), step) if weight_decay else step


def adam(rate: Rate, *, b1: float = 0.9, b2: float = 0.999):
  """Adam."""
  return optax.adam(rate, b1=b1, b2=b2)


def adamw(rate: Rate, *, b1: float = 0.9, b2: float = 0.999, weight_decay: float = 1e-4):
  """Adam with decoupled weight decay."""
  return optax.adamw(rate, b1=b1, b2=b2, weight_decay=weight_decay)


OPTIMIZERS: dict[str, Callable[..., optax.GradientTransformation]] = {"sgd": sgd, "adam": adam, "adamw": adamw}


def constant(rate: float, steps: int) -> Rate:
  """The same rate at each step."""
  del steps
  return rate


def cosine(rate: float, steps: int, *, warmup: int = 0) -> Rate:
  """Linear over `warmup` steps from 0 to the rate, then half a cosine to 0 at the last step."""
  _check_warmup(warmup, steps)
  if not warmup:
    return optax.cosine_decay_schedule(rate, steps)
  return optax.warmup_cosine_decay_schedule(0.0, rate, warmup, steps)


def decay(rate: float, steps: int, *, at: tuple[int, ...] = (), factor: float = 0.1, warmup: int = 0) -> Rate:
  """The rate times `factor` from each of the steps `at` on, after a linear warm-up from 0."""
  _check_warmup(warmup, steps)
  if any(step < 0 for step in at) or any(a >= b for a, b in pairwise(at)):
    raise ValueError(f"config.schedule.at is {at}: invalid: must be rising steps from 0 on, such as (100, 150)")
  stairs = optax.piecewise_constant_schedule(rate, {step - warmup: factor for step in at})
  return optax.join_schedules([optax.linear_schedule(0.0, rate, warmup), stairs], [warmup]) if warmup else stairs


def _check_warmup(warmup: int, steps: int) -> None:
  if not 0 <= warmup < steps:
    raise ValueError(f"config.schedule.warmup is {warmup} of {steps} steps; it is at least 0 and ends before the run")


SCHEDULES: dict[str, Callable[..., Rate]] = {"constant": constant, "cosine": cosine, "decay": decay}
