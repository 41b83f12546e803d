"""Scaling curves: seconds of a step, speed-up and efficiency over the number of workers, and the losses of each.

Strong scaling keeps the global batch, weak scaling that of each worker. A loss is the difference to the same run with
one thing ideal: no latency, infinite bandwidth, the compute efficiency of one worker's batch, no jitter, no queue.
"""

import math
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import NamedTuple

from ddl.perf import units
from ddl.perf.hardware.cluster import Cluster, check_link
from ddl.perf.hardware.device import step_seconds
from ddl.perf.patterns import Pattern
from ddl.perf.planning.scenario import Scenario, Transport, Work, seconds_and_waiting, step_pass

Recorded = Callable[[int], Pattern]  # number of workers -> the algorithm's messages


class Point(NamedTuple):
  """Result of one number of workers; seconds per step, means."""

  workers: int
  examples: int  # per worker and step, of the fullest worker
  seconds: float
  examples_per_second: float  # of all workers
  speedup: float  # over one worker
  efficiency: float  # speed-up per worker
  waiting: float  # share of the time spent waiting for communication
  losses: dict[str, float]  # seconds of the step lost to each of LOSSES, by itself

  @property
  def limit(self) -> str:
    """The largest loss; "nothing" where it is less than a hundredth of the step."""
    most = max(self.losses, key=lambda name: self.losses[name])
    return most if self.losses[most] >= 0.01 * self.seconds else "nothing"


MOST_JITTER = 10.0  # above, a mean over a simulation's steps is that of its few longest ones
LOSSES = ("latency", "bandwidth", "small batches", "stragglers", "serialized access")


def curve(
  recorded: Recorded, job: Work, cluster: Cluster, workers: Sequence[int], *, batch: int, weak: bool = False,
  transport: Transport | None = None, jitter: float = 0.0,
) -> list[Point]:  # fmt: skip
  """Return a point for each number of workers.

  Args:
    recorded: the algorithm's patterns with the job's bytes.
    batch: examples of all workers per step; with `weak`, of each.
    jitter: standard deviation of a step's compute time over its mean, lognormal and independent.

  Raises:
    ValueError: one line, for invalid values, such as fewer examples than workers.
  """
  transport = transport or Transport()
  transport = transport._replace(overlap=transport.overlap and cluster.overlap)
  _check(cluster, workers, batch, weak, transport, jitter)
  alone = batch / step_pass(job, cluster, batch).seconds  # examples per second of one worker
  points = []
  for count in workers:
    examples = batch if weak else math.ceil(batch / count)
    pattern = recorded(count) if count > 1 else Pattern()
    run = Scenario(pattern, job, cluster, count, examples, transport, jitter)
    seconds, waiting = seconds_and_waiting(run)
    visits = pattern.visits and pattern.visits._replace(round_robin=False)
    ideal = {  # of LOSSES
      "latency": run._replace(cluster=_links(cluster, latency=0.0)),
      "bandwidth": run._replace(cluster=_links(cluster, bandwidth=math.inf)),
      "small batches": run._replace(cluster=_at_pace(job, cluster, examples, batch)),
      "stragglers": run._replace(jitter=0.0),
      "serialized access": run._replace(pattern=pattern._replace(visits=visits)),
    }
    losses = {key: max(0.0, seconds - seconds_and_waiting(other)[0]) for key, other in ideal.items() if other != run}
    rate = (batch * count if weak else batch) / seconds
    points.append(Point(count, examples, seconds, rate, rate / alone, rate / alone / count, waiting, losses))
  return points


def stops(points: Sequence[Point], least: float = 0.5) -> Point | None:
  """Return the first point with less than `least` of the ideal gain of its added workers, or None."""
  for before, point in pairwise(points):
    if point.speedup - before.speedup < least * (point.workers / before.workers - 1) * before.speedup:
      return point
  return None


def _at_pace(job: Work, cluster: Cluster, examples: int, batch: int) -> Cluster:
  """The cluster with a device on which that many examples take their share of the seconds of a step on the batch."""
  device = cluster.device
  whole, own = (step_seconds(job.parts, x / job.micro, device, cluster.efficiency) for x in (batch, examples))
  pace = own * batch / (whole * examples)
  faster = {"peak": device.peak * pace, "memory_bandwidth": device.memory_bandwidth * pace}
  return cluster._replace(device=device._replace(start=device.start / pace, **faster)) if pace != 1 else cluster


def _links(cluster: Cluster, **change: float) -> Cluster:
  """The cluster with that in all its links, and in what its library adds to them."""
  network = cluster.network
  inside = network.inside and network.inside._replace(**change)
  network = network._replace(between=network.between._replace(**change), inside=inside)
  if "bandwidth" in change:
    network = network._replace(card=network.card and change["bandwidth"])
  if "latency" in change:
    network = network._replace(library=network.library and network.library.instant())
  return cluster._replace(network=network, host=cluster.host and cluster.host._replace(**change))


def _check(
  cluster: Cluster, workers: Sequence[int], batch: int, weak: bool, transport: Transport, jitter: float
) -> None:
  most, limit = max(workers, default=0), cluster.workers
  units.count("number of workers", min(workers, default=0))
  units.count("batch", batch)
  if limit and most > limit:
    raise ValueError(f"{most} workers: this cluster has {limit}")
  if not weak and batch < most:
    raise ValueError(f"a batch of {batch} has less than one example for each of {most} workers; give at least {most}")
  if not 0 <= jitter <= MOST_JITTER:
    raise ValueError(f"jitter is {jitter:g} times the mean of a step; invalid: must be from 0 to {MOST_JITTER:g}")
  if not transport.bucket >= 0:
    raise ValueError(f"bucket is {transport.bucket:g} bytes; invalid: must be at least 0")
  check_link("the network", cluster.network.between)
