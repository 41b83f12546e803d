"""Predict step time, speed-up and efficiency for several numbers of workers, and what limits them.

Strong scaling fixes the global batch, weak scaling the batch per worker. A loss is the time that a step would save if
one component were ideal: no latency, infinite bandwidth, the compute efficiency of the whole batch, no jitter, or no
serialization. A step's gradients are simulated layer by layer (`timeline`), its exchanges as in virtual time
(`ddl.events.lockstep`), and visits to a server as a queue (`server`).

A prediction assumes that the backward pass hides the all-reduce of gradients and that all devices are always busy.
Published runs of synchronous SGD were slower: on average, they reached the rate that is predicted without overlap. The
`expected_rates` follow from the rates that they reached.
"""

import math
from collections.abc import Callable, Sequence
from functools import cache
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from ddl.errors import OptionError
from ddl.events import lockstep
from ddl.events.lockstep import ExchangeSeconds
from ddl.events.times import Times
from ddl.perf import patterns, server, timeline
from ddl.perf.cluster import Cluster
from ddl.perf.device import LayerWork, Step, part_seconds, step_parts, step_seconds
from ddl.perf.layers import Table, params_bytes, parts
from ddl.perf.patterns import ExchangePattern, Op, Pattern
from ddl.perf.timeline import Pass, Timeline
from ddl.perf.units import percent, rough_rate

MOST_LAYERS = 200  # layers of a timeline; in deeper networks, consecutive layers are grouped
MOST_STEPS = 5_000  # longest round in steps that is simulated step by step
MOST_ROUND = 2000  # largest common multiple of the periods that is simulated as a round, in steps
GROUPED = 1000  # simulated steps of a longer round, each of which represents several steps
QUEUED = 20  # largest simulated delay, in periods
MOST_EVENTS = 2 * 10**7  # steps of all workers in a simulation with jitter
SIMULATED = 128  # workers simulated in a server's queue; if there are more workers, each represents several
MOST_JITTER = 10.0  # with more jitter a few steps dominate the mean of a simulation
LOSSES = ("latency", "bandwidth", "small batches", "stragglers", "serialized access")


class StepWork(NamedTuple):
  """The computation and gradient bytes of a step, by layers in the order of the forward pass."""

  parts: tuple[LayerWork, ...]  # the parts of the step in the roofline model
  nbytes: tuple[float, ...]  # float32 bytes of the parameters per layer; only the total if every `held` is 0
  parts_per_layer: int = 1  # consecutive parts that form one layer of the timeline, with one entry of `nbytes`
  micro: int = 1  # microbatches per step


class Transport(NamedTuple):
  """Runtime options that affect messages."""

  servers: int = 1
  overlap: bool = True  # whether exchanges and gradients overlap computation
  bucket: float = 25e6  # bytes of gradients per message, as in PyTorch's DDP; 0: one message per layer
  outer: bool = False  # whether exchanges without a delay overlap the last backward pass before them


class Scenario(NamedTuple):
  """A run on a certain number of workers."""

  pattern: Pattern
  work: StepWork
  cluster: Cluster
  workers: int
  examples: float  # per worker and step
  transport: Transport
  jitter: float = 0.0  # std / mean of a step's compute time, which is lognormal and independent


def work(table: Table) -> StepWork:
  """Return the work of a layer table: each layer's FLOP and memory traffic in training, and its float32 parameters."""
  return work_of(parts(table), params_bytes(table))


def work_of(step: Step, nbytes: float) -> StepWork:
  """Return the work of a step, splitting `nbytes` of parameters over the layers in proportion to `LayerWork.held`.

  If there are more than MOST_LAYERS parts, consecutive parts are grouped, which bounds the cost of a timeline.
  """
  every = tuple(step_parts(step))
  whole, size = sum(part.held for part in every), math.ceil(len(every) / MOST_LAYERS)
  sums = _sums([part.held for part in every], size)
  return StepWork(every, tuple(nbytes * x / whole for x in sums) if whole else (nbytes,), size)


