"""Virtual time of an experiment: step times, messages and barrier of its config, as a schedule or as seconds."""

import warnings
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from ddl.api import Algorithm, ServerAlgorithm
from ddl.config.experiment import Experiment, Network
from ddl.engine.traffic import Traffic
from ddl.events import lockstep
from ddl.events.barriers import Barrier, Quorum
from ddl.events.operations import Operations
from ddl.events.presence import Presence
from ddl.events.record import Events
from ddl.events.schedule import make_schedule, operations_of
from ddl.group_recorder import Sent
from ddl.perf.patterns import LATE, Op
from ddl.schedule import Schedule

ROUNDS = 50  # that a record of a collective algorithm holds


def step_times(config: Experiment) -> Any:
  """The step times that the config names."""
  times = config.times
  made = config.make_part("times", workers=config.workers, seed=config.seed)
  if times.get("straggler_rate") and (times.get("straggler_factor") or 1) == 1:
    warnings.warn("config.times.straggler_rate has no effect: config.times.straggler_factor is 1", stacklevel=2)
  if times.get("down_seconds") and not times.get("death_rate"):
    warnings.warn("config.times.down_seconds has no effect: config.times.death_rate is 0", stacklevel=2)
  return made


def barrier_of(config: Experiment) -> Barrier:
  """The barrier that the config names."""
  return config.make_part("barrier")


def whole_run(
  config: Experiment, algorithm: ServerAlgorithm, events: Events | None = None
) -> tuple[Events, Operations]:
  """Schedule of config.steps steps of each worker, on average, or the given events, with their operations.

  Raises:
    ValueError: for invalid times, or a barrier that does not fit the algorithm.
  """
  barrier, blocks = barrier_of(config), algorithm.arrivals.blocks
  if isinstance(barrier, Quorum) and (algorithm.read is None or algorithm.lock_free):
    raise ValueError(
      f"config.barrier.name is {config.barrier.name}, which serves the mean of a round; that takes an algorithm whose "
      f"workers start from the reply of the server, such as async_sgd, not {config.algorithm.short_name}"
    )
  if events:
    return events, operations_of(algorithm, events, workers=config.workers, barrier=barrier, seed=config.seed)
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


def charges(config: Experiment, sent: Traffic) -> Charges:
  """Seconds by the config: `exchange_seconds` for all collectives of an exchange, else a tree of messages for each."""

  own = config.network.exchange_seconds
  message = config.network.message_seconds

  def price(ops: tuple[Sent, ...]) -> lockstep.Seconds | None:
    if not ops or own is not None:
      return own if ops else None

    def seconds(present: int) -> float:
      return sum(messages(op.kind, present) for op in ops) * message

    return seconds if config.elastic else seconds(config.workers)

  return Charges(price(sent.local), tuple(map(price, sent.exchanges)), tuple(map(hops, sent.exchanges)))


def hops(ops: Sequence[Sent] | Sequence[Op]) -> lockstep.Hops:
  """Return whom each worker hears in each message, or () where a collective of all workers is among them."""
  return tuple(op.sources for op in ops) if all(op.kind == "permute" and op.sources for op in ops) else ()


def messages(kind: str, workers: int) -> int:
  """Messages of a collective, one after the other.

  ceil(log2 p) down a tree; an all-reduce also goes up, as SC17 counts it (arXiv 1708.02983); a permute is one message.
  """
  levels = (workers - 1).bit_length()
  return {"all_reduce": 2 * levels, "permute": min(levels, 1)}.get(kind, levels)


def lockstep_seconds(
  config: Experiment, algorithm: Algorithm, charged: Charges, there: Presence | None = None
) -> Callable[[int], float]:
  """Step -> virtual seconds of a collective algorithm on the config's step times, and with this presence. Raises at
  once."""
  done: list[np.ndarray] = []
  costs = _lockstep(config, algorithm, charged, there)

  def seconds(step: int) -> float:
    if not done:
      done.append(lockstep.finish(steps=config.steps, **costs))
    return float(done[0][step - 1]) if step else 0.0

  return seconds


def lockstep_record(config: Experiment, algorithm: Algorithm, charged: Charges) -> lockstep.StepTimes:
  """When each worker computes and waits in the first rounds of a collective algorithm: arrays [steps, ...]."""
  steps = min(config.steps, ROUNDS * max(_periods(algorithm), default=1))
  return lockstep.stack(lockstep.walk(steps=steps, **_lockstep(config, algorithm, charged)))


def drawn_presence(config: Experiment, algorithm: Algorithm, charged: Charges) -> Presence:
  """Return who is present at each step, known in advance from the config's step times and deaths."""
  steps = lockstep.walk(steps=config.steps, **_lockstep(config, algorithm, charged))
  return lockstep.presence_of(config.workers, steps)


def round_steps(algorithm: Algorithm) -> int:
  """Return the steps of a round, at whose begin workers leave and join."""
  return min(_periods(algorithm), default=1)


def _lockstep(
  config: Experiment, algorithm: Algorithm, charged: Charges, there: Presence | None = None
) -> dict[str, Any]:
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
    "elastic": there or config.elastic,
  }


def _periods(algorithm: Algorithm) -> list[int]:
  """Steps between launches of each exchange; of one that changes, those that it comes to."""
  return [clock.period(LATE) for clock in Schedule(algorithm.exchanges).clocks]


def describe(config: Experiment) -> str:
  """Describe the step times, network and barrier in words."""
  times = config.times.settings
  step = f"{times['seconds'] * 1000:g} ms" if "seconds" in times else "measured times"
  jitter = f" ({config.times.short_name}, {100 * times['jitter']:g} % jitter)" if "jitter" in times else ""
  more = [f"{k.replace('_', ' ')} {v:g}" for k, v in times.items() if k in ("straggler_rate", "death_rate") and v]
  if config.elastic:
    more.append("the others go on without a worker that dies")
  slow = times.get("slow", ())
  more += [f"{slow.count(v)} of {len(slow)} workers taking {v:g} times as long" for v in sorted({*slow} - {1.0})]
  chosen = config.barrier.short_name + "".join(f", {k} {v}" for k, v in config.barrier.settings.items())
  network = [f"messages of {config.network.message_seconds * 1000:g} ms"]
  network += [f"service by the server {config.network.service_seconds * 1000:g} ms"]
  exchange = config.network.exchange_seconds
  if exchange is None:
    all_reduce = messages("all_reduce", config.workers) * config.network.message_seconds
    network += [f"all-reduce of all workers {all_reduce * 1000:g} ms, a neighbour's model one message"]
  else:
    network += [f"exchange of all workers {exchange * 1000:g} ms"]
  return ", ".join([f"steps of {step}{jitter}", *more, *network, f"barrier {chosen}"])
