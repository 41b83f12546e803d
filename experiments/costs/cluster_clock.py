"""The clocks of an experiment on a cluster that it did not run on: its virtual time with the cluster's seconds.

A step takes the roofline of what it computes and moves, an exchange what latency and bandwidth make of the algorithm's
bytes. All else is that of the config: jitter, slow workers, deaths, barrier, what overlaps.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

import jax
import numpy as np

from ddl.api import Algorithm, Model, ServerAlgorithm
from ddl.events.record import Events
from ddl.events.schedule import visits
from ddl.events.times import TIMES
from ddl.perf.comm import patterns, server
from ddl.perf.comm.patterns import Op, Pattern
from ddl.perf.hardware import Cluster
from ddl.perf.hardware.device import Step, step_seconds
from ddl.runtime.workers import nbytes
from ddl.schedule import Schedule
from experiments.config.experiment import Experiment
from experiments.config.factories import keywords
from experiments.costs import local_cluster
from experiments.train import virtual_time
from experiments.train.virtual_time import Charges


def chosen(names: Sequence[str], config: Experiment) -> dict[str, Cluster]:
  """The clusters of these names.

  Raises:
    ValueError: one line, for an unknown name, fewer workers than the config has, or step times without a mean to set.
  """
  found = {name: local_cluster.named(name) for name in names}
  for name, cluster in found.items():
    if cluster.workers is not None and cluster.workers < config.workers:
      fits = f"--config.workers={cluster.workers} fits"
      raise ValueError(f"{name} has {cluster.workers} workers; config.workers is {config.workers}: {fits}")
  scaled = [each for each, factory in TIMES.items() if "seconds" in keywords(factory)]
  if found and config.times.name not in scaled:
    raise ValueError(
      f"--cluster sets the seconds of a step, so that config.times.name can be {', '.join(scaled)}, "
      f"not {config.times.name}"
    )
  return found


def params_bytes(model: Model) -> int:
  """Of its parameters."""
  params, _ = jax.eval_shape(model.init, jax.random.key(0))
  return nbytes(params)


class There(NamedTuple):
  """A run on a cluster."""

  config: Experiment  # with the cluster's step, message and service seconds
  pattern: Pattern
  charged: Charges  # of collectives
  mean: float  # seconds of the collectives of a test


def on(config: Experiment, pattern: Pattern, cluster: Cluster, step: Step) -> There:
  """The config's run with the cluster's seconds.

  Collectives are the cheapest that `ddl.perf.comm.collectives` knows. A server's link is busy
  with what goes both ways, less what its duplex lets overlap (service); the rest of the visit is on its way, half
  there and half back. It carries the visits of all workers, so that a node's link, as fast as the server's, never has
  more to do. Peers wait for nobody else, but the workers of a node share its link to the others: a turn is not shorter
  than `server.node_seconds`, as in `ddl.perf.planning.scaling`.

  Args:
    config: of the run.
    pattern: what its algorithm sends.
    cluster: with as many workers as the config has.
    step: what it computes and moves.
  """
  workers, visits = config.workers, pattern.visits
  seconds = float(step_seconds(step, config.batch, cluster.device, cluster.efficiency))
  times = replace(config.times, settings={**config.times.settings, "seconds": seconds})
  network = replace(config.network, overlap=config.network.overlap and cluster.overlap)

  def price(ops: tuple[Op, ...]) -> float | None:
    return patterns.seconds(ops, workers, cluster.network) if ops else None

  def there(**costs: float) -> There:
    charged = Charges(price(pattern.local), tuple(price(each.ops) for each in pattern.exchanges))
    run = replace(config, times=times, network=replace(network, **costs))
    return There(run, pattern, charged, price(pattern.evaluate) or 0.0)

  if not visits:
    return there()
  link = cluster.network.main_link(workers) if visits.peers else cluster.server_link(workers)
  visit = server.visit_seconds(visits.up, visits.down, link)
  if visits.peers:
    shared = server.node_seconds(visits.up, visits.down, workers, cluster.network, peers=True)
    visited, turn = visits.probability, (visits.period - visits.delay) * seconds
    mean = float(max(visited * visit, visited * shared - turn) / 2)  # over visits
    return there(service_seconds=0.0, message_seconds=mean)
  busy = float(link.busy_seconds(visits.up, visits.down))
  return there(service_seconds=busy, message_seconds=float(visit - busy) / 2)


def clock(there: There, algorithm: Algorithm | ServerAlgorithm) -> Callable[[float], float]:
  """Steps of each worker -> seconds until the model of that step can be tested, by the run's virtual time."""
  if isinstance(algorithm, Algorithm):
    seconds = virtual_time.lockstep_seconds(there.config, algorithm, there.charged)
    return lambda step: seconds(int(step)) + (0.0 if held(there.pattern, algorithm, int(step)) else there.mean)
  events = schedule(there.config, algorithm)

  def seconds_of(step: float) -> float:
    count = visits(algorithm, there.config.workers, int(step))
    return float(events.served[count - 1]) if count else 0.0

  return seconds_of


def held(pattern: Pattern, algorithm: Algorithm, step: int) -> bool:
  """Whether workers hold the tested model after so many steps: an exchange has just brought what a test would send."""
  wanted, clocks = Counter(pattern.evaluate), Schedule(algorithm.exchanges).clocks
  brought = (
    each.ops for each, clock in zip(pattern.exchanges, clocks, strict=True) if not clock.delay and clock.launched(step)
  )
  return not step or not wanted or any(wanted <= Counter(ops) for ops in brought)


def schedule(config: Experiment, algorithm: ServerAlgorithm) -> Events:
  """Of the whole run on a cluster, whose `service_seconds` are those of a link: visits queue, with a lock or without.

  What a lock would hold up is the update, and that takes no time of its own here (see `ddl.perf.comm.server`).
  """
  locked = algorithm._replace(lock_free=None, arrivals=algorithm.arrivals._replace(blocks=0))
  return virtual_time.whole_run(config, locked)[0]


def staleness(events: Events) -> float:
  """Mean over the visits."""
  return float(np.mean(events.staleness[~events.dropped]))
