"""Scaling curves: seconds of a step, speed-up and efficiency over the number of workers, and what they are lost to.

Strong scaling keeps the global batch, weak scaling that of each worker. A loss is the difference to the same run with
one thing perfect: no latency, no end of bandwidth, the compute efficiency of one worker's batch, no jitter, no turns.
"""

import math
from collections.abc import Sequence
from functools import cache
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from ddl.perf.comm import patterns, server, server_queue
from ddl.perf.hardware import device as compute
from ddl.perf.hardware.cluster import Cluster, server_link
from ddl.perf.hardware.device import Part, Step, part_seconds, step_seconds
from ddl.perf.hardware.network import check_link
from ddl.perf.step import timeline
from ddl.perf.step.layers import Table
from ddl.perf.step.timeline import Pass
from ddl.perf.tables.totals import params_bytes, parts


class Work(NamedTuple):
  """What a step computes and sends, by layers in the order of the forward pass."""

  flop: tuple[float, ...]  # of a training step, per example
  nbytes: tuple[float, ...]  # of the parameters, in float32
  moved: tuple[float, ...] = ()  # values read and written per example, as `compute.Part` has them; none: FLOP alone
  held: tuple[float, ...] = ()  # likewise, whatever the examples

  @property
  def parts(self) -> tuple[Part, ...]:
    """Of a step's roofline."""
    return tuple(map(Part, self.flop, self.moved, self.held)) if self.moved else tuple(map(Part, self.flop))


class Schedule(NamedTuple):
  """When an algorithm exchanges, and how its messages travel."""

  period: int = 1  # steps per exchange (tau)
  delay: int = 0  # steps that run beside an exchange (d)
  round_robin: bool = False  # one worker after the other
  servers: int = 1
  overlap: bool = True  # gradients leave as they appear, and steps run beside exchanges
  bucket: float = 25e6  # bytes of gradients that leave together; 0: each layer alone. 25 MB as PyTorch's DDP
  probability: float = 1.0  # that a worker visits another at all, where workers visit each other
  order: str = "fifo"  # of gradients' messages, see timeline.ORDERS


class Point(NamedTuple):
  """One number of workers; seconds per step, means."""

  workers: int
  examples: int  # per worker and step, of the fullest worker
  seconds: float
  examples_per_second: float  # of all workers
  speedup: float  # over one worker
  efficiency: float  # speed-up per worker
  waiting: float  # share of the time that communication takes from computing
  losses: dict[str, float]  # seconds of the step that LOSSES cost, each by itself

  @property
  def limit(self) -> str:
    """What costs most; "nothing" where all together cost less than a hundredth of the step."""
    most = max(self.losses, key=lambda name: self.losses[name])
    return most if self.losses[most] >= 0.01 * self.seconds else "nothing"


LOSSES = ("latency", "bandwidth", "small batches", "stragglers", "taking turns")


def work(table: Table) -> Work:
  """Of a layer table: 6 macs FLOP per example and 4 params bytes for each layer, and three passes over both."""
  return work_of(parts(table), params_bytes(table))


def work_of(step: Step, nbytes: float) -> Work:
  """Of a step's parts and the bytes of all parameters, of which a part has its share of what is held."""
  flop, moved, held = (tuple(map(float, each)) for each in zip(*compute.parts(step), strict=True))
  whole = sum(held)
  return Work(flop, tuple(nbytes * values / whole for values in held) if whole else (nbytes,), moved, held)


