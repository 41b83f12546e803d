"""The clocks of an experiment on a cluster that it did not run on: its virtual time with the cluster's seconds.

A step takes the roofline of what it computes and moves, an exchange what latency and bandwidth make of the algorithm's
bytes. All else is that of the config: jitter, slow workers, deaths, barrier, what overlaps.
"""

import copy
from collections.abc import Callable, Sequence

import jax
import numpy as np

from ddl.api import Algorithm, ServerAlgorithm
from ddl.events.record import Events
from ddl.events.schedule import visits
from ddl.events.times import TIMES
from ddl.perf.comm import collectives, patterns, server
from ddl.perf.hardware import Cluster
from ddl.perf.hardware.cluster import main_link, server_link
from ddl.perf.hardware.device import Step, step_seconds
from ddl.runtime import traffic
from ddl.runtime.workers import AXIS, nbytes
from experiments.config.experiment import Experiment
from experiments.config.factories import Config, keywords
from experiments.costs import local_cluster
from experiments.train import virtual_time


def chosen(names: Sequence[str], config: Config) -> dict[str, Cluster]:
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


def params_bytes(experiment: Experiment) -> int:
  """Of the model's parameters."""
  params, _ = jax.eval_shape(experiment.model.init, jax.random.key(0))
  return nbytes(params)


def on(config: Config, algorithm: Algorithm | ServerAlgorithm, cluster: Cluster, step: Step, nbytes: float) -> Config:
  """The config with the cluster's step, message, service and exchange seconds.

  A collective algorithm's exchange is the cheapest of those that `ddl.perf.comm.collectives` knows. A server's link is busy
  with what goes both ways, less what its duplex lets overlap (service); the rest of the visit is on its way, half
  there and half back. It carries the visits of all workers, so that a node's link, as fast as the server's, never has
  more to do. Peers wait for nobody else, but the workers of a node share its link to the others: a turn is not shorter
  than `server.node_seconds`, as in `ddl.perf.planning.scaling`.

  Args:
    config: of the run.
    algorithm: of the run.
    cluster: with as many workers as the config has.
    step: what it computes and moves.
    nbytes: of the parameters.
  """
  out = copy.deepcopy(config)
  out.times.seconds = float(step_seconds(step, config.batch, cluster.device, cluster.efficiency))
  out.network.overlap = config.network.overlap and cluster.overlap
  found = patterns.pattern(config.algorithm.name)
  if isinstance(algorithm, Algorithm):
    cost = patterns.seconds(config.algorithm.name, nbytes, config.workers, cluster.network)
    exchange = cost.step + cost.exchange or collectives.all_reduce(nbytes, config.workers, cluster.network)
    out.network.exchange_seconds = float(exchange)  # of an algorithm that sends nothing: what its mean takes in the end
    return out
  up, down = found.up * nbytes, found.down * nbytes
  link = main_link(cluster, config.workers) if found.peers else server_link(cluster, config.workers)
  visit = server.visit_seconds(up, down, link)
  if found.peers:
    out.network.service_seconds = 0.0
    shared = server.node_seconds(up, down, config.workers, cluster.network, peers=True)
    visited, turn = algorithm.arrivals.peer_probability, (algorithm.period - algorithm.delay) * out.times.seconds
    out.network.message_seconds = float(max(visited * visit, visited * shared - turn) / 2)  # the mean over visits
  else:
    busy = (max(up, down) + (1 - link.duplex) * min(up, down)) / link.bandwidth
    out.network.service_seconds = float(busy)
    out.network.message_seconds = float((visit - busy) / 2)
  return out


def clock(config: Config, algorithm: Algorithm | ServerAlgorithm) -> Callable[[float], float]:
  """Steps of each worker -> seconds until the model of that step can be tested, by the config's virtual time."""
  if isinstance(algorithm, Algorithm):
    seconds = virtual_time.lockstep_seconds(config, algorithm)
    mean = config.network.exchange_seconds if _averages_to_test(algorithm, config.workers) else 0.0
    return lambda step: seconds(int(step)) + (mean if step else 0.0)
  events = schedule(config, algorithm)

  def seconds_of(step: float) -> float:
    count = visits(algorithm, config.workers, int(step))
    return float(events.served[count - 1]) if count else 0.0

  return seconds_of


def _averages_to_test(algorithm: Algorithm, workers: int) -> bool:
  """Whether the tested model is a mean that no worker has at that step: then it takes an exchange of its own."""
  params = {"x": jax.ShapeDtypeStruct((1,), np.float32)}
  everyone = list(zip(AXIS, (workers, 1), strict=True))
  state = jax.make_jaxpr(algorithm.init, axis_env=everyone, return_shape=True)(params)[1]
  sent = traffic.count(algorithm.evaluate, state, params, workers=workers).nbytes
  return sent > 0 and (algorithm.delay > 0 or algorithm.launch is None)


def schedule(config: Config, algorithm: ServerAlgorithm) -> Events:
  """Of the whole run on a cluster, whose `service_seconds` are those of a link: visits queue, with a lock or without.

  What a lock would hold up is the update, and that takes no time of its own here (see `ddl.perf.comm.server`).
  """
  locked = algorithm._replace(lock_free=None, arrivals=algorithm.arrivals._replace(blocks=0))
  return virtual_time.whole_run(config, locked)[0]


def staleness(events: Events) -> float:
  """Mean over the visits."""
  return float(np.mean(events.staleness[~events.dropped]))