def _sums(numbers: Sequence[float], size: int) -> list[float]:
  """Return the sums of groups of `size` consecutive numbers."""
  return [sum(numbers[i : i + size]) for i in range(0, len(numbers), size)]


def seconds_and_waiting(run: Scenario) -> tuple[float, float]:
  """Return (seconds per step, share of this time spent waiting for messages).

  For collectives, the share is what links with zero latency and infinite bandwidth would save.
  """
  if run.pattern.visits and run.workers > 1:
    return _visits(run)
  seconds, instant = seconds_of(run), _with_links(_with_links(run.cluster, latency=0.0), bandwidth=math.inf)
  return seconds, max(0.0, 1 - seconds_of(run._replace(cluster=instant)) / seconds)


def seconds_of(run: Scenario) -> float:
  """Return the seconds per step."""
  if run.workers == 1:
    return step_pass(run.work, run.cluster, run.examples).seconds
  if run.pattern.visits:
    return _visits(run)[0]
  run, unit = _shortened(run)
  return _lockstep(run) / unit


def _shortened(run: Scenario) -> tuple[Scenario, int]:
  """Shorten rounds that are too long to simulate; also return how many steps each simulated step represents.

  Exchanges that end are dropped, as the steady state is simulated.

  If the longest period exceeds MOST_STEPS, steps are grouped so that it becomes about GROUPED. If a delay exceeds its
  period, several messages share the link, and a longer delay does not hide more of them: delays are limited to QUEUED
  periods.
  """
  lasting = [exchange for exchange in run.pattern.exchanges if not exchange.ends]
  exchanges, longest = [], max((exchange.steady for exchange in lasting), default=1)
  unit = 1 if run.jitter or run.pattern.local or longest <= MOST_STEPS else math.ceil(longest / GROUPED)
  for exchange in lasting:
    delay = min(exchange.delay, QUEUED * exchange.steady)
    period, delay, offset = (round(steps / unit) for steps in (exchange.steady, delay, exchange.offset))
    exchanges.append(exchange._replace(period=max(1, period), delay=delay, offset=offset))
  work = run.work._replace(micro=run.work.micro * unit)
  pattern = run.pattern._replace(exchanges=tuple(exchanges))
  return run._replace(pattern=pattern, work=work, examples=run.examples * unit), unit


def step_pass(job: StepWork, cluster: Cluster, examples: float) -> Pass:
  """Distribute the seconds of a step over the layers: a third each for forward, weight gradient and input gradient.

  With several microbatches, only the last one sends gradients; the others run completely before its backward pass.
  """
  device, efficiency, examples = cluster.device, cluster.efficiency, examples / job.micro
  seconds = step_seconds(job.parts, examples, device, efficiency)
  by_part = [part_seconds(part, examples, device, efficiency) for part in job.parts]
  thirds = [seconds * layer / sum(by_part) / 3 for layer in _sums(by_part, job.parts_per_layer)]
  forward = [*thirds[:-1], thirds[-1] + (job.micro - 1) * seconds]
  return Pass(forward, thirds, thirds, job.nbytes)


def gradients_of(run: Scenario, ops: Sequence[Op] = ()) -> Timeline:
  """Simulate a step whose collectives are sent layer by layer, without other exchanges or jitter.

  ops: the collectives, on the whole model; (): `pattern.local`.
  """
  total = sum(run.work.nbytes)

  @cache
  def cost(nbytes: float) -> float:
    share = [op._replace(nbytes=op.nbytes * nbytes / total) for op in ops or run.pattern.local]
    return patterns.seconds(share, run.workers, run.cluster.network)

  step, transport = step_pass(run.work, run.cluster, run.examples), run.transport
  return timeline.simulate(step, cost, bucket=transport.bucket, overlap=transport.overlap)


