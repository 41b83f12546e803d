"""Scaling curves: seconds of a step, speed-up and efficiency over the number of workers, and what they are lost to.

Strong scaling keeps the global batch, weak scaling that of each worker. A loss is the difference to the same run with
one thing perfect: no latency, no end of bandwidth, the compute efficiency of one worker's batch, no jitter, no turns.
"""

import math
from collections.abc import Callable, Sequence
from functools import cache
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from ddl.perf.comm import patterns, server, server_queue
from ddl.perf.comm.patterns import Pattern, Visits
from ddl.perf.hardware import device as compute
from ddl.perf.hardware.cluster import Cluster, main_link, server_link
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


class Transport(NamedTuple):
  """How messages travel."""

  servers: int = 1
  overlap: bool = True  # gradients leave as they appear, and steps run beside exchanges
  bucket: float = 25e6  # bytes of gradients that leave together; 0: each layer alone. 25 MB as PyTorch's DDP
  order: str = "fifo"  # of messages, see timeline.ORDERS


Recorded = Callable[[int], Pattern]  # number of workers -> what the algorithm sends


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
  recorded: Recorded, job: Work, cluster: Cluster, workers: Sequence[int], *, batch: int, weak: bool = False,
  transport: Transport | None = None, jitter: float = 0.0,
) -> list[Point]:  # fmt: skip
  """A point for each number of workers.

  Args:
    recorded: the algorithm's patterns with the job's bytes.
    batch: examples of all workers per step; with `weak`, of each.
    jitter: standard deviation of a step's compute time over its mean, lognormal and independent.

  Raises:
    ValueError: one line, for invalid values, such as fewer examples than workers.
  """
  how = transport or Transport()
  how = how._replace(overlap=how.overlap and cluster.overlap)
  _check(cluster, workers, batch, weak, how, jitter)
  alone = batch / step_pass(job, cluster, batch).seconds  # examples per second of one worker
  points = []
  for count in workers:
    examples = batch if weak else math.ceil(batch / count)
    pattern = recorded(count) if count > 1 else Pattern()
    seconds, waiting = _step(pattern, job, cluster, count, examples, how, jitter)
    visits = pattern.visits and pattern.visits._replace(round_robin=False)
    perfect = {  # of LOSSES
      "latency": (_links(cluster, latency=0.0), pattern, jitter),
      "bandwidth": (_links(cluster, bandwidth=math.inf), pattern, jitter),
      "small batches": (_at_pace(job, cluster, examples, batch), pattern, jitter),
      "stragglers": (cluster, pattern, 0.0),
      "taking turns": (cluster, pattern._replace(visits=visits), jitter),
    }
    losses = {
      key: max(0.0, seconds - _step(sent, job, changed, count, examples, how, spread)[0])
      for key, (changed, sent, spread) in perfect.items()
      if (changed, sent, spread) != (cluster, pattern, jitter)
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
  pattern: Pattern, job: Work, cluster: Cluster, workers: int, examples: float, how: Transport, jitter: float = 0.0
) -> timeline.Timeline:
  """The timeline of a collective algorithm: each layer's share of what a step sends, exchanges in one message."""
  step, total = step_pass(job, cluster, examples), sum(job.nbytes)
  if not pattern.local:
    step = Pass([step.seconds / 3], [step.seconds * 2 / 3], [0.0], [0.0])

  @cache
  def cost(nbytes: float) -> float:
    share = [op._replace(nbytes=op.nbytes * nbytes / total) for op in pattern.local]
    return patterns.seconds(share, workers, cluster.network)

  exchanges = [
    timeline.Exchange(patterns.seconds(each.ops, workers, cluster.network), each.steady, each.delay, each.offset)
    for each in pattern.exchanges
    if each.ops
  ]
  settings: Any = {"bucket": how.bucket, "order": how.order, "overlap": how.overlap}
  if not jitter:
    return timeline.simulate(step, cost, exchanges, **settings)
  rounds = max(30, min(150, 20_000 // workers), timeline.warm_up(exchanges))
  paces = _paces(rounds * timeline.round_steps(exchanges), workers, jitter)
  return timeline.simulate(step, cost, exchanges, paces=np.tile(paces, (2, 1)), **settings)  # the second is measured


def _step(
  pattern: Pattern, job: Work, cluster: Cluster, workers: int, examples: float, how: Transport, jitter: float
) -> tuple[float, float]:
  """(seconds per step, share of waiting for communication)."""
  if workers == 1:  # nobody to talk to
    return step_pass(job, cluster, examples).seconds, 0.0
  if pattern.visits:
    return _visits(pattern.visits, job, cluster, workers, examples, how, jitter)
  shown = run(pattern, job, cluster, workers, examples, how, jitter)
  return shown.seconds / shown.steps, shown.exposed / shown.seconds


def _visits(
  visits: Visits, job: Work, cluster: Cluster, workers: int, examples: float, how: Transport, jitter: float
) -> tuple[float, float]:
  """As `_step`, of workers that visit a server or each other one at a time."""
  up, down, period = visits.up, visits.down, visits.period
  turn = period * step_pass(job, cluster, examples).seconds
  link = main_link(cluster, workers) if visits.peers else server_link(cluster, workers)
  share = visits.delay / period if how.overlap else 0.0
  visit = server.visit_seconds(up, down, link, 1 if visits.peers else how.servers)
  if visits.round_robin:
    whole = turn + max(0.0, visit - share * turn)
    return workers * whole / period, 1 - turn / whole
  shared = server.node_seconds(up, down, workers, cluster.network, visits.peers)
  if visits.peers:  # two by two
    whole = max(turn + visits.probability * max(0.0, visit - share * turn), visits.probability * shared)
    return whole / period, 1 - turn / whole
  paces = _paces(20 * period, workers, jitter).reshape(20, period, workers).mean(axis=1)
  nbytes = max(up, down) if link.duplex == 1 else (up + down) / 2  # each way, that keep a server's lines as busy
  line = nbytes / how.servers / link.bandwidth  # a visit takes longer
  queue = server_queue.simulate(
    workers=workers, servers=how.servers, nbytes=nbytes, bandwidth=link.bandwidth,
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
  cluster: Cluster, workers: Sequence[int], batch: int, weak: bool, how: Transport, jitter: float
) -> None:  # fmt: skip
  most, limit = max(workers, default=0), cluster.workers
  if min(workers, default=0) < 1:
    raise ValueError("a curve needs numbers of workers, each at least 1")
  if limit and most > limit:
    raise ValueError(f"{most} workers: this cluster has {limit}")
  if batch < 1 or (not weak and batch < most):
    raise ValueError(f"a batch of {batch} has less than one example for each of {most} workers; give at least {most}")
  if not (math.isfinite(jitter * jitter) and jitter >= 0):
    raise ValueError(f"a jitter of {jitter:g}: invalid: must be at least 0, with a finite square")
  if not how.bucket >= 0:
    raise ValueError(f"a bucket of {how.bucket:g} bytes: invalid: must be at least 0")
  check_link("the network", cluster.network.between)
