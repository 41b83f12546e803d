"""Seconds of a step, speed-up and efficiency over the number of workers, and what limits them.

Strong scaling keeps the global batch, weak scaling that of each worker. A loss is the difference to the same run with
one thing ideal: no latency, infinite bandwidth, the compute efficiency of one worker's batch, no jitter, no queue. The
seconds of a step are those of the event model of layers, or of a server's queue.
"""

import math
from collections.abc import Callable, Sequence
from functools import cache
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from ddl.errors import OptionError
from ddl.perf import patterns, server, timeline, units
from ddl.perf.cluster import Cluster, check_link
from ddl.perf.device import LayerWork, Step, part_seconds, step_parts, step_seconds
from ddl.perf.layers import Table, params_bytes, parts
from ddl.perf.patterns import Pattern
from ddl.perf.timeline import Pass, TimelineExchange

MOST_LAYERS = 200  # of a timeline
MOST_STEPS = 5_000  # of a round that is simulated step by step
GROUPED = 1000  # steps of a longer round, each of which stands for several
QUEUED = 20  # periods of a delay
MOST_EVENTS = 2 * 10**7  # of layers of all workers' steps in a simulation with jitter: 1 GB
SIMULATED = 128  # workers in a server's queue; of more, each of so many stands for several
MOST_JITTER = 10.0  # above, a mean over a simulation's steps is that of its few longest ones
LOSSES = ("latency", "bandwidth", "small batches", "stragglers", "serialized access")


class StepWork(NamedTuple):
  """Computation and gradients of a step, by layers in the order of the forward pass."""

  parts: tuple[LayerWork, ...]  # of a step's roofline
  nbytes: tuple[float, ...]  # of the parameters, in float32; one number for all if the parts hold none
  together: int = 1  # parts in a row that are one layer of the timeline, and share a number of `nbytes`
  micro: int = 1  # microbatches of a step


class Transport(NamedTuple):
  """Run time options of the messages."""

  servers: int = 1
  overlap: bool = True  # gradients leave as they appear, and steps run beside exchanges
  bucket: float = 25e6  # bytes of gradients that leave together; 0: each layer alone. 25 MB as PyTorch's DDP
  order: str = "fifo"  # of messages, see timeline.ORDERS


class Scenario(NamedTuple):
  """One number of workers in one run."""

  pattern: Pattern
  work: StepWork
  cluster: Cluster
  workers: int
  examples: float  # per worker and step
  transport: Transport
  jitter: float = 0.0  # standard deviation of a step's compute time over its mean, lognormal and independent


def work(table: Table) -> StepWork:
  """Work of a layer table: 6 macs FLOP per example and 4 params bytes for each layer, and three passes over both."""
  return work_of(parts(table), params_bytes(table))


def work_of(step: Step, nbytes: float) -> StepWork:
  """Work of a step's parts and the bytes of all parameters, in proportion to the values that the parts hold.

  Of more than MOST_LAYERS parts several in a row make a layer, so that a timeline of a deep network takes no longer.
  """
  every = tuple(step_parts(step))
  whole, together = sum(part.held for part in every), math.ceil(len(every) / MOST_LAYERS)
  held = _sums([part.held for part in every], together)
  return StepWork(every, tuple(nbytes * each / whole for each in held) if whole else (nbytes,), together)


def _sums(numbers: Sequence[float], together: int) -> list[float]:
  """Return the sums of so many numbers in a row."""
  return [sum(numbers[i : i + together]) for i in range(0, len(numbers), together)]


def seconds_and_waiting(run: Scenario) -> tuple[float, float]:
  """Return (seconds per step, share of them spent waiting for communication)."""
  if run.workers == 1:
    return step_pass(run.work, run.cluster, run.examples).seconds, 0.0
  if run.pattern.visits:
    return _visits(run)
  run, unit = _shortened(run)
  simulated = timeline_of(run)
  return simulated.seconds / (simulated.steps * unit), simulated.exposed / simulated.seconds


