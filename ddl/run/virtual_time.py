"""Virtual time of an experiment: step times, messages and barrier of its config, as a schedule or as seconds."""

import warnings
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from ddl.api import Algorithm, ServerAlgorithm
from ddl.config.experiment import Experiment, Network
from ddl.engine.traffic import Traffic
from ddl.events import lockstep, record
from ddl.events.barriers import Barrier, Quorum
from ddl.events.operations import Operations, operations
from ddl.events.presence import Presence
from ddl.events.record import Events
from ddl.events.schedule import make_schedule
from ddl.group_recorder import Sent
from ddl.perf.patterns import LATE, Op
from ddl.run.folder import EVENTS, LOCKSTEP, RunFolder
from ddl.schedule import Schedule

ROUNDS = 50  # that a record of a collective algorithm holds


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
  """Return the schedule of a run, or the given events, with their operations.

  Raises ValueError for invalid times, or a barrier that does not fit the algorithm.
  """
  barrier, blocks = barrier_of(config), algorithm.arrivals.blocks
  if isinstance(barrier, Quorum) and (algorithm.read is None or algorithm.lock_free):
    raise ValueError(
      f"config.barrier.name is {config.barrier.name}, which serves the mean of a round; that takes an algorithm whose "
      f"workers start from the reply of the server, such as async_sgd, not {config.algorithm.short_name}"
    )
  if events:
    return events, operations(algorithm, events, workers=config.workers, barrier=barrier, seed=config.seed)
  if blocks not in (0, Network.blocks) and not config.network.service_seconds:
    warnings.warn(
      f"config.network.blocks={blocks} has no effect: config.network.service_seconds is 0, so that visits do not meet",
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
  """Seconds of a collective algorithm's messages among so many workers; None where nothing is sent."""

  local: lockstep.Seconds | None  # at each step
  exchanges: tuple[lockstep.Seconds | None, ...]  # of each
  hops: tuple[lockstep.Hops, ...] = ()  # of each: whom workers hear, of messages between neighbours alone


def charges(config: Experiment, sent: Traffic, deaths: bool = False) -> Charges:
  """Return the seconds of exchanges: `exchange_seconds`, or a tree of messages. deaths: whether workers may fail."""
  network = config.network

  def price(ops: tuple[Sent, ...]) -> lockstep.Seconds | None:
    if not ops or network.exchange_seconds is not None:
      return network.exchange_seconds if ops else None

    def seconds(present: int) -> float:
      return sum(messages(op.kind, present) for op in ops) * network.message_seconds

    return seconds if deaths else seconds(config.workers)

  return Charges(price(sent.local), tuple(map(price, sent.exchanges)), tuple(map(hops, sent.exchanges)))


def hops(ops: Sequence[Sent] | Sequence[Op]) -> lockstep.Hops:
  """Return whom each worker hears in each message, or () where a collective of all workers is among them."""
  return tuple(op.sources for op in ops) if all(op.kind == "permute" and op.sources for op in ops) else ()


def messages(kind: str, workers: int) -> int:
  """Return the number of sequential messages of a collective.

  ceil(log2 p) down a tree; an all-reduce also goes up, as SC17 counts it (arXiv 1708.02983); a permute is one message.
  """
  levels = (workers - 1).bit_length()
  return {"all_reduce": 2 * levels, "permute": min(levels, 1)}.get(kind, levels)


def lockstep_seconds(
  config: Experiment, algorithm: Algorithm, charged: Charges, present: Presence | bool = False
) -> Callable[[int], float]:
  """Return the function: step -> virtual seconds of a collective algorithm. present: as of `LockstepClock`."""
  costs = _lockstep(config, algorithm, charged, present)
  released = cache(lambda: lockstep.finish(steps=config.steps, **costs))  # when it is first asked for
  return lambda step: float(released()[step - 1]) if step else 0.0


def lockstep_record(
  config: Experiment, algorithm: Algorithm, charged: Charges, present: bool = False
) -> lockstep.StepTimes:
  """Return when each worker computes and waits in the first rounds of a collective algorithm: arrays [steps, ...]."""
  steps = min(config.steps, ROUNDS * max(_periods(algorithm), default=1))
  return lockstep.stack(lockstep.walk(steps=steps, **_lockstep(config, algorithm, charged, present)))


def round_steps(algorithm: Algorithm) -> int:
  """Return the steps of a round, at whose begin workers leave and join."""
  return min(_periods(algorithm), default=1)


def _lockstep(config: Experiment, algorithm: Algorithm, charged: Charges, present: Presence | bool) -> dict[str, Any]:
  clocks = Schedule(algorithm.exchanges).clocks
  return {
    "workers": config.workers,
    "round_steps": round_steps(algorithm),
    "times": step_times(config),
    "exchanges": [
      lockstep.ExchangeSeconds(clock.launched, clock.delay, seconds, hears)
      for clock, seconds, hears in zip(clocks, charged.exchanges, charged.hops or [()] * len(clocks), strict=True)
      if seconds is not None
    ],
    "local_seconds": charged.local,
    "overlap": config.network.overlap,
    "present": present,
  }


def _periods(algorithm: Algorithm) -> list[int]:
  """Return the period of each exchange; the limiting one if it changes."""
  return [clock.period(LATE) for clock in Schedule(algorithm.exchanges).clocks]


def describe(config: Experiment) -> str:
  """Describe the step times, network and barrier in words."""
  times = config.times.settings
  step = f"{times['seconds'] * 1000:g} ms" if "seconds" in times else "measured times"
  jitter = f" ({config.times.short_name}, {100 * times['jitter']:g} % jitter)" if "jitter" in times else ""
  more = [f"{k.replace('_', ' ')} {v:g}" for k, v in times.items() if k in ("straggler_rate", "death_rate") and v]
  slow = times.get("slow", ())
  more += [f"{slow.count(v)} of {len(slow)} workers taking {v:g} times as long" for v in sorted({*slow} - {1.0})]
  barrier = config.barrier.short_name + "".join(f", {k} {v}" for k, v in config.barrier.settings.items())
  network = [f"messages of {config.network.message_seconds * 1000:g} ms"]
  network += [f"service by the server {config.network.service_seconds * 1000:g} ms"]
  exchange = config.network.exchange_seconds
  if exchange is None:
    all_reduce = messages("all_reduce", config.workers) * config.network.message_seconds
    network += [f"all-reduce of all workers {all_reduce * 1000:g} ms, a neighbour's model one message"]
  else:
    network += [f"exchange of all workers {exchange * 1000:g} ms"]
  return ", ".join([f"steps of {step}{jitter}", *more, *network, f"barrier {barrier}"])


class RunClock(Protocol):
  """The time of a run, and how many steps its workers have completed."""

  def worker_steps(self, step: int) -> int:
    """Return the steps that all workers together complete up to a step of the run."""
    ...

  def columns(self, step: int) -> dict[str, float]:
    """Return the columns of a line of metrics that contain the time."""
    ...

  def keep(self, folder: RunFolder) -> None:
    """Write which workers are present, if that changes, to the folder of the run."""

  def save(self, folder: Path) -> None:
    """Write the schedule, which a replay follows and a report draws."""


class FixedClock(RunClock):
  """Base class of the clocks of runs in which all workers are present."""

  workers: int

  def worker_steps(self, step: int) -> int:
    """Return the steps of all workers up to a step of the run."""
    return step * self.workers


class LockstepClock(FixedClock):
  """The clock of a collective algorithm: workers wait for each other's messages."""

  def __init__(self, experiment: Experiment, algorithm: Algorithm, sent: Traffic, present: Presence | bool = False):
    """present: the workers of each step; True: the others continue without a worker that dies; False: they wait."""
    self.workers, self._experiment, self._algorithm = experiment.workers, experiment, algorithm
    self._deaths = bool(present)
    self._charged = charges(experiment, sent, self._deaths)
    self._seconds = lockstep_seconds(experiment, algorithm, self._charged, present)

  def drawn_presence(self) -> Presence:
    """Return the workers that are present at each step, known in advance from the config's step times and deaths."""
    experiment = self._experiment
    steps = lockstep.walk(steps=experiment.steps, **_lockstep(experiment, self._algorithm, self._charged, self._deaths))
    return lockstep.presence_of(experiment.workers, steps)

  def columns(self, step: int) -> dict[str, float]:
    """Return the virtual seconds."""
    return {"virtual_seconds": self._seconds(step)}

  def save(self, folder: Path) -> None:
    """Write when each worker computes and waits in the first rounds."""
    lockstep.save(folder / LOCKSTEP, lockstep_record(self._experiment, self._algorithm, self._charged, self._deaths))


class EventClock(FixedClock):
  """The clock of a server algorithm in virtual time: a schedule of visits."""

  def __init__(self, workers: int, events: Events, seconds: Callable[[int], float]):
    """seconds: step -> virtual seconds after that many steps of the workers on average."""
    self.workers, self.events, self._seconds = workers, events, seconds

  def columns(self, step: int) -> dict[str, float]:
    """Return the virtual seconds."""
    return {"virtual_seconds": self._seconds(step)}

  def save(self, folder: Path) -> None:
    """Write the schedule."""
    folder.mkdir(parents=True, exist_ok=True)
    record.save(folder / EVENTS, self.events)
