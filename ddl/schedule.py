"""When an algorithm communicates: the one rule that the compiled rounds and `as_optax` share."""

from typing import Any, NamedTuple

from ddl.api import Algorithm


class Due(NamedTuple):
  """What a step brings besides its local update; Python bools for a Python step, arrays for a traced one."""

  launch: Any = False  # before the step, a message leaves
  merge: Any = False  # after the step, the message that left delay - 1 steps before this one arrives
  exchange: Any = False  # after the step, a message leaves and arrives


def due(algorithm: Algorithm, step: Any) -> Due:
  """What is due at step t = 0, 1, ... (see `Algorithm` for the words).

  delay = 0: an exchange after the steps t with (t - start + 1) mod tau = 0, and after every t < start.
  delay = d: a launch before the steps t with (t - start) mod tau = 0, its merge after step t + d - 1.

  Raises:
    ValueError: if the delay is not in 0..period, or the period is not positive.
  """
  period, delay, start = algorithm.period, algorithm.delay, algorithm.start
  if period < 1 or start < 0:
    raise ValueError(f"period is {period} and start {start}; a period is at least 1, a start at least 0")
  if not 0 <= delay <= period:
    raise ValueError(f"delay is {delay} with period {period}; one message is in flight, so delay lies in 0..{period}")
  if algorithm.launch is None:
    return Due()
  early = step < start if start else False  # what holds at every step stays a Python bool
  position = (step - start) % period if period > 1 else 0
  if delay == 0:
    return Due(exchange=early | (position == period - 1))
  first = start + (0 if algorithm.primed else period)
  loaded = step >= first if first else True
  return Due(loaded & (position == 0), loaded & (position == delay - 1), early)


def in_flight(algorithm: Algorithm, step: int) -> bool:
  """Whether a message that left before an earlier step has not arrived before step t."""
  into = (step - algorithm.start) % algorithm.period
  if algorithm.delay < 2 or step <= algorithm.start or not 0 < into < algorithm.delay:
    return False
  return bool(due(algorithm, step - into).launch)
