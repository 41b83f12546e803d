"""Predict the time of an experiment on a given cluster.

The roofline model gives the seconds of a step from its FLOP and memory traffic. The seconds of an exchange follow from
its bytes and the network's latency and bandwidth. The config sets jitter, slow workers, failures, barriers and overlap.
"""

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from ddl.api import Algorithm, FirstSteps, ServerAlgorithm, Tree
from ddl.config.catalog import keywords
from ddl.config.experiment import Experiment
from ddl.engine import traffic
from ddl.engine.compiled_program import Collective
from ddl.errors import OptionError
from ddl.events.record import Events
from ddl.events.schedule import visits_until
from ddl.events.times import TIMES
from ddl.group_recorder import Sent
from ddl.names import slug
from ddl.perf import cluster_file, patterns, scaling, server
from ddl.perf.cluster import Cluster
from ddl.perf.device import step_seconds
from ddl.perf.patterns import ExchangePattern, Op, Pattern, Visits
from ddl.perf.placement import with_shares
from ddl.perf.scaling import Scenario, StepWork, Transport
from ddl.run import virtual_time
from ddl.run.virtual_time import Charges
from ddl.schedule import Schedule


def pattern_of(
  algorithm: Algorithm | ServerAlgorithm, params: Tree, workers: int, visit: tuple[float, float] | None = None
) -> Pattern:
  """Return the communication pattern of an algorithm, by tracing its messages.

  Args:
    algorithm: a collective, gossip or server algorithm.
    params: one worker's parameters, as arrays or shapes; nothing is allocated.
    workers: the number of workers.
    visit: bytes (sent, received) per visit, if known; otherwise they are traced, which takes seconds.
  """
  if isinstance(algorithm, Algorithm):
    Schedule(algorithm.exchanges)
    sent = traffic.of(algorithm, params, workers)
    exchanges = (
      ExchangePattern(
        _ops(ops), exchange.period, exchange.delay, exchange.offset, isinstance(exchange.period, FirstSteps)
      )
      for exchange, ops in zip(algorithm.exchanges, sent.exchanges, strict=True)
    )
    return Pattern(_ops(sent.local), tuple(exchanges), evaluate=_ops(sent.evaluate))
  peers = algorithm.arrivals.peers != "none"
  up, down = (0, 0) if peers and workers == 1 else visit or traffic.visit_nbytes(algorithm, params)
  chance, in_turn = algorithm.arrivals.peer_probability, algorithm.arrivals.round_robin
  return Pattern(visits=Visits(up, down, algorithm.period, algorithm.delay, peers, chance, in_turn))


def vector(nbytes: float, *more: float) -> Tree:
  """Return float32 parameters that occupy no memory: one vector per layer. Arguments: the layers' sizes in bytes."""
  sizes = {"w": nbytes} | {f"w{i:04d}": size for i, size in enumerate(more)}
  return {name: np.broadcast_to(np.float32(0), math.ceil(size / 4)) for name, size in sizes.items()}


def _ops(sent: tuple[Sent, ...]) -> tuple[Op, ...]:
  return tuple(Op(x.kind, x.nbytes, x.sources, x.senders) for x in sent)


class Members(NamedTuple):
  """The devices (members) of a worker, and the collectives among them in a step."""

  count: int = 1
  collectives: tuple[Collective, ...] = ()  # per step
  share: float = 1.0  # bytes that all members send per byte of a message; 1 if no parameter is replicated

  def seconds(self, cluster: Cluster) -> float:
    """Return the total seconds of a step's collectives, if they run one after the other within one site."""
    one_site = cluster._replace(network=cluster.network._replace(sites=1))
    return sum((collective_seconds(collective, one_site, self.count) for collective in self.collectives), 0.0)


ALONE = Members()


def collective_seconds(collective: Collective, cluster: Cluster, devices: int) -> float:
  """Return the seconds of a compiled collective. devices: the number of devices of the whole program."""
  # An all-to-all moves as many bytes as a reduce-scatter.
  names = {"collective-permute": "permute", "all-to-all": "reduce_scatter"}
  kind = names.get(collective.kind, collective.kind.replace("-", "_"))
  members = devices if kind == "permute" else collective.size
  return patterns.seconds([Op(kind, collective.nbytes)], members, cluster.network)


def clusters_by_name(names: Sequence[str], config: Experiment, members: int = 1) -> dict[str, Cluster]:
  """Return clusters by display name, with the device efficiencies for the config's model.

  Args:
    names: names of clusters or TOML files.
    members: devices per worker; each device counts as one worker of the cluster.

  Raises:
    ValueError: for an unknown name, for two names whose figures would have the same file name, for an invalid file, for
      a cluster with too few workers, or if `config.times` has no setting `seconds`.
    FileNotFoundError: if a file does not exist.
  """
  model, files = str(config.model.name), dict[str, str]()
  for name in dict.fromkeys(names):
    if (other := files.setdefault(slug(cluster_file.display_name(name)), name)) != name:
      raise ValueError(f"cluster must not contain both {other} and {name}. Their figures would share a file name.")
  clusters = {}
  for name in names:
    clusters[cluster_file.display_name(name)] = with_shares(cluster_file.named(name, model), model)
  for name, cluster in clusters.items():
    if cluster.workers is not None and cluster.workers < config.workers * members:
      devices = "workers" if members == 1 else f"devices, {members} per worker"
      condition = f"at most {cluster.workers // members} on {name} ({cluster.workers} {devices})"
      raise OptionError("config.workers", condition, config.workers)
  scaled = [name for name, factory in TIMES.items() if "seconds" in keywords(factory)]
  if clusters and config.times.name not in scaled:
    advice = "A cluster sets config.times.seconds, which the other models of step times lack."
    raise OptionError("config.times.name", f"one of {', '.join(scaled)} if cluster is set", config.times.name, advice)
  return clusters