def _shortened(run: Scenario) -> tuple[Scenario, int]:
  """Return a run whose rounds are not too long to simulate, and the steps that each of its steps stands for.

  Periods and delays of more than MOST_STEPS are rounded to one in GROUPED of the longest. Of a delay above its period
  several messages are in flight on one link, so that a longer one hides no more: from QUEUED periods on it stays.
  """
  exchanges, longest = [], max((each.steady for each in run.pattern.exchanges), default=1)
  unit = 1 if run.jitter or run.pattern.local or longest <= MOST_STEPS else math.ceil(longest / GROUPED)
  for each in run.pattern.exchanges:
    delay = min(each.delay, QUEUED * each.steady)
    period, delay, offset = (round(steps / unit) for steps in (each.steady, delay, each.offset))
    exchanges.append(each._replace(period=max(1, period), delay=delay, offset=offset))
  work = run.work._replace(micro=run.work.micro * unit)
  pattern = run.pattern._replace(exchanges=tuple(exchanges))
  return run._replace(pattern=pattern, work=work, examples=run.examples * unit), unit


def step_pass(job: StepWork, cluster: Cluster, examples: float) -> Pass:
  """Return a step by layers: its seconds in proportion to theirs, a third for each of a layer's three passes.

  Of several microbatches the gradients of the last one leave, so that the others come before its backward pass.
  """
  device, efficiency, examples = cluster.device, cluster.efficiency, examples / job.micro
  seconds = step_seconds(job.parts, examples, device, efficiency)
  by_part = [part_seconds(part, examples, device, efficiency) for part in job.parts]
  thirds = [seconds * layer / sum(by_part) / 3 for layer in _sums(by_part, job.together)]
  forward = [*thirds[:-1], thirds[-1] + (job.micro - 1) * seconds]
  return Pass(forward, thirds, thirds, job.nbytes)


