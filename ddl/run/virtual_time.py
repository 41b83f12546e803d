"""Compute the virtual time of an experiment from its config's step times, message times and barrier."""

import warnings
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from ddl.api import NEVER, Algorithm, ServerAlgorithm
from ddl.config.experiment import Experiment, Network
from ddl.engine.traffic import Traffic
from ddl.errors import OptionError
from ddl.events import lockstep, record
from ddl.events.barriers import Barrier, Quorum
from ddl.events.operations import Operations, operations
from ddl.events.presence import Presence
from ddl.events.record import Events
from ddl.events.schedule import make_schedule
from ddl.group_recorder import Sent
from ddl.perf import patterns
from ddl.perf.patterns import LATE
from ddl.run.folder import EVENTS, LOCKSTEP, RunFolder
from ddl.schedule import Schedule

ROUNDS = 50  # `lockstep_record` covers this many times the longest exchange period


def step_times(config: Experiment) -> Any:
  """Build the step-time model of an experiment."""
  times = config.times
  model = config.make_part("times", workers=config.workers, seed=config.seed)
  if times.get("straggler_rate") and (times.get("straggler_factor") or 1) == 1:
    warnings.warn("config.times.straggler_rate has no effect: config.times.straggler_factor is 1", stacklevel=2)
  if times.get("down_seconds") and not times.get("death_rate"):
    warnings.warn("config.times.down_seconds has no effect: config.times.death_rate is 0", stacklevel=2)
  return model


def barrier_of(config: Experiment) -> Barrier:
  """Build the barrier of an experiment."""
  return config.make_part("barrier")


def whole_run(
  config: Experiment, algorithm: ServerAlgorithm, events: Events | None = None
) -> tuple[Events, Operations]:
  """Return a run's event schedule and the server operations that follow from it.

  events: a recorded schedule; None: draw the schedule from the config.

  Raises ValueError for invalid times, or a barrier that the algorithm does not support.
  """
  barrier, blocks = barrier_of(config), algorithm.arrivals.blocks
  if isinstance(barrier, Quorum) and (algorithm.read is None or algorithm.lock_free):
    condition = (
      "a locking algorithm that starts each round from the server's reply (such as async_sgd) if "
      f"config.barrier.name={config.barrier.name}"
    )
    raise OptionError("config.algorithm.name", condition, config.algorithm.short_name)
  if events:
    return events, operations(algorithm, events, workers=config.workers, barrier=barrier, seed=config.seed)
  if blocks not in (0, Network.blocks) and not config.network.service_seconds:
    warnings.warn(
      f"config.network.blocks={blocks} has no effect: config.network.service_seconds is 0, so visits never overlap",
      stacklevel=2,
    )
  return make_schedule(
    algorithm,
    workers=config.workers,
    steps=config.steps,
    times=step_times(config),
    barrier=barrier,
    message_seconds=config.network.message_seconds,
    service_seconds=config.network.service_seconds,
    seed=config.seed,
  )


class Charges(NamedTuple):
  """The communication seconds of a collective algorithm: numbers, or functions of the number of present workers.

  None means that nothing is sent.
  """

  local: lockstep.Seconds | None  # at each step
  exchanges: tuple[lockstep.Seconds | None, ...]  # of each exchange
  hops: tuple[lockstep.Hops, ...] = ()  # of each exchange: the senders to each worker; () if not peer to peer
  lead: float = 0.0  # seconds by which the collectives in `local` start before the step ends


def charges(config: Experiment, sent: Traffic, deaths: bool = False) -> Charges:
  """Return the communication seconds of the traffic `sent`.

  They are `network.exchange_seconds` if it is set, else the number of `messages` times `network.message_seconds`.

  deaths: whether workers may fail, so that the seconds depend on the number of present workers.
  """
  network = config.network

  def price(ops: tuple[Sent, ...]) -> lockstep.Seconds | None:
    if not ops or network.exchange_seconds is not None:
      return network.exchange_seconds if ops else None

    def seconds(present: int) -> float:
      return sum(messages(op.kind, present) for op in ops) * network.message_seconds

    return seconds if deaths else seconds(config.workers)

  return Charges(price(sent.local), tuple(map(price, sent.exchanges)), tuple(map(patterns.hops, sent.exchanges)))


def messages(kind: str, workers: int) -> int:
  """Return the number of sequential messages of a collective that uses a binomial tree.

  The tree has ceil(log2 p) levels; an all-reduce traverses it twice (SC17, arXiv 1708.02983); a permute is one message.
  """
  levels = (workers - 1).bit_length()
  return {"all_reduce": 2 * levels, "permute": min(levels, 1)}.get(kind, levels)


def lockstep_seconds(
  config: Experiment, algorithm: Algorithm, charged: Charges, present: Presence | bool = False
) -> Callable[[int], float]:
  """Return a function that maps a step of a collective algorithm to virtual seconds. present: see `LockstepClock`."""
  costs = _lockstep(config, algorithm, charged, present)
  released = cache(lambda: lockstep.finish(steps=config.steps, **costs))  # lazy
  return lambda step: float(released()[step - 1]) if step else 0.0


def lockstep_record(
  config: Experiment, algorithm: Algorithm, charged: Charges, present: bool = False
) -> lockstep.StepTimes:
  """Return when each worker computes and waits in the first steps of a run: arrays [steps, ...].

  The record ends with the run, or after ROUNDS times the longest exchange period.
  """
  steps = min(config.steps, ROUNDS * max(_periods(algorithm), default=1))
  return lockstep.stack(lockstep.walk(steps=steps, **_lockstep(config, algorithm, charged, present)))