def curve(
  name: str, job: Work, cluster: Cluster, workers: Sequence[int], *, batch: int, weak: bool = False,
  schedule: Schedule | None = None, jitter: float = 0.0,
) -> list[Point]:  # fmt: skip
  """A point for each number of workers.

  Args:
    name: of the algorithm, see `patterns.PATTERNS`.
    batch: examples of all workers per step; with `weak`, of each.
    schedule: the algorithm's; a period only where the algorithm has one.
    jitter: standard deviation of a step's compute time over its mean, lognormal and independent.

  Raises:
    ValueError: one line, for values that can't be, such as fewer examples than workers.
  """
  schedule = schedule or Schedule()
  schedule = schedule._replace(overlap=schedule.overlap and cluster.overlap)
  _check(name, cluster, workers, batch, weak, schedule, jitter)
  alone = batch / _step(name, job, cluster, 1, batch, schedule, 0.0)[0]  # examples per second of one worker
  points = []
  for count in workers:
    examples = batch if weak else math.ceil(batch / count)
    seconds, waiting = _step(name, job, cluster, count, examples, schedule, jitter)
    perfect = {  # of LOSSES
      "latency": (_links(cluster, latency=0.0), schedule, jitter),
      "bandwidth": (_links(cluster, bandwidth=math.inf), schedule, jitter),
      "small batches": (_at_pace(job, cluster, examples, batch), schedule, jitter),
      "stragglers": (cluster, schedule, 0.0),
      "taking turns": (cluster, schedule._replace(round_robin=False), jitter),
    }
    losses = {
      key: max(0.0, seconds - _step(name, job, changed, count, examples, when, spread)[0])
      for key, (changed, when, spread) in perfect.items()
      if (changed, when, spread) != (cluster, schedule, jitter)
    }
    rate = (batch * count if weak else batch) / seconds
    points.append(Point(count, examples, seconds, rate, rate / alone, rate / alone / count, waiting, losses))
  return points


def stops(points: Sequence[Point], least: float = 0.5) -> Point | None:
  """The first point that has less than `least` of what its added workers could bring; None: it scales to the end."""
  for before, point in pairwise(points):
    if point.speedup - before.speedup < least * (point.workers / before.workers - 1) * before.speedup:
      return point
  return None


def step_pass(job: Work, cluster: Cluster, examples: float) -> Pass:
  """A step by layers: its seconds in proportion to theirs, a third for each of a layer's three passes."""
  device, efficiency = cluster.device, cluster.efficiency
  seconds = step_seconds(job.parts, examples, device, efficiency)
  each = [part_seconds(part, examples, device, efficiency) for part in job.parts]
  thirds = [seconds * layer / sum(each) / 3 for layer in each]
  return Pass(thirds, thirds, thirds, job.nbytes)


