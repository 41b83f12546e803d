"""Predicted seconds of a local step for one algorithm of each family, at the settings that the planner recommends."""

import math
from collections.abc import Sequence
from typing import NamedTuple

from ddl.perf import collectives, server
from ddl.perf.hardware import Cluster
from ddl.perf.hardware.cluster import Network
from ddl.perf.hardware.device import step_seconds
from ddl.perf.planning import sharded, synchronous
from ddl.perf.planning.batch import Job
from ddl.perf.planning.delays import round_seconds, smallest_period
from ddl.perf.planning.islands import DILOCO, FRAGMENTS, STREAMING, Islands, averaged, islands, streaming

COMPRESSED = ("bfloat16", "int8")


class Settings(NamedTuple):
  """Settings of the families."""

  params_bytes: float
  examples: int  # of a worker's step
  step: float  # seconds of a worker's step without any exchange
  workers: int
  servers: int
  delay: int  # of DaSGD
  period: int  # of DaSGD
  local_period: int  # of local SGD, without a delay
  easgd_period: int  # its exchange runs beside one step
  server_period: int  # of asynchronous EASGD, likewise
  micro: int = 1  # microbatches of a step
  shards: int = 1  # workers that hold the parameters together, at least: where one has too little memory
  gradients: str = "float32"  # format in which they are sent


class Speed(NamedTuple):
  """Prediction for one algorithm."""

  algorithm: str
  setting: str
  seconds: float  # per local step
  efficiency: float  # step without exchange / step
  rate: float  # examples per second of all workers
  steps: int = 0  # for which workers do not hear from each other, or from which a message is: the period or the delay


def speed(settings: Settings, algorithm: str, setting: str, seconds: float, steps: int = 0) -> Speed:
  """Return the prediction with the efficiency and the rate of so many seconds per step."""
  rate = settings.workers * settings.examples / seconds
  return Speed(algorithm, setting, seconds, settings.step / seconds, rate, steps)


def most(found: Sequence[Speed]) -> list[Speed]:
  """Return the predictions of the most examples per second; several where they are equal to three digits."""
  best = max(each.rate for each in found)
  return [each for each in found if each.rate >= 0.999 * best]


def exact_seconds(
  job: Job,
  cluster: Cluster,
  workers: int,
  examples: float,
  micro: int = 1,
  *,
  shards: int = 1,
  gradients: str = "float32",
) -> float:
  """Seconds of a step of synchronous SGD; with shards, where one worker has too little memory, by the faster of `ways`.

  Infinite for fewer workers than shards.
  """
  if shards == 1:
    return synchronous.seconds(job, cluster, workers, examples, gradients, micro)
  step = step_seconds(job.step, examples / micro, cluster.device, cluster.efficiency)
  found = ways(cluster.network, workers, shards).values()
  return min((micro * sharded.seconds(job, cluster, workers, step, n, gradients) for n in found), default=math.inf)


def ways(network: Network, workers: int, shards: int = 1) -> dict[str, int]:
  """Numbers of pieces by name: all workers, and those of a node where they are at least `shards`; none for one worker.

  In both, a microbatch gathers the parameters and scatters its gradients anew, as none has room for them whole.
  """
  found = {"fsdp": workers} if workers >= max(2, shards) else {}
  near = network.together(workers)
  if found and network.nodes(workers) > 1 and near >= max(2, shards) and workers % near == 0:
    found["hybrid_fsdp"] = near
  return found


def families(job: Job, cluster: Cluster, settings: Settings, share: float) -> tuple[Speed, ...]:
  """Every family that the job and the cluster allow. share: of a round spent waiting, at most, where periods wait."""
  if settings.shards > 1:
    return (*pieces(job, cluster, settings), *between(job, cluster, settings, share))
  return (
    *exchanged(job, cluster, settings),
    *pieces(job, cluster, settings),
    *speeds(settings, cluster),
    *between(job, cluster, settings, share),
  )


