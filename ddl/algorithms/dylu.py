"""Dynamic local updates (DyLU): fewer local steps per round for slower workers."""

import math
from collections.abc import Callable, Sequence

LEAST = 5  # steps per round


def local_steps(period: int) -> Callable[[Sequence[float]], tuple[int, ...]]:
  """Return a function for `ServerAlgorithm.periods` with which all workers exchange at about the same rate.

  H_i = max(5, floor(H t_fastest / t_i)), at most H

  Liu et al. 2024, arXiv 2401.09135. t_i is the mean step time of worker i.

  Args:
    period: steps per round of the fastest worker (H).
  """

  def periods(times: Sequence[float]) -> tuple[int, ...]:
    steps = [math.floor(period / time + 1e-9) for time in times]  # time = t_i / t_fastest; 1e-9 absorbs rounding errors
    return tuple(min(period, max(LEAST, count)) for count in steps)

  return periods
