"""The round of an average in closed form: its seconds, and the delay d and period tau that hide its exchange.

DaSGD, Zhou et al. 2020, arXiv 2006.00441: a message launched at the start of a round is merged d steps later, so it is
hidden if T_comm <= d T_step, and one is in flight at a time, so d <= tau. All times are in seconds; every function
raises ValueError for invalid times.
"""

import math

from ddl.perf import units

ROUNDING = 1 - 1e-12  # a quotient that is an integer but for its rounding stays one


def round_seconds(*, step: float, message: float, period: int = 1, delay: int = 0) -> float:
  """period * step + max(0, message - min(delay, period) * step): a message that has `delay` steps to arrive.

  With a delay above the period several are in flight on one link: a longer delay then hides no more. ValueError for
  negative seconds, a period below 1 or a negative delay.
  """
  units.count("period", period)
  units.count("delay", delay, 0)
  units.positive("step (s)", step)
  units.amount("message (s)", message)
  return period * step + max(0.0, message - min(delay, period) * step)


def smallest_delay(message: float, step: float) -> int:
  """D = ceil(T_comm / T_step): steps in flight that hide an exchange of `message` seconds."""
  return math.ceil(_message(message) / _step(step) * ROUNDING)


def exposed_share(message: float, step: float, *, period: int, delay: int) -> float:
  """Share of a round spent waiting: e / (tau T_step + e), e = max(0, T_comm - d T_step). 0 <= delay <= period."""
  units.count("period", period)
  if not 0 <= delay <= period:
    raise ValueError(f"delay is {delay}; invalid: must be from 0 to the period of {period}")
  exposed = max(0.0, _message(message) - delay * _step(step))
  return exposed / (period * step + exposed)


def smallest_period(message: float, step: float, *, share: float, delay: int = 0) -> int:
  """Return the smallest tau >= max(1, d) of at most that exposed share: tau >= e (1 - share) / (share T_step).

  Raises:
    ValueError: also for a share of 0 that no period reaches with this delay.
  """
  units.count("delay", delay, 0)
  if not 0 <= share < 1:
    raise ValueError(f"share is {share:g} of the round; invalid: must be at least 0 and below 1")
  if smallest_delay(message, step) <= delay:
    return max(1, delay)
  if not share:
    raise ValueError(f"no period hides it with a delay of {delay}; a delay of {smallest_delay(message, step)} does")
  exposed = message - delay * step
  return max(1, delay, math.ceil(exposed * (1 - share) / (share * step) * ROUNDING))


def smallest_queued_period(served: float, step: float, *, share: float) -> int:
  """Return the smallest tau whose worker round waits for at most that share: tau >= (1 - share) T_served / T_step.

  T_served is how long the servers are busy with one visit of every worker: none is served twice meanwhile.
  """
  return max(1, math.ceil(_message(served) * (1 - share) / _step(step) * ROUNDING))


def _message(seconds: float) -> float:
  return units.amount("exchange (s)", seconds)


def _step(seconds: float) -> float:
  return units.positive("step (s)", seconds)