def exchanged(job: Job, cluster: Cluster, settings: Settings) -> list[Speed]:
  """Synchronous SGD whose gradients leave as they appear, in each format and as PowerSGD."""
  s = settings
  names = dict.fromkeys((s.gradients, *COMPRESSED) if s.workers > 1 else (s.gradients,))
  found = [
    speed(s, "sync_sgd", f"{name} gradients", synchronous.seconds(job, cluster, s.workers, s.examples, name, s.micro))
    for name in names
  ]
  if job.table and s.workers > 1:
    taken = synchronous.powersgd_seconds(job, cluster, s.workers, s.examples, s.micro)
    found.append(speed(s, "sync_sgd", f"PowerSGD, rank {synchronous.RANK}", taken))
  return found


def pieces(job: Job, cluster: Cluster, settings: Settings) -> list[Speed]:
  """Synchronous SGD with sharded parameters, in each of `ways`."""
  s = settings
  found = ways(cluster.network, s.workers, s.shards)
  return [speed(s, name, f"{n} shards", _in_pieces(job, cluster, s, s.workers, n)) for name, n in found.items()]


def _in_pieces(job: Job, cluster: Cluster, settings: Settings, workers: int, shards: int) -> float:
  s = settings
  return s.micro * sharded.seconds(job, cluster, workers, s.step / s.micro, shards, s.gradients)


def between(job: Job, cluster: Cluster, settings: Settings, share: float) -> list[Speed]:
  """Averages between islands of synchronous workers: hierarchical SGD, DiLoCo, Streaming DiLoCo."""
  s, land = settings, islands(cluster, settings.workers)
  if s.workers == 1 or land.members < s.shards:
    return []
  step, message = inside_seconds(job, land, s), land.message_seconds(s.params_bytes)
  where = f"{land.count} {land.kind}"

  def averaging(name: str, period: int) -> Speed:
    return speed(s, name, f"{where}, period {period}", averaged(step, message, period), period)

  found = []
  if land.members > 1:
    found.append(averaging("hierarchical_sgd", smallest_period(message, step, share=share)))
  found.append(averaging("diloco", DILOCO))
  quick = streaming(
    step, land.message_seconds, s.params_bytes, period=STREAMING, fragments=FRAGMENTS, overlap=cluster.overlap
  )
  setting = f"{where}, period {STREAMING}, {FRAGMENTS} fragments, int4, delay {quick.delay}"
  return [*found, speed(s, "streaming_diloco", setting, quick.seconds, STREAMING)]


def inside_seconds(job: Job, land: Islands, settings: Settings) -> float:
  """Seconds of a step of synchronous SGD inside an island."""
  s = settings
  if s.shards > 1:
    return _in_pieces(job, land.inside, s, land.members, land.members)
  return synchronous.seconds(job, land.inside, land.members, s.examples, s.gradients, s.micro)


def speeds(settings: Settings, cluster: Cluster) -> tuple[Speed, ...]:
  """Local SGD, DaSGD, EASGD and two asynchronous servers, by their closed forms; parameters go in float32."""
  s = settings
  average = collectives.all_reduce(s.params_bytes, s.workers, cluster.network)

  def collective(name: str, period: int, delay: int) -> Speed:
    hidden = delay if cluster.overlap else 0
    taken = round_seconds(step=s.step, message=average, period=period, delay=hidden) / period
    return speed(s, name, f"period {period}, delay {delay}", taken, max(period, delay))

  link = cluster.server_link(s.workers)
  alone = s.workers == 1  # a worker that is its own server sends nothing
  visit = 0.0 if alone else server.visit_seconds(s.params_bytes, s.params_bytes, link, s.servers)
  served = 0.0 if alone else server.served_seconds(s.params_bytes, s.workers, link, cluster.network, s.servers)

  def asynchronous(name: str, period: int, delay: int) -> Speed:
    own = round_seconds(step=s.step, message=visit, period=period, delay=delay if cluster.overlap else 0)
    taken = max(own, served) / period
    return speed(s, name, f"{s.servers} server{'s' * (s.servers > 1)}, period {period}", taken, period)

  return (
    collective("local_sgd", s.local_period, 0),
    collective("dasgd", s.period, s.delay),
    collective("easgd", s.easgd_period, 1),
    asynchronous("async_sgd", 1, 0),
    asynchronous("async_easgd", s.server_period, 1),
  )