class ClusterRun(NamedTuple):
  """An experiment with the costs of a cluster."""

  config: Experiment  # with the cluster's step, message and service seconds
  pattern: Pattern
  charged: Charges  # seconds of the collectives
  mean: float  # seconds of the collectives that form the consensus model before an evaluation


def on(config: Experiment, pattern: Pattern, cluster: Cluster, work: StepWork, members: Members = ALONE) -> ClusterRun:
  """Return the experiment with the step, message and service times of a cluster.

  Each collective uses the cheapest algorithm of `ddl.perf.collectives`. The collectives of a local step send gradients
  layer by layer during the backward pass, as in `ddl.perf.scaling`, unless the config or the cluster forbids overlap.

  The service and message times of a visit are those of `server.visit_parts`. Visits to peers do not queue, but the
  workers of a node share its link, so that a round of a worker takes at least `server.node_seconds`.

  Args:
    cluster: a cluster with at least as many workers as the experiment.
    work: FLOP, memory traffic and gradients of a microbatch on each device of a worker.
    members: the devices of a worker. Their collectives do not overlap with compute; an exchange uses all their links.
  """
  workers, visits = config.workers, pattern.visits
  part = config.batch // config.microbatches
  seconds = config.microbatches * float(step_seconds(work.parts, part, cluster.device, cluster.efficiency))
  seconds += members.seconds(cluster)
  grouped = cluster.network.grouped(members.count) if members.count > 1 else cluster.network
  times = replace(config.times, settings={**config.times.settings, "seconds": seconds})
  network = replace(config.network, overlap=config.network.overlap and cluster.overlap)

  def sent(ops: tuple[Op, ...]) -> tuple[Op, ...]:
    return tuple(op._replace(nbytes=op.nbytes * members.share) for op in ops)

  def price(ops: tuple[Op, ...]) -> float | None:
    return patterns.seconds(sent(ops), workers, grouped) if ops else None

  gradients = None
  if pattern.local:
    target, whole = cluster._replace(network=grouped), work._replace(micro=config.microbatches)
    transport = Transport(overlap=network.overlap)
    gradients = scaling.gradients_of(
      Scenario(Pattern(sent(pattern.local)), whole, target, workers, config.batch, transport)
    )
  charged = Charges(
    gradients and gradients.sent,
    tuple(price(exchange.ops) for exchange in pattern.exchanges),
    tuple(patterns.hops(exchange.ops) for exchange in pattern.exchanges),
    gradients.hidden if gradients else 0.0,
  )

  def cluster_run(**costs: float) -> ClusterRun:
    run = replace(config, times=times, network=replace(network, **costs))
    return ClusterRun(run, pattern, charged, price(pattern.evaluate) or 0.0)

  if not visits:
    return cluster_run()
  link = cluster.network.worker_link(workers) if visits.peers else cluster.server_link(workers)
  if visits.peers:
    visit = server.visit_seconds(visits.up, visits.down, link)
    shared = server.node_seconds(visits.up, visits.down, workers, cluster.network, peers=True)
    probability, computing = visits.probability, (visits.period - visits.delay) * seconds
    mean = float(max(probability * visit, probability * shared - computing) / 2)  # mean over all visits
    return cluster_run(service_seconds=0.0, message_seconds=mean)
  concurrent = 1 if visits.round_robin else workers
  visit = server.visit_parts(visits.up, visits.down, concurrent, link, cluster.network)
  return cluster_run(service_seconds=float(visit.service), message_seconds=float(visit.message))


def clock(cluster_run: ClusterRun, algorithm: Algorithm | ServerAlgorithm) -> Callable[[float], float]:
  """Return a function: number of steps -> virtual seconds until the model after these steps can be evaluated."""
  if isinstance(algorithm, Algorithm):
    seconds = virtual_time.lockstep_seconds(cluster_run.config, algorithm, cluster_run.charged)
    return lambda step: (
      seconds(int(step)) + (0.0 if has_consensus(cluster_run.pattern, algorithm, int(step)) else cluster_run.mean)
    )
  events = schedule(cluster_run.config, algorithm)

  def seconds_of(step: float) -> float:
    count = visits_until(algorithm, events, cluster_run.config.workers, int(step))
    return float(events.served[count - 1]) if count else 0.0

  return seconds_of


def has_consensus(pattern: Pattern, algorithm: Algorithm, step: int) -> bool:
  """Return whether the consensus model after `step` steps is available without additional communication."""
  needed, clocks = Counter(pattern.evaluate), Schedule(algorithm.exchanges).clocks
  exchanged = (
    exchange.ops
    for exchange, clock in zip(pattern.exchanges, clocks, strict=True)
    if not clock.delay and clock.launched(step)
  )
  return not step or not needed or any(needed <= Counter(ops) for ops in exchanged)


def schedule(config: Experiment, algorithm: ServerAlgorithm) -> Events:
  """Return the events of the run of a server algorithm on a cluster.

  `service_seconds` is the time for which a visit occupies the server's link. Therefore, visits queue even if the
  algorithm has no lock. Updates take no additional time (see `ddl.perf.server`).
  """
  locked = algorithm._replace(lock_free=None, arrivals=algorithm.arrivals._replace(blocks=0))
  return virtual_time.whole_run(config, locked)[0]


def staleness(events: Events) -> float:
  """Return the mean staleness of the visits that were not dropped."""
  return float(np.mean(events.staleness[~events.dropped]))
