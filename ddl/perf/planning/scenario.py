"""One number of workers in one run, and the seconds of its step: by the event model, or of a server's queue."""

import math
from collections.abc import Sequence
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from ddl.perf import patterns, server
from ddl.perf.hardware.cluster import Cluster
from ddl.perf.hardware.device import Part, Step, part_seconds, step_parts, step_seconds
from ddl.perf.patterns import Pattern
from ddl.perf.step import timeline
from ddl.perf.step.layers import Table
from ddl.perf.step.timeline import Pass, TimelineExchange
from ddl.perf.tables.totals import params_bytes, parts

MOST = 200  # layers of a timeline
MOST_STEPS = 5_000  # of a round that is simulated step by step
GROUPED = 1000  # steps of a longer round, each of which stands for several
QUEUED = 20  # periods of a delay
MOST_EVENTS = 2 * 10**7  # of layers of all workers' steps in a simulation with jitter: 1 GB
SIMULATED = 128  # workers in a server's queue; of more, each of so many stands for several


class Work(NamedTuple):
  """Computation and gradients of a step, by layers in the order of the forward pass."""

  parts: tuple[Part, ...]  # of a step's roofline
  nbytes: tuple[float, ...]  # of the parameters, in float32; one number for all if the parts hold none
  together: int = 1  # parts in a row that are one layer of the timeline, and share a number of `nbytes`
  micro: int = 1  # microbatches of a step


class Transport(NamedTuple):
  """Run time options of the messages."""

  servers: int = 1
  overlap: bool = True  # gradients leave as they appear, and steps run beside exchanges
  bucket: float = 25e6  # bytes of gradients that leave together; 0: each layer alone. 25 MB as PyTorch's DDP
  order: str = "fifo"  # of messages, see event_model.ORDERS


class Scenario(NamedTuple):
  """One number of workers in one run."""

  pattern: Pattern
  work: Work
  cluster: Cluster
  workers: int
  examples: float  # per worker and step
  transport: Transport
  jitter: float = 0.0  # standard deviation of a step's compute time over its mean, lognormal and independent


def work(table: Table) -> Work:
  """Work of a layer table: 6 macs FLOP per example and 4 params bytes for each layer, and three passes over both."""
  return work_of(parts(table), params_bytes(table))


def work_of(step: Step, nbytes: float) -> Work:
  """Work of a step's parts and the bytes of all parameters, in proportion to the values that the parts hold.

  Of more than MOST parts several in a row make a layer, so that a timeline of a deep network takes no longer.
  """
  found = tuple(step_parts(step))
  whole, together = sum(part.held for part in found), math.ceil(len(found) / MOST)
  held = _sums([part.held for part in found], together)
  return Work(found, tuple(nbytes * each / whole for each in held) if whole else (nbytes,), together)


def _sums(numbers: Sequence[float], together: int) -> list[float]:
  """Sums of so many in a row."""
  return [sum(numbers[i : i + together]) for i in range(0, len(numbers), together)]


def seconds_and_waiting(run: Scenario) -> tuple[float, float]:
  """Return (seconds per step, share of them spent waiting for communication)."""
  if run.workers == 1:
    return step_pass(run.work, run.cluster, run.examples).seconds, 0.0
  if run.pattern.visits:
    return _visits(run)
  run, unit = _shortened(run)
  shown = timeline_of(run)
  return shown.seconds / (shown.steps * unit), shown.exposed / shown.seconds


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


def step_pass(job: Work, cluster: Cluster, examples: float) -> Pass:
  """Return a step by layers: its seconds in proportion to theirs, a third for each of a layer's three passes.

  Of several microbatches the gradients of the last one leave, so that the others come before its backward pass.
  """
  device, efficiency, examples = cluster.device, cluster.efficiency, examples / job.micro
  seconds = step_seconds(job.parts, examples, device, efficiency)
  each = [part_seconds(part, examples, device, efficiency) for part in job.parts]
  thirds = [seconds * layer / sum(each) / 3 for layer in _sums(each, job.together)]
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
  """(seconds per step, share of waiting) of workers that visit a server or each other."""
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
    raise ValueError(
      f"with jitter a round must have at most {MOST_STEPS:,} steps, and at most {MOST_EVENTS // events:,} of all "
      f"workers, got {steps:,} of {workers:,} workers each. Take a shorter period, fewer workers or no jitter."
    )


def _paces(steps: int, workers: int, jitter: float) -> np.ndarray:
  """Lognormal with that deviation, scaled to mean 1 of each worker, the same at each call: [steps, workers]."""
  drawn = np.random.default_rng(0).lognormal(0.0, math.sqrt(math.log1p(jitter * jitter)), (steps, workers))
  return drawn / drawn.mean(axis=0)
