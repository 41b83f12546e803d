"""The clock of a synchronous algorithm on the same step times: all workers wait for each other at every exchange."""

import numpy as np

from ddl.events.times import Times
from ddl.events.trouble import not_negative


def finish(
  *,
  workers: int,
  steps: int,
  period: int,
  delay: int,
  start: int,
  times: Times,
  exchange_seconds: float,
  overlap: bool = True,
  primed: bool = False,
) -> np.ndarray:
  """When the last worker has finished each step, with the exchange that ends it: [steps] seconds from 0.

  delay 0: a round of `period` steps ends with an exchange. delay d: a message leaves when all have come to the start
  of a round, and each worker waits for it after d steps; without `overlap`, at once. For constant step times a round
  takes period * step + max(0, exchange - delay * step) seconds.

  Args:
    period, delay, start, primed: steps and what they mean as in `ddl.api.Algorithm`; the first round exchanges nothing
      with a delay, unless primed.
    times: `period` steps are a turn; a death keeps everybody waiting.
    exchange_seconds: of one exchange, from when the last worker has come to it.

  Raises:
    ValueError: one line, for values that can't be.
  """
  if workers < 1 or steps < 0 or start < 0:
    raise ValueError(f"{workers} workers, {steps} steps, start {start}; at least one worker, and no negative steps")
  if period < 1 or not 0 <= delay <= period:
    raise ValueError(f"period is {period} and delay {delay}; a period is at least 1 step, a delay lies in 0..period")
  not_negative("exchange_seconds", exchange_seconds)
  clock = np.zeros(workers)  # when each worker has come so far
  arrives = None  # the message under way
  finished = np.empty(steps)
  for step in range(steps):
    turn, index = divmod(step, period)
    if index == 0:
      durations = np.stack([_turn(times, worker, turn, period) for worker in range(workers)])  # [workers, period]
    round_, position = divmod(step - start, period)
    early = step < start
    if delay and position == 0 and not early and (round_ or primed):
      arrives = clock.max() + exchange_seconds
      if not overlap:
        clock = np.maximum(clock, arrives)
    clock = clock + durations[:, index]
    if early or (not delay and position == period - 1):
      clock = np.full(workers, clock.max() + exchange_seconds)
    elif arrives is not None and position == delay - 1:
      clock, arrives = np.maximum(clock, arrives), None
    finished[step] = clock.max()
  return finished


def _turn(times: Times, worker: int, turn: int, period: int) -> np.ndarray:
  seconds, death = times.steps(worker, turn, period), times.deaths(worker, turn)
  if death is None:
    return seconds
  lost = death.share * seconds.sum() + death.down_seconds
  return np.concatenate([seconds[:1] + lost, seconds[1:]])
