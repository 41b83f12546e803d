"""Virtual time of an experiment: step times, messages and barrier of its config, as a schedule or as seconds."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from ddl.api import Algorithm, ServerAlgorithm
from ddl.events import lockstep
from ddl.events.barriers import BARRIERS, Barrier, Quorum
from ddl.events.operations import Operations, operations
from ddl.events.record import Events
from ddl.events.schedule import schedule
from ddl.events.times import TIMES
from ddl.runtime.wave_plan import visits
from experiments.parts import Config, named, settings


def step_times(config: Config) -> Any:
  """The step times that the config names."""
  factory = named("times", TIMES, config.times.name)
  return factory(workers=config.workers, seed=config.seed, **settings("times", factory, config.times))


def barrier_of(config: Config) -> Barrier:
  """The barrier that the config names."""
  factory = named("barrier", BARRIERS, config.barrier.name)
  return factory(**settings("barrier", factory, config.barrier))


def events_of(config: Config, algorithm: ServerAlgorithm, visits: int) -> tuple[Events, Operations]:
  """Who is served when, for `visits` visits, and what the server does in what order. Raises as `schedule_of` does."""
  events = schedule_of(config, algorithm, visits)
  return events, operations_of(config, algorithm, events)


def schedule_of(config: Config, algorithm: ServerAlgorithm, visits: int) -> Events:
  """Who is served when, for `visits` visits.

  Raises:
    ValueError: for times that can't be, or a barrier that does not fit the algorithm.
  """
  barrier = barrier_of(config)
  if isinstance(barrier, Quorum) and (algorithm.read is None or algorithm.lock_free):
    raise ValueError(
      f"config.barrier.name is {config.barrier.name}, which serves the mean of a round; that takes an algorithm whose "
      f"workers start from what the server tells them, such as async_sgd, not {config.algorithm.name}"
    )
  return schedule(
    workers=config.workers,
    turns_total=visits,
    period=algorithm.period,
    delay=algorithm.delay,
    times=step_times(config),
    barrier=barrier,
    message_seconds=config.network.message_seconds,
    service_seconds=config.network.service_seconds,
    seed=config.seed,
    peers=algorithm.peers,
    peer_probability=algorithm.peer_probability,
    round_robin=algorithm.round_robin,
    lock_free=algorithm.lock_free is not None,
  )


def whole_run(config: Config, algorithm: ServerAlgorithm) -> tuple[Events, Operations]:
  """As many events as config.steps steps of each worker, on average, need."""
  return events_of(config, algorithm, visits(algorithm, config.workers, config.steps))


def operations_of(config: Config, algorithm: ServerAlgorithm, events: Events) -> Operations:
  """What the server does in the order of these events."""
  rule = algorithm.lock_free
  return operations(
    events,
    rereads=algorithm.read is not None,
    quorum=isinstance(barrier_of(config), Quorum),
    blocks=config.network.blocks if rule else 0,
    reads_first=rule.reads_first if rule else False,
    seed=config.seed,
  )


def lockstep_seconds(config: Config, algorithm: Algorithm) -> Callable[[int], float]:
  """Step -> virtual seconds of a synchronous algorithm on the same step times and messages."""
  exchange = config.network.exchange_seconds
  if exchange is None:  # a tree to the root and back, as SC17 counts it (arXiv 1708.02983)
    exchange = 2 * math.ceil(math.log2(max(config.workers, 2))) * config.network.message_seconds
  if algorithm.launch is None and config.algorithm.name == "independent":
    exchange = 0.0
  done: list[np.ndarray] = []

  def seconds(step: int) -> float:
    if not done:
      done.append(
        lockstep.finish(
          workers=config.workers,
          steps=config.steps,
          period=algorithm.period,
          delay=algorithm.delay,
          start=algorithm.start,
          times=step_times(config),
          exchange_seconds=exchange,
          primed=algorithm.primed,
          overlap=config.network.overlap,
        )
      )
    return float(done[0][step - 1]) if step else 0.0

  return seconds


def describe(config: Config) -> str:
  """What virtual time is made of, in words."""
  times = settings("times", named("times", TIMES, config.times.name), config.times)
  step = f"{times['seconds'] * 1000:g} ms" if "seconds" in times else "measured times"
  jitter = f" ({config.times.name}, {times['jitter']:.0%} jitter)" if "jitter" in times else ""
  more = [f"{k} {v:g}" for k, v in times.items() if k in ("straggler_rate", "death_rate") and v]
  more += [f"workers slower by {', '.join(f'{v:g}' for v in times['slow'])}"] if times.get("slow") else []
  barrier = settings("barrier", named("barrier", BARRIERS, config.barrier.name), config.barrier)
  chosen = config.barrier.name + "".join(f", {k} {v}" for k, v in barrier.items())
  parts = [f"steps of {step}{jitter}", *more, f"messages of {config.network.message_seconds * 1000:g} ms"]
  return ", ".join([*parts, f"service {config.network.service_seconds * 1000:g} ms, barrier {chosen}"])