def _lockstep(run: Scenario) -> float:
  """Return the seconds per step of a collective algorithm in the steady state.

  Without jitter all workers are equal, so only one is simulated.
  """
  step = step_pass(run.work, run.cluster, run.examples).seconds
  exchanges = [
    ExchangeSeconds(
      exchange.launched, exchange.delay, _exchange_seconds(run, exchange),
      patterns.hops(exchange.ops) if run.jitter else (),
    )
    for exchange in run.pattern.exchanges
    if exchange.ops
  ]  # fmt: skip
  sent = [exchange for exchange in run.pattern.exchanges if exchange.ops]
  period, warm_up = _round_steps(sent), _warm_up(sent)
  workers, rounds = (run.workers, max(30, min(150, 20_000 // run.workers), warm_up)) if run.jitter else (1, warm_up)
  if run.jitter:
    _check_jitter(period, workers, 2 * max(4, min(30, warm_up)))
    rounds = max(2, min(rounds, 3 * MOST_STEPS // period, MOST_EVENTS // (2 * period * workers)))
  half = rounds * period
  paces = step * (np.tile(_paces(half, workers, run.jitter), (2, 1)) if run.jitter else np.ones((2 * half, 1)))
  gradients = gradients_of(run) if run.pattern.local else None
  times = Times(lambda worker, first, count: paces[first : first + count, worker], workers=workers, seed=0)
  ends = lockstep.finish(
    workers=workers, steps=2 * half, round_steps=period, times=times, exchanges=exchanges,
    overlap=run.transport.overlap, local_seconds=gradients and gradients.sent,
    local_lead=gradients.hidden if gradients else 0.0,
  )  # fmt: skip
  return float(ends[-1] - ends[half - 1]) / half


def _exchange_seconds(run: Scenario, exchange: ExchangePattern) -> float:
  """Return the seconds of an exchange, without the part that `Transport.outer` hides."""
  whole = patterns.seconds(exchange.ops, run.workers, run.cluster.network)
  if exchange.delay or not run.transport.outer:
    return whole
  return min(whole, gradients_of(run, exchange.ops).exposed)  # in buckets, the exchange pays the latency several times


def _round_steps(exchanges: Sequence[ExchangePattern]) -> int:
  """Return the number of steps after which all exchanges repeat; if it exceeds MOST_ROUND, the longest period."""
  length = math.lcm(*(exchange.steady for exchange in exchanges))
  return length if length <= MOST_ROUND else max(exchange.steady for exchange in exchanges)


def _warm_up(exchanges: Sequence[ExchangePattern]) -> int:
  """Return the number of rounds until the steady state, which takes longer if several messages queue for the link."""
  several = len(exchanges) > 1 or any(x.delay > x.steady for x in exchanges)
  steps = max((x.steady + x.offset + (20 if several else 1) * x.delay for x in exchanges), default=0)
  return 1 + max(1, math.ceil(steps / _round_steps(exchanges)))


def _visits(run: Scenario) -> tuple[float, float]:
  """Return (seconds per step, share of this time spent waiting) for workers that visit servers or peers."""
  visits, cluster, workers, transport = run.pattern.visits, run.cluster, run.workers, run.transport
  assert visits is not None
  network, period, servers = cluster.network, visits.period, 1 if visits.peers else transport.servers
  step, delay = step_pass(run.work, cluster, run.examples).seconds, visits.delay if transport.overlap else 0
  link = network.worker_link(workers) if visits.peers else cluster.server_link(workers)
  if visits.peers or visits.round_robin:
    probability = visits.probability if visits.peers else 1.0
    message = probability * server.visit_seconds(visits.up, visits.down, link, servers)
    shared = probability * server.node_seconds(visits.up, visits.down, workers, network, visits.peers)
    seconds = (period - delay) * step + max(delay * step, message)
    whole = max(seconds, shared) if visits.peers else workers * seconds
    return whole / period, 1 - period * step / (whole if visits.peers else seconds)
  queued = min(workers, SIMULATED)
  visit = server.visit_parts(visits.up, visits.down, workers, link, network, servers)
  more = visit.service * (workers / queued - 1)  # each simulated worker has the load of workers / queued workers
  visit = server.VisitSeconds(max(0.0, visit.message - more / 2), visit.service + more)
  paces = np.ones((1, period, queued))
  if run.jitter:
    _check_jitter(period, queued, 20)
    paces = _paces(20 * period, queued, run.jitter).reshape(20, period, queued)
  hidden, exposed = step * paces[:, :delay].sum(axis=1), step * paces[:, delay:].sum(axis=1)
  whole = server.mean_round(hidden, exposed, visit)
  return whole / period, 1 - period * step / whole


def _check_jitter(steps: int, workers: int, events: int) -> None:
  """Raise OptionError if a round has too many steps to simulate.

  steps: steps per round. events: simulated rounds.
  """
  if steps > MOST_STEPS or events * steps * workers > MOST_EVENTS:
    condition = f"at most {MOST_STEPS:,} per worker and {MOST_EVENTS // events:,} over all workers"
    advice = "Use a shorter period, fewer workers or no jitter."
    raise OptionError("steps of a round with jitter", condition, f"{steps:,} per worker on {workers:,} workers", advice)


def _paces(steps: int, workers: int, jitter: float) -> np.ndarray:
  """Return random lognormal factors of the step time, [steps, workers], with mean 1 per worker.

  Their standard deviation is `jitter`, up to sampling error. The seed is fixed, so all calls return the same numbers.
  """
  drawn = np.random.default_rng(0).lognormal(0.0, math.sqrt(math.log1p(jitter * jitter)), (steps, workers))
  return drawn / drawn.mean(axis=0)


Recorded = Callable[[int], Pattern]  # number of workers -> the pattern of the algorithm's messages


class ScalingPoint(NamedTuple):
  """The prediction for a certain number of workers."""

  workers: int
  examples: int  # per step, of the worker with the most examples
  seconds: float  # mean per step
  examples_per_second: float  # of all workers
  speedup: float  # relative to one worker
  efficiency: float  # speed-up per worker
  waiting: float  # share of the time spent waiting for communication
  losses: dict[str, float]  # seconds per step lost to each of LOSSES separately

  @property
  def limit(self) -> str:
    """The cause that costs the most time per step (one of LOSSES), or "nothing" if it costs less than 1 % of a step."""
    most = max(self.losses, key=lambda name: self.losses[name])
    return most if self.losses[most] >= 0.01 * self.seconds else "nothing"


def curve(
  recorded: Recorded, job: StepWork, cluster: Cluster, workers: Sequence[int], *, batch: int, weak: bool = False,
  transport: Transport | None = None, jitter: float = 0.0,
) -> list[ScalingPoint]:  # fmt: skip
  """Predict the step time, speed-up and losses for each number of workers.

  Args:
    recorded: number of workers -> the pattern of the algorithm's messages, in bytes of the job.
    job: the work of a step.
    workers: the numbers of workers to predict.
    batch: examples per step, of each worker with `weak`, of all workers together otherwise.
    weak: whether the batch per worker is fixed (weak scaling) instead of the global batch (strong scaling).
    transport: runtime options of the messages.
    jitter: std / mean of a step's compute time, which is lognormal and independent.
  """
  transport = transport or Transport()
  transport = transport._replace(overlap=transport.overlap and cluster.overlap)
  most, limit = max(workers), cluster.workers
  if limit and most > limit:
    raise OptionError("workers", f"at most {limit} on this cluster", most)
  if not weak and batch < most:
    raise OptionError("batch", f"at least {most} (one example per worker)", batch)
  single = batch / step_pass(job, cluster, batch).seconds  # examples per second of one worker
  points = []
  for count in workers:
    examples = batch if weak else math.ceil(batch / count)
    pattern = recorded(count) if count > 1 else Pattern()
    run = Scenario(pattern, job, cluster, count, examples, transport, jitter)
    seconds, waiting = seconds_and_waiting(run)
    visits = pattern.visits and pattern.visits._replace(round_robin=False)
    ideal = {  # the run without each of LOSSES
      "latency": run._replace(cluster=_with_links(cluster, latency=0.0)),
      "bandwidth": run._replace(cluster=_with_links(cluster, bandwidth=math.inf)),
      "small batches": run._replace(cluster=_at_pace(job, cluster, examples, batch)),
      "stragglers": run._replace(jitter=0.0),
      "serialized access": run._replace(pattern=pattern._replace(visits=visits)),
    }
    losses = {key: max(0.0, seconds - seconds_of(other)) for key, other in ideal.items() if other != run}
    rate = (batch * count if weak else batch) / seconds
    points.append(ScalingPoint(count, examples, seconds, rate, rate / single, rate / single / count, waiting, losses))
  return points


def stops(points: Sequence[ScalingPoint], least: float = 0.5) -> ScalingPoint | None:
  """Return the first point whose additional workers add less than `least` of the ideal speed-up, or None."""
  for before, point in pairwise(points):
    if point.speedup - before.speedup < least * (point.workers / before.workers - 1) * before.speedup:
      return point
  return None


def _at_pace(job: StepWork, cluster: Cluster, examples: int, batch: int) -> Cluster:
  """Return the cluster with a device that is as efficient on `examples` as the original device is on `batch`."""
  device = cluster.device
  whole, part = (step_seconds(job.parts, x / job.micro, device, cluster.efficiency) for x in (batch, examples))
  pace = part * batch / (whole * examples)
  faster = {"peak": device.peak * pace, "memory_bandwidth": device.memory_bandwidth * pace}
  return cluster._replace(device=device._replace(start=device.start / pace, **faster)) if pace != 1 else cluster


def _with_links(cluster: Cluster, **change: float) -> Cluster:
  """Return the cluster with a changed latency or bandwidth of all links.

  If the latency changes, the latencies of the communication library become 0; if the bandwidth changes, its largest
  bandwidth becomes infinite.
  """
  network = cluster.network
  inside = network.inside and network.inside._replace(**change)
  network = network._replace(between=network.between._replace(**change), inside=inside)
  if "bandwidth" in change:
    library = network.library and network.library._replace(fastest=math.inf)
    network = network._replace(card=network.card and change["bandwidth"], library=library)
  if "latency" in change:
    network = network._replace(library=network.library and network.library.instant())
  return cluster._replace(network=network, host=cluster.host and cluster.host._replace(**change))


class ReachedRates(NamedTuple):
  """The 10th and the 90th percentile of published rates divided by the rates predicted without overlap."""

  low: float
  high: float
  points: int  # number of published rates
  systems: int  # number of systems that they were measured on


# From experiments/papers/published_scaling.csv; checked by a test.
ONE_NODE = ReachedRates(0.78, 1.03, 667, 43)
SEVERAL_NODES = ReachedRates(0.77, 1.08, 152, 11)


def rate_interval(hidden: float, exposed: float, reached: ReachedRates) -> tuple[float, float]:
  """Return an interval that contains at least 80 % of the published rates: (low * e, max(high * e, h)).

  Args:
    hidden: h, the rate that is predicted if the backward pass hides the all-reduce.
    exposed: e, the rate that is predicted without overlap.
    reached: the percentiles of published runs.
  """
  return reached.low * exposed, max(reached.high * exposed, hidden)


class ExpectedRates(NamedTuple):
  """The interval of expected rates of synchronous SGD in examples per second, and an explanation."""

  low: float
  high: float
  text: str

  @property
  def range(self) -> str:
    """The interval as text."""
    return f"{rough_rate(self.low)} to {rough_rate(self.high)}"


def expected_rates(hidden: float, exposed: float, several: bool) -> ExpectedRates:
  """Return the `rate_interval`, with an explanation, for workers on one node or, if `several`, on several nodes."""
  rates, nodes = (SEVERAL_NODES, "several nodes") if several else (ONE_NODE, "one node")
  low, high = rate_interval(hidden, exposed, rates)
  text = (
    f"80 % of {rates.points} published runs on {rates.systems} systems of {nodes} reached {percent(rates.low)} to "
    f"{percent(rates.high)} of the rate predicted without overlap ({rough_rate(exposed)}). The range also includes the "
    "rate predicted with overlap."
  )
  return ExpectedRates(low, high, text)
