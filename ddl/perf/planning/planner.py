"""The planner: examples, workers, servers, delay and period for a job on a cluster, each with its reason and its limit.

The guidelines of Zou et al. 2017, arXiv 1709.06622 (memory and convolutions, lemma on workers, lemma on servers), and
the hiding condition of DaSGD, Zhou et al. 2020, arXiv 2006.00441.
"""

from collections.abc import Callable
from typing import NamedTuple

from ddl.perf.comm import collectives, server
from ddl.perf.comm.patterns import Op, Pattern
from ddl.perf.hardware import Cluster
from ddl.perf.hardware.device import fixed_seconds, step_seconds
from ddl.perf.planning import advice, batch_rows, delays, scaling, scenario, speedup_bounds
from ddl.perf.planning.advice import Row
from ddl.perf.planning.algorithm_rates import Settings, Speed, speed, speeds
from ddl.perf.planning.batch import Job, choose_batch
from ddl.perf.units import bytes_text, percent, seconds_text

MOST_WORKERS = 65_536  # where the cluster has no limit
TRIED = 1024  # then, at most
LONG = 500  # steps of a period, as in DiLoCo


class Wish(NamedTuple):
  """Requirements of a plan; 0: chosen by the planner."""

  batch: int = 0
  workers: int = 0
  servers: int = 0
  efficiency: float = 0.8  # of the workers, at least
  exposed: float = 0.05  # share of a round spent waiting, at most


class Plan(NamedTuple):
  """Recommendations and the predicted rates with them."""

  rows: tuple[Row, ...]
  settings: Settings
  speeds: tuple[Speed, ...]


def plan(
  job: Job, cluster: Cluster, wish: Wish, overhead: float | None = None, own: tuple[str, scaling.Recorded] | None = None
) -> Plan:
  """Return all recommendations for a job on a cluster.

  Args:
    overhead: R_O of one worker alone, its host's seconds over those of computing, where that was measured; else the
      fixed part of a step is that of the cluster's efficiency curve.
    own: an algorithm by its name, whose speed with its own settings is predicted beside those of the families.

  Raises:
    ValueError: one line, for invalid values: memory too small for one example, a link without bandwidth, more workers
      than the cluster has, more servers than parameters.
  """
  if not 0 < wish.efficiency <= 1 or not 0 < wish.exposed < 1:
    raise ValueError(f"efficiency is {wish.efficiency:g} and exposed {wish.exposed:g}; both are shares between 0 and 1")
  batch = choose_batch(job, cluster, wish.batch)
  x, step = batch.examples, batch.step
  workers, sharing = _workers(job, cluster, wish, x, step, overhead)
  visit, served, servers, serving = _servers(job, cluster, wish, workers, step)
  message = collectives.all_reduce(job.params_bytes, workers, cluster.network)
  hidden = int(cluster.overlap)  # steps beside which an exchange can run, of the algorithms whose delay is 1
  delay = delays.smallest_delay(message, step) if cluster.overlap else 0
  periods, rows = [], [_delay(delay, message, step, cluster.overlap)]
  for name, seconds, steps in (
    ("DaSGD", message, delay),
    ("local SGD", message, 0),
    ("EASGD", message, hidden),
    ("asynchronous EASGD", visit, hidden),
  ):
    periods.append(delays.smallest_period(seconds, step, share=wish.exposed, delay=steps))
    rows.append(_period(f"period ({name})", periods[-1], steps, seconds, step, wish.exposed))
  queue = delays.smallest_queued_period(served, step, share=wish.exposed)
  if queue > periods[-1]:
    periods[-1], rows[-1] = queue, _queued(rows[-1].quantity, queue, served, step, wish.exposed)
  settings = Settings(job.params_bytes, x, step, workers, servers, delay, *periods)
  exchange = [*_exchanging(job, cluster, workers, x), serving, *rows]
  if workers == 1:
    exchange = [Row("exchange", "none", "a single worker exchanges nothing", "no servers, delay or periods")]
  found = [*_overlapped(job, cluster, settings), *speeds(settings, cluster)]
  if own:
    found.append(_speed(job, cluster, settings, *own))
  rows = (*batch_rows.rows(job, cluster, batch, given=bool(wish.batch)), *sharing, *exchange)
  return Plan(rows, settings, tuple(found))


