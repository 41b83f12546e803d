"""How long an average may travel (delay d) and how often it starts (period tau): the smallest that hide an exchange.

DaSGD, Zhou et al. 2020, arXiv 2006.00441: a message launched at the start of a round is merged d steps later, so it is
hidden if T_comm <= d T_step, and one is in flight at a time, so d <= tau. All times in seconds.
"""

import math


def smallest_delay(message: float, step: float) -> int:
  """D = ceil(T_comm / T_step): steps that an exchange of `message` seconds has to travel to be hidden.

  Raises:
    ValueError: for a message of less than 0 seconds, or a step that takes no time.
  """
  _check(message, step)
  return math.ceil(message / step * (1 - 1e-12))  # a quotient that is whole but for its rounding stays so


def exposed_share(message: float, step: float, *, period: int, delay: int) -> float:
  """Share of a round spent waiting: e / (tau T_step + e), e = max(0, T_comm - d T_step).

  Raises:
    ValueError: for invalid times, or a delay outside [0, period].
  """
  _check(message, step)
  if not 0 <= delay <= period or period < 1:
    raise ValueError(
      f"a delay of {delay} in a period of {period} is invalid: must be 0 <= delay <= period with a period of at least 1"
    )
  exposed = max(0.0, message - delay * step)
  return exposed / (period * step + exposed)


def smallest_period(message: float, step: float, *, share: float, delay: int = 0) -> int:
  """The smallest tau >= max(1, d) whose exposed share is at most `share`: tau >= e (1 - share) / (share T_step).

  Raises:
    ValueError: for invalid times, delay or share, or a share of 0 that the delay never reaches.
  """
  _check(message, step)
  if delay < 0:
    raise ValueError(f"a delay of {delay} steps is invalid: must be 0 or more")
  if not 0 <= share < 1:
    raise ValueError(f"a share of {share:g} of the round is invalid: must be at least 0 and below 1")
  if smallest_delay(message, step) <= delay:
    return max(1, delay)
  if not share:
    raise ValueError(f"no period hides it with a delay of {delay}; a delay of {smallest_delay(message, step)} does")
  exposed = message - delay * step
  return max(1, delay, math.ceil(exposed * (1 - share) / (share * step) * (1 - 1e-12)))


def smallest_queued_period(served: float, step: float, *, share: float) -> int:
  """The smallest tau whose turn is spent waiting for at most `share` of it: tau >= (1 - share) T_served / T_step.

  T_served is how long the servers are busy with one visit of every worker: nobody is served twice meanwhile.

  Raises:
    ValueError: for invalid times.
  """
  _check(served, step)
  return max(1, math.ceil(served * (1 - share) / step * (1 - 1e-12)))


def _check(message: float, step: float) -> None:
  if not (math.isfinite(message) and message >= 0):
    raise ValueError(f"an exchange of {message:g} seconds is invalid: must be a finite time of 0 or more")
  if not (math.isfinite(step) and step > 0):
    raise ValueError(f"a step of {step:g} seconds is invalid: must be finite and above 0")
