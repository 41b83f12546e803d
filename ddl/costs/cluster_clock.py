"""The clock of an experiment on another cluster: its messages and steps with the cluster's seconds.

A step takes the roofline of its FLOP and bytes; an exchange follows from latency, bandwidth and the
algorithm's bytes. All else is the config's: jitter, slow workers, deaths, barrier, overlap.
"""

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

import jax
import numpy as np

from ddl.api import Algorithm, ServerAlgorithm, Tree
from ddl.config.catalog import keywords
from ddl.config.experiment import Experiment
from ddl.costs.step_cost import step_program
from ddl.engine import compiled_program, traffic
from ddl.engine.compiled_program import Collective
from ddl.engine.placement import Placement
from ddl.engine.workers import nbytes, on_devices
from ddl.errors import OptionError
from ddl.events.record import Events
from ddl.events.schedule import visits
from ddl.events.times import TIMES
from ddl.group_recorder import Sent
from ddl.names import slug
from ddl.perf import cluster_file, patterns, server
from ddl.perf.cluster import Cluster
from ddl.perf.device import Step, step_seconds
from ddl.perf.patterns import ExchangePattern, Op, Pattern, Visits
from ddl.perf.placement import with_shares
from ddl.run import virtual_time
from ddl.run.build import Components, with_auto
from ddl.run.virtual_time import Charges
from ddl.schedule import Schedule


def pattern_of(
  algorithm: Algorithm | ServerAlgorithm, params: Tree, workers: int, visit: tuple[float, float] | None = None
) -> Pattern:
  """Return the algorithm's pattern on so many workers.

  params: one worker's, as arrays or shapes; nothing is allocated. visit: bytes up and down of a visit among several
  workers, where these are known; to find them takes seconds.
  """
  if isinstance(algorithm, Algorithm):
    Schedule(algorithm.exchanges)
    sent = traffic.of(algorithm, params, workers)
    exchanges = (
      ExchangePattern(_ops(ops), each.period, each.delay, each.offset)
      for each, ops in zip(algorithm.exchanges, sent.exchanges, strict=True)
    )
    return Pattern(_ops(sent.local), tuple(exchanges), evaluate=_ops(sent.evaluate))
  peers = algorithm.arrivals.peers != "none"
  up, down = (0, 0) if peers and workers == 1 else visit or traffic.visit_nbytes(algorithm, params)
  chance, in_turn = algorithm.arrivals.peer_probability, algorithm.arrivals.round_robin
  return Pattern(visits=Visits(up, down, algorithm.period, algorithm.delay, peers, chance, in_turn))


def vector(nbytes: float, *more: float) -> Tree:
  """Return shapes of so many bytes of float32 parameters, a vector per layer: a model by its sizes alone."""
  sizes = {"w": nbytes} | {f"w{i:04d}": size for i, size in enumerate(more)}
  return {name: jax.ShapeDtypeStruct((math.ceil(size / 4),), np.float32) for name, size in sizes.items()}


def _ops(sent: tuple[Sent, ...]) -> tuple[Op, ...]:
  return tuple(Op(each.kind, each.nbytes, each.sources, each.senders) for each in sent)


class Members(NamedTuple):
  """The devices of a worker in a step."""

  count: int = 1
  collectives: tuple[Collective, ...] = ()  # of a step, among them
  share: float = 1.0  # what they all send of a message over the message: 1 where each sends its own piece

  def seconds(self, cluster: Cluster) -> float:
    """Seconds of the collectives of a step, one after the other, in which the worker's devices are neighbours."""
    near = cluster._replace(network=cluster.network._replace(sites=1))
    return sum((collective_seconds(each, near, self.count) for each in self.collectives), 0.0)


ALONE = Members()


