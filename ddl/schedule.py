"""The steps at which an algorithm's exchanges launch and merge, computed in Python."""

from bisect import bisect_right
from collections.abc import Sequence
from functools import cached_property
from math import lcm
from typing import NamedTuple

import jax

from ddl.api import MOST_EXCHANGES, NEVER, Exchange, Tree
from ddl.errors import OptionError
from ddl.ranges import LARGEST_INT, check, integers

MOST_ARRAYS = 4096  # maximum number of arrays in flight: each is an argument of the program and adds compile time

Ids = tuple[int, ...]  # indices into `Algorithm.exchanges`


class Due(NamedTuple):
  """The exchanges that are due at one step, as indices."""

  launch: Ids = ()  # exchanges that send a delayed message before the step
  merge: Ids = ()  # exchanges whose delayed message arrives after the step
  exchange: Ids = ()  # exchanges without a delay, which send and receive after the step

  def __bool__(self) -> bool:
    return bool(self.launch or self.merge or self.exchange)


class Clock:
  """The launch steps of one exchange."""

  def __init__(self, exchange: Exchange):
    """Check the exchange's period, delay and offset.

    Raises:
      ValueError: for a period below 1, a negative delay, or a first launch before step 0 (before step 1 if the delay
        is 0).
    """
    if not callable(exchange.period):
      check("period of an exchange", exchange.period, integers(1))
    check("delay of an exchange", exchange.delay, integers(0))
    check("offset of an exchange", exchange.offset, integers(-LARGEST_INT))
    self.exchange, self.delay, self.offset = exchange, exchange.delay, exchange.offset
    self.steady = None if callable(exchange.period) else int(exchange.period)  # the period, if it is constant
    # A function's first value is needed only with a negative offset; it may be slow to compute.
    if (self.steady or self.offset < 0) and self.first < (0 if self.delay else 1):
      condition = f"large enough that the first launch is at step {0 if self.delay else 1} or later"
      value = f"{self.offset} with period {self.period(0)} and delay {self.delay}"
      raise OptionError("offset of an exchange", condition, value)

  def period(self, round_: int) -> int:
    """Return the period of round `round_`, in steps. Raises ValueError if it is not a positive integer."""
    if not callable(self.exchange.period):
      return self.exchange.period
    check(f"period of an exchange in round {round_}", period := self.exchange.period(round_), integers(1))
    return int(period)

  @cached_property
  def first(self) -> int:
    """Return the number of steps before the first launch."""
    return self.offset + self.period(0)

  @cached_property
  def _times(self) -> list[int]:
    """The steps of the launches computed so far, if the period varies."""
    return [self.first]

  @property
  def every_step(self) -> bool:
    """Return whether a message is sent and received at every step, from the first one on."""
    return self.steady == 1 and self.delay <= 1 and self.first == 1 - self.delay

  def launches(self, step: int) -> int:
    """Return the number of launches that are due after at most `step` steps."""
    if self.steady:
      return max(0, (step - self.first) // self.steady + 1)
    while self._times[-1] <= step:
      self._times.append(self._times[-1] + self.period(len(self._times)))
    return bisect_right(self._times, step)

  def launched(self, step: int) -> bool:
    """Return whether a launch is due after `step` steps."""
    return self.launches(step) > self.launches(step - 1)

  def in_flight(self, step: int) -> int:
    """Return the number of messages in flight after `step` steps, not counting a launch due at that time."""
    return self.launches(step - 1) - self.launches(step - self.delay) if self.delay else 0

  def round_at(self, step: int) -> tuple[int, int]:
    """Return (steps completed in the current round, its period) after `step` steps of the run."""
    done = self.launches(step)
    if self.steady:
      return (step - self.offset) % self.steady, self.steady
    return step - (self._times[done - 1] if done else self.offset), self.period(done)

  @property
  def slots(self) -> int:
    """Return the maximum number of messages in flight between two steps, not counting a launch due there."""
    return -(-max(self.delay - 1, 0) // (self.steady or 1))

  @property
  def capacity(self) -> int:
    """Return the maximum number of messages in flight during a step."""
    return -(-self.delay // (self.steady or 1))


def check_in_flight(clock: Clock, message: Tree) -> None:
  """Raise ValueError if the messages in flight have too many arrays for one program. message: one message's shapes."""
  arrays = len(jax.tree.leaves(message))
  most = max(8, MOST_ARRAYS // max(arrays, 1))
  if clock.capacity > most:
    raise ValueError(
      f"delay must keep at most {most} messages of {arrays} arrays in flight, got {clock.capacity} messages "
      f"({clock.delay} steps). Use a shorter delay or a longer period."
    )


class Schedule:
  """The exchanges that are due at each step of an algorithm."""

  def __init__(self, exchanges: Sequence[Exchange]):
    """Create and check a clock per exchange. Raises ValueError for an invalid exchange or more than MOST_EXCHANGES."""
    if not isinstance(exchanges, tuple | list) or not all(isinstance(item, Exchange) for item in exchanges):
      items = exchanges if isinstance(exchanges, tuple | list) and not isinstance(exchanges, Exchange) else [exchanges]
      kinds = ", ".join("None" if item is None else type(item).__name__ for item in items)
      raise ValueError(f"exchanges of the algorithm must be a tuple of ddl.Exchange, got {kinds}.")
    if len(exchanges) > MOST_EXCHANGES:
      raise ValueError(f"the number of exchanges must be at most {MOST_EXCHANGES}, got {len(exchanges)}.")
    self.clocks = [Clock(exchange) for exchange in exchanges]

  def due(self, step: int) -> Due:
    """Return the exchanges that are due at step t = 0, 1, ..."""
    launch, merge, exchange = [], [], []
    for i, clock in enumerate(self.clocks):
      if not clock.delay:
        if clock.launched(step + 1):
          exchange.append(i)
        continue
      if clock.launched(step):
        launch.append(i)
      if step + 1 >= clock.delay and clock.launched(step + 1 - clock.delay):
        merge.append(i)
    return Due(tuple(launch), tuple(merge), tuple(exchange))

  def in_flight(self, step: int) -> Ids:
    """Return the number of messages in flight after `step` steps, per exchange."""
    return tuple(clock.in_flight(step) for clock in self.clocks)

  def settled(self, step: int) -> bool:
    """Return whether all cycles (see `cycle`) from `step` on have the same exchanges."""
    return all(clock.steady and step >= clock.first + clock.delay for clock in self.clocks)

  def cycle(self, step: int) -> tuple[int, int]:
    """Return (steps completed in the current cycle, its length in steps) after `step` steps of the run.

    The length is the least common multiple of the current periods of all exchanges that have begun and not ended. If a
    period varies, a cycle starts whenever a round of any exchange starts.
    """
    rounds = [(into, period) for into, period in (clock.round_at(step) for clock in self.clocks) if into >= 0]
    rounds = [(into, period) for into, period in rounds if period != NEVER] or [(0, 1)]
    length = lcm(*(period for _, period in rounds))
    if all(clock.steady for clock in self.clocks):
      return step % length, length
    return min(into for into, _ in rounds), length