def _overlapped(job: Job, cluster: Cluster, settings: Settings) -> tuple[Speed, ...]:
  """Synchronous SGD whose gradients leave during the backward pass, as in `scaling`."""
  if settings.workers == 1 or not cluster.overlap:
    return ()
  gradients = Pattern(local=(Op("all_reduce", job.params_bytes),))
  found = _speed(job, cluster, settings, "sync_sgd", lambda _: gradients)
  return (found._replace(setting="gradients leave as they appear"),)


def _speed(job: Job, cluster: Cluster, settings: Settings, name: str, recorded: scaling.Recorded) -> Speed:
  """Speed of an algorithm by its messages, as in `scaling`."""
  work, transport = scenario.work_of(job.step, job.params_bytes), scenario.Transport(settings.servers)
  (point,) = scaling.curve(
    recorded, work, cluster, [settings.workers], batch=settings.examples, weak=True, transport=transport
  )
  return speed(settings, name, "as configured", point.seconds)


def _exchanging(job: Job, cluster: Cluster, workers: int, x: int) -> list[Row]:
  network = cluster.network
  found = [advice.all_reduce(job.params_bytes, workers, network)]
  if job.table:
    found.append(advice.messages([4.0 * layer.params for layer in job.table], workers, network))
    found.append(advice.groups(job.table, x * workers, workers, network.between.duplex))
  return found


def _workers(
  job: Job, cluster: Cluster, wish: Wish, x: int, step: float, measured: float | None
) -> tuple[int, tuple[Row, Row]]:
  """(workers, rows on weak and on strong scaling)."""
  limit = cluster.workers or MOST_WORKERS
  if not 0 <= wish.workers <= limit:
    raise ValueError(f"number of workers is {wish.workers}; invalid: must be from 1 to {limit:,} on this cluster")
  most = cluster.workers or max(TRIED, wish.workers)

  def exchange(workers: int) -> float:
    return collectives.all_reduce(job.params_bytes, workers, cluster.network)

  def weak(workers: int) -> float:
    return step / (step + exchange(workers))

  enough = _largest(weak, most, wish.efficiency)
  workers = wish.workers or enough
  compute = _compute(job, cluster, x, workers)
  fixed = max(0.0, step - compute / workers) if measured is None else measured * step  # below 0 by rounding alone

  def overhead(count: int) -> float:
    return (fixed + exchange(count)) / compute

  together, at = _largest(lambda g: speedup_bounds.efficiency(g, overhead(g)), most, wish.efficiency), overhead(workers)
  sent, host = seconds_text(exchange(workers)), "nothing fixed in a step"
  if measured is not None:
    host = f"host {seconds_text(fixed)} of each step, measured R_O = {measured:.3g}"
  elif fixed > 1e-9 * step:
    host = f"{seconds_text(fixed)} of each step, whatever its examples"

  def up_to(count: int) -> str:
    edge = "the cluster has no more" if cluster.workers else "no more were tried"
    return f"{percent(wish.efficiency)} up to {count}" + (f", {edge}" if count == most else "")

  fed = f"; the data feed at most {job.data // x} with {x} examples each" if job.data else ""
  return workers, (
    Row(
      "workers (weak scaling)",
      str(workers),
      f"{x} examples each, synchronous SGD, nothing overlapped: T_step / (T_step + exchange) = "
      f"{seconds_text(step)} / ({seconds_text(step)} + {sent}) = {percent(weak(workers))}",
      up_to(enough) + fed,
    ),
    Row(
      f"workers (strong scaling, {x * workers} examples)",
      str(together),
      f"nothing overlapped: R_O = T_O / T_C = ({host}, + exchange {sent}) / {seconds_text(compute)} = {at:.3g}; "
      f"with {workers} alpha = (1 + R_O) / (1 + G R_O) = {percent(speedup_bounds.efficiency(workers, at))}, speed-up "
      f"below (1 + R_O) / R_O = {speedup_bounds.speedup_limit(at):.3g}",
      up_to(together),
    ),
  )


def _compute(job: Job, cluster: Cluster, x: int, workers: int) -> float:
  """T_C of all examples on one worker: the part of its step that shrinks with them, from all of them to a share x."""

  def seconds(examples: float) -> float:
    return step_seconds(job.step, examples, cluster.device, cluster.efficiency)

  if workers == 1:
    return seconds(x) - fixed_seconds(job.step, cluster.device, cluster.efficiency)
  return (seconds(x * workers) - seconds(x)) * workers / (workers - 1)