def round_steps(algorithm: Algorithm) -> int:
  """Return the number of steps in a round, the shortest exchange period; workers join and leave only between rounds."""
  return min(_periods(algorithm), default=1)


def _lockstep(config: Experiment, algorithm: Algorithm, charged: Charges, present: Presence | bool) -> dict[str, Any]:
  clocks = Schedule(algorithm.exchanges).clocks
  return {
    "workers": config.workers,
    "round_steps": round_steps(algorithm),
    "times": step_times(config),
    "exchanges": [
      lockstep.ExchangeSeconds(clock.launched, clock.delay, seconds, senders)
      for clock, seconds, senders in zip(clocks, charged.exchanges, charged.hops or [()] * len(clocks), strict=True)
      if seconds is not None
    ],
    "local_seconds": charged.local,
    "local_lead": charged.lead,
    "overlap": config.network.overlap,
    "present": present,
    "takes_step": algorithm.takes_step,
  }


def _periods(algorithm: Algorithm) -> list[int]:
  """Return the period, in steps, of each exchange that does not end; if the period changes, its value in round LATE."""
  return [period for clock in Schedule(algorithm.exchanges).clocks if (period := clock.period(LATE)) != NEVER]


def describe(config: Experiment) -> str:
  """Describe the step times, network and barrier for the report."""
  times = config.times.settings
  step = f"{times['seconds'] * 1000:g} ms" if "seconds" in times else "measured times"
  jitter = f" ({config.times.short_name}, {100 * times['jitter']:g} % jitter)" if "jitter" in times else ""
  more = [f"{k.replace('_', ' ')} {v:g}" for k, v in times.items() if k in ("straggler_rate", "death_rate") and v]
  slow = times.get("slow", ())
  more += [f"{slow.count(v)} of {len(slow)} workers {v:g} times slower" for v in sorted({*slow} - {1.0})]
  barrier = config.barrier.short_name + "".join(f", {k} {v}" for k, v in config.barrier.settings.items())
  network = [f"messages of {config.network.message_seconds * 1000:g} ms"]
  network += [f"server's service time {config.network.service_seconds * 1000:g} ms"]
  exchange = config.network.exchange_seconds
  if exchange is None:
    all_reduce = messages("all_reduce", config.workers) * config.network.message_seconds
    network += [f"all-reduce of all workers {all_reduce * 1000:g} ms, a neighbor's model one message"]
  else:
    network += [f"exchange of all workers {exchange * 1000:g} ms"]
  return ", ".join([f"steps of {step}{jitter}", *more, *network, f"barrier {barrier}"])


class RunClock(Protocol):
  """The clock of a run, which also counts the steps of its workers."""

  def worker_steps(self, step: int) -> int:
    """Return the total number of worker steps after `step` steps of the run."""
    ...

  def columns(self, step: int) -> dict[str, float]:
    """Return the time columns of a line of metrics."""
    ...

  def keep(self, folder: RunFolder) -> None:
    """Write the presence of workers to the run's folder, if workers may join or leave during the run."""

  def save(self, folder: Path) -> None:
    """Write the schedule to `folder`, for replays and reports."""


class FixedClock(RunClock):
  """Base class of the clocks of runs with a fixed number of workers."""

  workers: int

  def worker_steps(self, step: int) -> int:
    """Return the total number of worker steps after `step` steps of the run."""
    return step * self.workers


class LockstepClock(FixedClock):
  """The clock of a collective algorithm, in which workers wait for each other's messages."""

  def __init__(self, experiment: Experiment, algorithm: Algorithm, sent: Traffic, present: Presence | bool = False):
    """Create a clock.

    present: a `Presence`: the workers present at each step; True: workers continue without failed workers; False: they
      wait until failed workers return.
    """
    self.workers, self._experiment, self._algorithm = experiment.workers, experiment, algorithm
    self._deaths = bool(present)
    self._charged = charges(experiment, sent, self._deaths)
    self._seconds = lockstep_seconds(experiment, algorithm, self._charged, present)

  def drawn_presence(self) -> Presence:
    """Compute the workers present at each step of the run from the config's step times and failures."""
    experiment = self._experiment
    steps = lockstep.walk(steps=experiment.steps, **_lockstep(experiment, self._algorithm, self._charged, self._deaths))
    return lockstep.presence_of(experiment.workers, steps)

  def columns(self, step: int) -> dict[str, float]:
    """Return the virtual seconds."""
    return {"virtual_seconds": self._seconds(step)}

  def save(self, folder: Path) -> None:
    """Write the `lockstep_record`: when each worker computes and waits in the first steps."""
    lockstep.save(folder / LOCKSTEP, lockstep_record(self._experiment, self._algorithm, self._charged, self._deaths))


class EventClock(FixedClock):
  """The clock of a server algorithm in virtual time, which follows a schedule of visits."""

  def __init__(self, workers: int, events: Events, seconds: Callable[[int], float]):
    """Create a clock. seconds: maps the mean number of steps per worker to virtual seconds."""
    self.workers, self.events, self._seconds = workers, events, seconds

  def columns(self, step: int) -> dict[str, float]:
    """Return the virtual seconds."""
    return {"virtual_seconds": self._seconds(step)}

  def save(self, folder: Path) -> None:
    """Write the schedule."""
    folder.mkdir(parents=True, exist_ok=True)
    record.save(folder / EVENTS, self.events)