def timeline_of(run: Scenario) -> timeline.Timeline:
  """Timeline of a collective algorithm: each layer's share of the messages of a step, exchanges in one message."""
  pattern, workers, network = run.pattern, run.workers, run.cluster.network
  step, total = step_pass(run.work, run.cluster, run.examples), sum(run.work.nbytes)
  if not pattern.local:
    step = Pass([step.seconds / 3], [step.seconds * 2 / 3], [0.0], [0.0])

  @cache
  def cost(nbytes: float) -> float:
    share = [op._replace(nbytes=op.nbytes * nbytes / total) for op in pattern.local]
    return patterns.seconds(share, workers, network)

  exchanges = [
    TimelineExchange(patterns.seconds(each.ops, workers, network), each.steady, each.delay, each.offset)
    for each in pattern.exchanges
    if each.ops
  ]
  paces = None
  if run.jitter:
    steps = timeline.round_steps(exchanges)
    rounds = max(30, min(150, 20_000 // workers), timeline.warm_up(exchanges))
    layers, least = len(step.forward), max(4, min(30, timeline.warm_up(exchanges)))
    _check_jitter(steps, workers, 2 * least * layers)
    rounds = max(2, min(rounds, 3 * MOST_STEPS // steps, MOST_EVENTS // (2 * steps * workers * layers)))
    paces = _paces(rounds * steps, workers, run.jitter)
    paces = np.tile(paces, (2, 1))  # the second is measured
  settings: Any = {key: getattr(run.transport, key) for key in ("bucket", "order", "overlap")}
  return timeline.simulate(step, cost, exchanges, paces=paces, **settings)


def _visits(run: Scenario) -> tuple[float, float]:
  """Return (seconds per step, share of waiting) of workers that visit a server or each other."""
  visits, cluster, workers, transport = run.pattern.visits, run.cluster, run.workers, run.transport
  assert visits is not None
  up, down, period = visits.up, visits.down, visits.period
  computing = period * step_pass(run.work, cluster, run.examples).seconds  # of a worker round
  link = cluster.network.worker_link(workers) if visits.peers else cluster.server_link(workers)
  share = visits.delay / period if transport.overlap else 0.0
  visit = server.visit_seconds(up, down, link, 1 if visits.peers else transport.servers)
  exposed = max(0.0, visit - share * computing)
  shared = server.node_seconds(up, down, workers, cluster.network, visits.peers)
  if visits.round_robin:
    whole = computing + exposed
    return workers * whole / period, 1 - computing / whole
  if visits.peers:  # two by two
    whole = max(computing + visits.probability * exposed, visits.probability * shared)
    return whole / period, 1 - computing / whole
  queued = min(workers, SIMULATED)
  paces = np.ones((20, queued))
  if run.jitter:
    _check_jitter(period, queued, 20)
    paces = _paces(20 * period, queued, run.jitter).reshape(20, period, queued).mean(axis=1)
  nbytes = max(up, down) if link.duplex == 1 else (up + down) / 2  # each way, that keep a server's lines as busy
  bandwidth = link.bandwidth * queued / workers  # of more workers a message is several, which keep the line as busy
  line = nbytes / transport.servers / bandwidth  # a visit takes longer
  queue = server.simulate(
    workers=queued, servers=transport.servers, nbytes=nbytes, bandwidth=bandwidth,
    compute_seconds=computing * paces, latency=max(0.0, visit / 2 - line), full_duplex=link.duplex == 1, overlap=share,
    rounds=40,
  )  # fmt: skip
  whole = max(queue.round_seconds, shared)
  return whole / period, 1 - (queue.round_seconds - queue.wait_seconds) / whole


def _check_jitter(steps: int, workers: int, events: int) -> None:
  """Refuse rounds with too many steps to simulate one by one. events: of one step in all rounds."""
  if steps > MOST_STEPS or events * steps * workers > MOST_EVENTS:
    condition = f"at most {MOST_STEPS:,}, and {MOST_EVENTS // events:,} of all workers"
    advice = "Take a shorter period, fewer workers or no jitter."
    raise OptionError("steps of a round with jitter", condition, f"{steps:,} of {workers:,} workers each", advice)


def _paces(steps: int, workers: int, jitter: float) -> np.ndarray:
  """Lognormal with that deviation, scaled to mean 1 of each worker, the same at each call: [steps, workers]."""
  drawn = np.random.default_rng(0).lognormal(0.0, math.sqrt(math.log1p(jitter * jitter)), (steps, workers))
  return drawn / drawn.mean(axis=0)


Recorded = Callable[[int], Pattern]  # number of workers -> the algorithm's messages


class ScalingPoint(NamedTuple):
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


def curve(
  recorded: Recorded, job: StepWork, cluster: Cluster, workers: Sequence[int], *, batch: int, weak: bool = False,
  transport: Transport | None = None, jitter: float = 0.0,
) -> list[ScalingPoint]:  # fmt: skip
  """Return a point for each number of workers.

  Args:
    recorded: the algorithm's patterns with the job's bytes.
    batch: examples of all workers per step; with `weak`, of each.
    jitter: standard deviation of a step's compute time over its mean, lognormal and independent.
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
      "latency": run._replace(cluster=_with_links(cluster, latency=0.0)),
      "bandwidth": run._replace(cluster=_with_links(cluster, bandwidth=math.inf)),
      "small batches": run._replace(cluster=_at_pace(job, cluster, examples, batch)),
      "stragglers": run._replace(jitter=0.0),
      "serialized access": run._replace(pattern=pattern._replace(visits=visits)),
    }
    losses = {key: max(0.0, seconds - seconds_and_waiting(other)[0]) for key, other in ideal.items() if other != run}
    rate = (batch * count if weak else batch) / seconds
    points.append(ScalingPoint(count, examples, seconds, rate, rate / alone, rate / alone / count, waiting, losses))
  return points


def stops(points: Sequence[ScalingPoint], least: float = 0.5) -> ScalingPoint | None:
  """Return the first point with less than `least` of the ideal gain of its added workers, or None."""
  for before, point in pairwise(points):
    if point.speedup - before.speedup < least * (point.workers / before.workers - 1) * before.speedup:
      return point
  return None


def _at_pace(job: StepWork, cluster: Cluster, examples: int, batch: int) -> Cluster:
  """The cluster with a device on which that many examples take their share of the seconds of a step on the batch."""
  device = cluster.device
  whole, part = (step_seconds(job.parts, x / job.micro, device, cluster.efficiency) for x in (batch, examples))
  pace = part * batch / (whole * examples)
  faster = {"peak": device.peak * pace, "memory_bandwidth": device.memory_bandwidth * pace}
  return cluster._replace(device=device._replace(start=device.start / pace, **faster)) if pace != 1 else cluster


def _with_links(cluster: Cluster, **change: float) -> Cluster:
  """The cluster with that change in all its links, and in what its library adds to them."""
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
    raise OptionError("workers", f"at most {limit} on this cluster", most)
  if not weak and batch < most:
    raise OptionError("batch", f"at least {most}, an example for each worker", batch)
  if not 0 <= jitter <= MOST_JITTER:
    raise OptionError("jitter", f"from 0 to {MOST_JITTER:g} times the mean of a step", f"{jitter:g}")
  if not transport.bucket >= 0:
    raise OptionError("bucket", "at least 0 bytes", f"{transport.bucket:g}")
  check_link("the network", cluster.network.between)