def of(components: Components, members: int, sharding: str) -> Members:
  """Compile a step over the members of a worker; ValueError for too few devices in this process.

  sharding: as in `Placement`.
  """
  devices = jax.local_devices()[:members]
  if members == 1:
    return ALONE
  check_devices(members)
  workers = on_devices(1, devices, members)
  experiment = components.experiment
  text = step_program(components, experiment.batch // experiment.microbatches, members, sharding).as_text()
  shapes = jax.tree.leaves(Placement(with_auto(components.model, experiment, members), workers, sharding).params)
  held = sum(math.prod(x.sharding.shard_shape(x.shape)) * x.dtype.itemsize for x in shapes)
  passed = tuple(compiled_program.collectives(text, workers.mesh)) * experiment.microbatches
  return Members(members, passed, members * held / nbytes(shapes))


def check_devices(members: int) -> None:
  """Refuse a worker whose devices are not all in this process, which compiles its step."""
  if members > len(jax.local_devices()):
    condition = f"fewer with cluster and members={members}, whose devices must be in one process"
    raise OptionError("processes", condition, advice="Predict the finished comparison in one process.")


def collective_seconds(collective: Collective, cluster: Cluster, devices: int) -> float:
  """Return the seconds of a collective that uses only the links. devices: of the whole program."""
  # Of an all-to-all each device keeps a share, as a reduce-scatter moves them.
  names = {"collective-permute": "permute", "all-to-all": "reduce_scatter"}
  kind = names.get(collective.kind, collective.kind.replace("-", "_"))
  members = devices if kind == "permute" else collective.size
  return patterns.seconds([Op(kind, collective.nbytes)], members, cluster.network)


def chosen(names: Sequence[str], config: Experiment, members: int = 1) -> dict[str, Cluster]:
  """Return the clusters of these names, as reports call them. members: devices of a worker, each the cluster's worker.

  Raises:
    ValueError: one line, for an unknown name, two whose figures would share a file, fewer workers than the config has,
      or step times without a mean to set.
  """
  model, files = str(config.model.name), dict[str, str]()
  for name in dict.fromkeys(names):
    if (other := files.setdefault(slug(cluster_file.display_name(name)), name)) != name:
      raise ValueError(f"cluster must not have {other} and {name}, whose figures would share their files.")
  clusters = {}
  for name in names:
    clusters[cluster_file.display_name(name)] = with_shares(cluster_file.named(name, model), model)
  for name, cluster in clusters.items():
    if cluster.workers is not None and cluster.workers < config.workers * members:
      have = "workers" if members == 1 else f"devices for workers of {members} members"
      condition = f"at most {cluster.workers // members} on {name}, which has {cluster.workers} {have}"
      raise OptionError("config.workers", condition, config.workers)
  scaled = [each for each, factory in TIMES.items() if "seconds" in keywords(factory)]
  if clusters and config.times.name not in scaled:
    condition = f"one of {', '.join(scaled)} with cluster, which sets the seconds of a step"
    raise OptionError("config.times.name", condition, config.times.name)
  return clusters


class ClusterRun(NamedTuple):
  """A run on a cluster."""

  config: Experiment  # with the cluster's step, message and service seconds
  pattern: Pattern
  charged: Charges  # of collectives
  mean: float  # seconds of the collectives of a test


def on(config: Experiment, pattern: Pattern, cluster: Cluster, step: Step, members: Members = ALONE) -> ClusterRun:
  """Return the config's run with the cluster's seconds.

  Collectives are the cheapest of `ddl.perf.collectives`. A server's link is busy with the bytes of both ways, less what
  its duplex lets overlap (service), for the visits of all workers; the rest of a visit is in flight, half there and
  half back. Peers do not wait for others, but the workers of a node share its link: a worker round is not shorter than
  `server.node_seconds`.

  cluster: with as many workers as the config has; step: FLOP and memory traffic of a microbatch, on each of a worker's
  devices, the members. Their collectives in a step are not hidden; an exchange has the links of all of them.
  """
  workers, visits = config.workers, pattern.visits
  part = config.batch // config.microbatches
  seconds = config.microbatches * float(step_seconds(step, part, cluster.device, cluster.efficiency))
  seconds += members.seconds(cluster)
  joined = cluster.network.of_groups(members.count) if members.count > 1 else cluster.network
  times = replace(config.times, settings={**config.times.settings, "seconds": seconds})
  network = replace(config.network, overlap=config.network.overlap and cluster.overlap)

  def price(ops: tuple[Op, ...]) -> float | None:
    sent = [op._replace(nbytes=op.nbytes * members.share) for op in ops]
    return patterns.seconds(sent, workers, joined) if ops else None

  def cluster_run(**costs: float) -> ClusterRun:
    charged = Charges(
      price(pattern.local),
      tuple(price(each.ops) for each in pattern.exchanges),
      tuple(virtual_time.hops(each.ops) for each in pattern.exchanges),
    )
    run = replace(config, times=times, network=replace(network, **costs))
    return ClusterRun(run, pattern, charged, price(pattern.evaluate) or 0.0)

  if not visits:
    return cluster_run()
  link = cluster.network.worker_link(workers) if visits.peers else cluster.server_link(workers)
  visit = server.visit_seconds(visits.up, visits.down, link)
  if visits.peers:
    shared = server.node_seconds(visits.up, visits.down, workers, cluster.network, peers=True)
    visited, computing = visits.probability, (visits.period - visits.delay) * seconds
    mean = float(max(visited * visit, visited * shared - computing) / 2)  # over visits
    return cluster_run(service_seconds=0.0, message_seconds=mean)
  busy = float(link.busy_seconds(visits.up, visits.down))
  return cluster_run(service_seconds=busy, message_seconds=float(visit - busy) / 2)


def clock(cluster_run: ClusterRun, algorithm: Algorithm | ServerAlgorithm) -> Callable[[float], float]:
  """Return steps of each worker -> seconds until the model of that step can be tested, by the run's virtual time."""
  if isinstance(algorithm, Algorithm):
    seconds = virtual_time.lockstep_seconds(cluster_run.config, algorithm, cluster_run.charged)
    return lambda step: (
      seconds(int(step)) + (0.0 if held(cluster_run.pattern, algorithm, int(step)) else cluster_run.mean)
    )
  events = schedule(cluster_run.config, algorithm)

  def seconds_of(step: float) -> float:
    count = visits(algorithm, cluster_run.config.workers, int(step))
    return float(events.served[count - 1]) if count else 0.0

  return seconds_of


def held(pattern: Pattern, algorithm: Algorithm, step: int) -> bool:
  """Return whether the consensus model is available without communication after a step."""
  wanted, clocks = Counter(pattern.evaluate), Schedule(algorithm.exchanges).clocks
  brought = (
    each.ops for each, clock in zip(pattern.exchanges, clocks, strict=True) if not clock.delay and clock.launched(step)
  )
  return not step or not wanted or any(wanted <= Counter(ops) for ops in brought)


def schedule(config: Experiment, algorithm: ServerAlgorithm) -> Events:
  """Return the events of the run on a cluster, whose `service_seconds` are a link's: visits queue even without a lock.

  A lock serializes updates, which take no time of their own here (see `ddl.perf.server`).
  """
  locked = algorithm._replace(lock_free=None, arrivals=algorithm.arrivals._replace(blocks=0))
  return virtual_time.whole_run(config, locked)[0]


def staleness(events: Events) -> float:
  """Return the mean staleness over the visits."""
  return float(np.mean(events.staleness[~events.dropped]))
