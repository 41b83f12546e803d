"""The simulated cluster: durations of steps, messages and service, and the peers of visits."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from ddl.errors import OptionError
from ddl.events.times import Stream, Times, not_negative

Seconds = float | Callable[[int], float]  # one value for all workers, or a function of the worker


class VisitOrder(Protocol):
  """The interface of `ddl.api.Arrivals`, repeated here because `ddl.events` must not import JAX."""

  @property
  def order(self) -> str: ...
  @property
  def peers(self) -> str: ...
  @property
  def peer_probability(self) -> float: ...
  @property
  def blocks(self) -> int: ...


class Rule(Protocol):
  """The part of the interface of `ddl.api.ServerAlgorithm` that a schedule depends on."""

  @property
  def period(self) -> int: ...
  @property
  def periods(self) -> Any: ...
  @property
  def delay(self) -> int: ...
  @property
  def read(self) -> Any: ...
  @property
  def lock_free(self) -> Any: ...
  @property
  def arrivals(self) -> VisitOrder: ...
  @property
  def averages(self) -> bool: ...


def worker_periods(algorithm: Rule, step_times: Sequence[float]) -> tuple[int, ...]:
  """Return each worker's number of steps per round.

  step_times: mean time per step of each worker, in any unit.

  Raises OptionError if `algorithm.periods` does not return one integer per worker, from max(1, delay) to `period`.
  """
  if algorithm.periods is None:
    return (algorithm.period,) * len(step_times)
  periods = tuple(algorithm.periods([seconds / min(step_times) for seconds in step_times]))
  least, valid = max(1, algorithm.delay), len(periods) == len(step_times)
  if not valid or any(period != int(period) or not least <= period <= algorithm.period for period in periods):
    condition = f"{len(step_times)} integers from {least} to {algorithm.period} (one per worker)"
    raise OptionError("the periods of the algorithm", condition, periods)
  return tuple(map(int, periods))


class Work(NamedTuple):
  """The timing of a worker round: seconds since the start of the run, except for the duration `rest`."""

  start: float  # computing begins, after any time lost to deaths
  leaves: float  # the worker sends its request
  ready: float  # the worker begins to wait for the reply
  rest: float  # duration of the steps after the reply
  downs: tuple[tuple[float, float], ...]  # (death, restart) of each death


class VirtualCluster:
  """The step times and communication costs of each worker."""

  def __init__(
    self, times: Times, *, period: int, delay: int, message_seconds: Seconds, service_seconds: Seconds,
    periods: Sequence[int] = (),
  ):  # fmt: skip
    """Check and store the arguments; period and delay are in steps, as in `ddl.api.ServerAlgorithm`.

    periods: result of `worker_periods`; by default, `period` for all workers.
    """
    if period < 1:
      raise OptionError("period", ">= 1", period)
    if not 0 <= delay <= period:
      raise OptionError("delay", f"from 0 to the period ({period})", delay)
    self.workers, self.period, self.delay, self._times = times.workers, period, delay, times
    self.periods = tuple(periods) or (period,) * times.workers
    self.message = _by_worker("message_seconds", message_seconds, times.workers)  # one way
    self.service = _by_worker("service_seconds", service_seconds, times.workers)

  def work(self, worker: int, round_: int, time: float) -> Work:
    """Return the timing of a worker's round that begins at `time`. After a death the worker repeats the round."""
    period = self.periods[worker]
    first = round_ * period
    steps = self._times.steps(worker, first, period)
    seconds, downs = float(steps.sum()), list[tuple[float, float]]()
    for death in self._times.deaths(worker, first, steps):
      died = time + death.work_seconds
      time = died + death.down_seconds
      downs.append((died, time))
    if not self.delay:
      return Work(time, time + seconds, time + seconds, 0.0, tuple(downs))
    before = float(steps[: self.delay].sum())
    return Work(time, time, time + before, seconds - before if self.delay < period else 0.0, tuple(downs))


def draw_peers(worker: np.ndarray, round_: np.ndarray, *, workers: int, arrivals: VisitOrder, seed: int) -> np.ndarray:
  """Draw each visit's peer as a pure function of (seed, worker, round): [events] int32, -1 for no peer.

  Raises a one-line ValueError if `arrivals` is invalid or the workers cannot be paired as it requires.
  """
  peers, probability = arrivals.peers, arrivals.peer_probability
  if not 0 <= probability <= 1:
    raise OptionError("peer_probability", "in [0, 1]", f"{probability:g}")
  if peers == "none":
    return np.full(len(worker), -1, np.int32)
  if peers not in ("uniform", "bipartite"):
    raise OptionError("peers", "one of none, uniform, bipartite", repr(peers))
  if workers < 2 or (peers == "bipartite" and workers % 2):
    condition = f"{'even' if peers == 'bipartite' else 'two or more'} with {peers} peers"
    raise OptionError("workers", condition, workers)
  stream = Stream(lambda rng, count: rng.random((count, 2)), seed=seed, purpose=2)
  draws = np.empty((len(worker), 2))
  for rank in range(workers):
    events = worker == rank
    if events.any():
      draws[events] = stream.take(rank, 0, int(round_[events].max()) + 1)[round_[events]]
  if peers == "uniform":
    other = np.minimum((draws[:, 1] * (workers - 1)).astype(np.int32), workers - 2)
    other += other >= worker  # a worker is not its own peer
  else:
    other = (worker + np.where(draws[:, 1] < 0.5, 1, -1)) % workers
  return np.where(draws[:, 0] < probability, other, -1).astype(np.int32)


def _by_worker(name: str, seconds: Seconds, workers: int) -> list[float]:
  values = [float(seconds(worker)) if callable(seconds) else float(seconds) for worker in range(workers)]
  return [not_negative(f"{name} of worker {worker}", value) for worker, value in enumerate(values)]
