"""Rounds in which the workers take different numbers of local steps.

All workers of a collective algorithm compute the same number of gradients. A slow worker, which takes only tau_i of the
round's tau steps, ignores the gradients of the last tau - tau_i steps of the round: its model waits for the exchange.
Ignored steps take no virtual time, but learning-rate schedules and the number of examples count them.
"""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np

from ddl.api import Tree, select
from ddl.group import Group
from ddl.ranges import PositiveInt, check, integers

LocalSteps = tuple[PositiveInt, ...]  # tau_i of worker i; a shorter tuple is repeated; (): all workers take tau steps


def takes_step(name: str, local_steps: tuple[int, ...], period: int) -> Callable[[Any, Any], Any] | None:
  """Return `Algorithm.takes_step` of algorithm `name`: None if all workers take all steps of a round.

  Raises OptionError unless each worker takes from 1 to `period` steps in a round.
  """
  for steps in local_steps:
    check(f"{name}.local_steps with period {period}", steps, integers(1, period))
  if not local_steps:
    return None
  steps = np.asarray(local_steps)
  return lambda worker, step: step % period < steps[worker % len(steps)]


def if_active(group: Group, local_steps: tuple[int, ...], done: Any, new: Tree, old: Tree) -> Tree:
  """Return `new` if this worker takes the next step of the round, else `old`.

  done: number of steps so far in the round, a scalar.
  """
  if not local_steps:
    return new
  return select(done < jnp.asarray(local_steps, jnp.int32)[group.index() % len(local_steps)], new, old)