def _doubled(most: int) -> list[int]:
  """1, 2, 4, ... and `most`."""
  return sorted({*(2**i for i in range(most.bit_length())), most})


def _largest(efficiency: Callable[[int], float], most: int, least: float) -> int:
  """Return the largest of `_doubled` up to which the efficiency stays at `least`; 1 if none."""
  found = 1
  for g in _doubled(most):
    if efficiency(g) < least:
      break
    found = g
  return found


def _servers(job: Job, cluster: Cluster, wish: Wish, workers: int, step: float) -> tuple[float, float, int, Row]:
  """(seconds of a visit, seconds of all workers' visits in the queue, servers, their row)."""
  link, size = cluster.server_link(workers), job.params_bytes
  needed = speedup_bounds.servers_for(size, workers, link.bandwidth, step, link.duplex)

  def served(servers: int) -> float:
    return server.served_seconds(size, workers, link, cluster.network, servers)

  def rounds(servers: int) -> float:  # seconds, with latency and the worker's own link, which the lemma leaves out
    return max(step + server.visit_seconds(size, size, link, servers), served(servers))

  tried = _doubled(max(1, min(needed, int(size) // 4)))
  best = min(map(rounds, tried))
  servers = wish.servers or next(s for s in tried if rounds(s) <= 1.01 * best)
  visit = server.visit_seconds(size, size, link, servers)  # ValueError for more servers than parameters
  factor = f"{2 - link.duplex:g}"
  why = (
    f"lemma: N_ps >= {factor} S_p N_w / (B_ps T_C) = {factor} * {bytes_text(size)} * {workers} / "
    f"({bytes_text(link.bandwidth)}/s * {seconds_text(step)}), so {needed}; with {servers} a worker round of one step "
    f"(async_sgd) takes {seconds_text(rounds(servers))}"
  )
  limit = "as given" if wish.servers else "more would not make async_sgd faster"
  if rounds(servers) > 1.01 * best:
    limit += "; the servers' links"
  if server.node_seconds(size, size, workers, cluster.network) >= 0.99 * rounds(servers):
    limit += f"; the {cluster.network.per_node} workers of a node share its link"
  if visit > step:
    limit += f": a worker's own messages take {seconds_text(visit)}, a step {seconds_text(step)}"
  row = Row("servers", str(servers), why, limit)
  return (visit, served(servers), servers, row) if workers > 1 else (0.0, 0.0, servers, row)


def _delay(delay: int, message: float, step: float, overlap: bool) -> Row:
  if not overlap:
    why = f"an exchange of {seconds_text(message)} never runs beside the steps here"
    return Row("delay (DaSGD)", str(delay), why, "a delay would hide nothing")
  why = f"d = ceil(T_comm / T_step) = ceil({seconds_text(message)} / {seconds_text(step)})"
  return Row("delay (DaSGD)", str(delay), why, "the exchange" if delay else "nothing: there is no exchange")


def _queued(quantity: str, period: int, served: float, step: float, share: float) -> Row:
  why = (
    f"the servers are busy for {seconds_text(served)} with the visits of all workers, so that tau steps are a share "
    f"1 - s = {percent(1 - share)} of a worker round: tau >= (1 - s) {seconds_text(served)} / T_step = "
    f"{served * (1 - share) / step:.4g}"
  )
  return Row(quantity, str(period), why, "the servers' queue" + _too_slow(period))


def _period(quantity: str, period: int, delay: int, message: float, step: float, share: float) -> Row:
  exposed = max(0.0, message - delay * step)
  if not exposed:
    why = f"max(1, d) = {period}: a delay of {delay} hides the exchange"
    return Row(quantity, str(period), why, "the delay" + _too_slow(period))
  why = (
    f"e = T_comm - {delay} T_step = {seconds_text(exposed)} of waiting, a share s = {percent(share)} of a round at "
    f"most: tau >= e (1 - s) / (s T_step) = {exposed * (1 - share) / (share * step):.4g}"
  )
  return Row(quantity, str(period), why, "the exposed exchange" + _too_slow(period))


def _too_slow(period: int) -> str:
  if period <= LONG:
    return ""
  return f"; more than the {LONG} steps of DiLoCo (arXiv 2311.08105): the network is too slow for this job"