def run(
  name: str, job: Work, cluster: Cluster, workers: int, examples: float, schedule: Schedule, jitter: float = 0.0
) -> timeline.Timeline:
  """The timeline of an algorithm without a server: its gradients layer by layer, or all parameters in one message."""
  pattern, step = patterns.pattern(name), step_pass(job, cluster, examples)
  if not pattern.step:  # launched when the last step of a round is over
    step = Pass([step.seconds / 3], [step.seconds * 2 / 3], [0.0], [sum(job.nbytes)])

  @cache
  def cost(nbytes: float) -> float:
    found = patterns.seconds(name, nbytes, workers, cluster.network)
    return found.step + found.exchange

  settings: Any = {"period": schedule.period, "delay": schedule.delay, "overlap": schedule.overlap}
  settings |= {"bucket": schedule.bucket, "order": schedule.order}
  if workers == 1 or not (pattern.step or pattern.launch):  # nobody to talk to, or nothing to say
    step = step._replace(nbytes=[0.0] * len(step.nbytes))
  if workers == 1 or not jitter:
    return timeline.simulate(step, cost, rounds=4, **settings)
  rounds = max(30, min(150, 20_000 // workers))
  paces = _paces(rounds * schedule.period, workers, jitter)
  return timeline.simulate(step, cost, paces=np.tile(paces, (2, 1)), **settings)  # the second time is measured


def _step(
  name: str, job: Work, cluster: Cluster, workers: int, examples: float, schedule: Schedule, jitter: float
) -> tuple[float, float]:
  """(seconds per step, share of waiting for communication)."""
  pattern = patterns.pattern(name)
  if workers > 1 and (pattern.up or pattern.down):
    return _visits(name, job, cluster, workers, examples, schedule, jitter)
  shown = run(name, job, cluster, workers, examples, schedule, jitter)
  return shown.seconds / schedule.period, shown.exposed / shown.seconds


def _visits(
  name: str, job: Work, cluster: Cluster, workers: int, examples: float, schedule: Schedule, jitter: float
) -> tuple[float, float]:
  """As `_step`, of workers that visit a server or each other one at a time."""
  pattern, period = patterns.pattern(name), schedule.period
  turn = period * step_pass(job, cluster, examples).seconds
  up, down, link = pattern.up * sum(job.nbytes), pattern.down * sum(job.nbytes), server_link(cluster, workers)
  share = schedule.delay / period if schedule.overlap else 0.0
  visit = server.visit_seconds(up, down, link, schedule.servers)
  if schedule.round_robin:
    whole = turn + max(0.0, visit - share * turn)
    return workers * whole / period, 1 - turn / whole
  shared = server.node_seconds(up, down, workers, cluster.network, pattern.peers)
  if pattern.peers:  # two by two
    visit = patterns.seconds(name, sum(job.nbytes), workers, cluster.network).exchange
    whole = max(turn + schedule.probability * max(0.0, visit - share * turn), schedule.probability * shared)
    return whole / period, 1 - turn / whole
  paces = _paces(20 * period, workers, jitter).reshape(20, period, workers).mean(axis=1)
  line = sum(job.nbytes) / schedule.servers / link.bandwidth  # of a server, each way; a visit takes longer
  queue = server_queue.simulate(
    workers=workers, servers=schedule.servers, nbytes=sum(job.nbytes), bandwidth=link.bandwidth,
    compute_seconds=turn * paces, latency=max(0.0, visit / 2 - line), full_duplex=link.duplex == 1, overlap=share,
    rounds=40,
  )  # fmt: skip
  whole = max(queue.round_seconds, shared)
  return whole / period, 1 - (queue.round_seconds - queue.wait_seconds) / whole


def _paces(steps: int, workers: int, jitter: float) -> np.ndarray:
  """Lognormal with that deviation, scaled to mean 1 of each worker, the same at each call: [steps, workers]."""
  drawn = np.random.default_rng(0).lognormal(0.0, math.sqrt(math.log1p(jitter * jitter)), (steps, workers))
  return drawn / drawn.mean(axis=0)


def _at_pace(job: Work, cluster: Cluster, examples: int, batch: int) -> Cluster:
  """The cluster with a device on which that many examples take their share of the seconds of a step on the batch."""
  device = cluster.device
  whole, own = (step_seconds(job.parts, x, device, cluster.efficiency) for x in (batch, examples))
  pace = own * batch / (whole * examples)
  device = device._replace(
    peak=device.peak * pace, memory_bandwidth=device.memory_bandwidth * pace, start=device.start / pace
  )
  return cluster._replace(device=device) if pace != 1 else cluster


def _links(cluster: Cluster, **change: float) -> Cluster:
  """The cluster with that in all its links."""
  network = cluster.network
  inside = network.inside and network.inside._replace(**change)
  return cluster._replace(
    network=network._replace(between=network.between._replace(**change), inside=inside),
    host=cluster.host and cluster.host._replace(**change),
  )


def _check(
  name: str, cluster: Cluster, workers: Sequence[int], batch: int, weak: bool, schedule: Schedule, jitter: float
) -> None:
  most, limit = max(workers, default=0), cluster.workers
  if min(workers, default=0) < 1:
    raise ValueError("a curve needs numbers of workers, each at least 1")
  if limit and most > limit:
    raise ValueError(f"{most} workers: this cluster has {limit}")
  if batch < 1 or (not weak and batch < most):
    raise ValueError(f"a batch of {batch} has less than one example for each of {most} workers; give at least {most}")
  if not (math.isfinite(jitter * jitter) and jitter >= 0):
    raise ValueError(f"a jitter of {jitter:g}: invalid: must be at least 0, with a finite square")
  if not schedule.bucket >= 0:
    raise ValueError(f"a bucket of {schedule.bucket:g} bytes can't be; give 0 or more")
  if schedule.period > 1 and not patterns.pattern(name).periodic:
    raise ValueError(f"{name} has no period: it exchanges at every step, or never")
  if schedule.delay and patterns.pattern(name).step:
    raise ValueError(f"{name} waits for its gradients at every step: it has no delay")
  check_link("the network", cluster.network.between)
