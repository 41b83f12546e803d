"""Rounds in which the workers take different numbers of local steps.

All workers of a collective algorithm compute the same number of gradients. A slow worker, which takes only tau_i of the
round's tau steps, ignores the gradients of the last tau - tau_i steps of the round: its model waits for the exchange.
Its learning-rate schedules count all steps.
"""

from typing import Any

import jax
import jax.numpy as jnp

from ddl.api import Tree, select
from ddl.group import Group
from ddl.ranges import PositiveInt, check, integers

LocalSteps = tuple[PositiveInt, ...]  # tau_i of worker i; a shorter tuple is repeated; (): all workers take tau steps


def check_local_steps(name: str, local_steps: tuple[int, ...], period: int) -> None:
  """Raise OptionError unless each worker of algorithm `name` takes from 1 to `period` steps in a round."""
  for steps in local_steps:
    check(f"{name}.local_steps with period {period}", steps, integers(1, period))


def steps_of_worker(group: Group, local_steps: tuple[int, ...], period: int) -> jax.Array:
  """Return tau_i, the number of steps that this worker takes in each round: [] int32."""
  if not local_steps:
    return jnp.int32(period)
  return jnp.asarray(local_steps, jnp.int32)[group.index() % len(local_steps)]


def if_active(group: Group, local_steps: tuple[int, ...], period: int, done: Any, new: Tree, old: Tree) -> Tree:
  """Return `new` if this worker takes the next step of the round, else `old`.

  done: number of steps so far in the round, a scalar.
  """
  if not local_steps:
    return new
  return select(done < steps_of_worker(group, local_steps, period), new, old)
