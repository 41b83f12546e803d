"""The planner: examples, workers, servers, delay and period for a job on a cluster, each with its reason and its limit.

The guidelines of Zou et al. 2017, arXiv 1709.06622 (memory and convolutions, lemma on workers, lemma on servers), and
the hiding condition of DaSGD, Zhou et al. 2020, arXiv 2006.00441.
"""

from collections.abc import Callable
from typing import NamedTuple

from ddl.perf.comm import collectives, server
from ddl.perf.comm.patterns import Op, Pattern
from ddl.perf.hardware import Cluster
from ddl.perf.hardware.cluster import server_link
from ddl.perf.hardware.device import fixed_seconds, step_seconds
from ddl.perf.planning import advice, batch_rows, delays, scaling, speedup_bounds
from ddl.perf.planning.algorithm_rates import Settings, Speed, speed, speeds
from ddl.perf.planning.batch import Job, choose_batch
from ddl.perf.units import bytes_text, percent, seconds_text

MOST_WORKERS = 65_536  # that can be asked for where the cluster knows no limit
TRIED = 1024  # then, at most
LONG = 500  # steps of a period; what DiLoCo takes


class Wish(NamedTuple):
  """What is asked of the plan; 0: the planner chooses."""

  batch: int = 0
  workers: int = 0
  servers: int = 0
  efficiency: float = 0.8  # of the workers, at least
  exposed: float = 0.05  # share of a round spent waiting, at most


class Row(NamedTuple):
  """One recommendation."""

  quantity: str
  value: str
  why: str
  limit: str  # what keeps it from being larger, or smaller


class Plan(NamedTuple):
  """Recommendations and what they lead to."""

  rows: tuple[Row, ...]
  settings: Settings
  examples: int
  speeds: tuple[Speed, ...]


def plan(
  job: Job, cluster: Cluster, wish: Wish, overhead: float | None = None, own: tuple[str, scaling.Recorded] | None = None
) -> Plan:
  """All recommendations for a job on a cluster.

  Args:
    own: an algorithm by its name, whose speed with its own settings is predicted beside those of the families.
    overhead: R_O of one worker alone, its host's seconds over those of computing, where that was measured; else the
      fixed part of a step is that of the cluster's efficiency curve.

  Raises:
    ValueError: one line, for what is invalid: memory too small for one example, a link without bandwidth, more workers
      than the cluster has, more servers than parameters.
  """
  if not 0 < wish.efficiency <= 1 or not 0 < wish.exposed < 1:
    raise ValueError(f"efficiency is {wish.efficiency:g} and exposed {wish.exposed:g}; both are shares between 0 and 1")
  batch = choose_batch(job, cluster, wish.batch)
  step = batch.step
  workers, sharing = _workers(job, cluster, wish, batch.examples, step, overhead)
  visit, served, servers, serving = _servers(job, cluster, wish, workers, step)
  message = collectives.all_reduce(job.params_bytes, workers, cluster.network)
  delay = delays.smallest_delay(message, step) if cluster.overlap else 0
  why = f"d = ceil(T_comm / T_step) = ceil({seconds_text(message)} / {seconds_text(step)})"
  limit = "the exchange" if delay else "nothing: there is no exchange"
  if not cluster.overlap:
    why, limit = (
      f"an exchange of {seconds_text(message)} never runs beside the steps here",
      "a delay would hide nothing",
    )
  rows = [Row("delay (DaSGD)", str(delay), why, limit)]
  periods = []
  for name, takes, hidden in (
    ("DaSGD", message, delay),
    ("local SGD", message, 0),
    ("EASGD", message, int(cluster.overlap)),
    ("asynchronous EASGD", visit, int(cluster.overlap)),
  ):
    periods.append(delays.smallest_period(takes, step, share=wish.exposed, delay=hidden))
    rows.append(_period(f"period ({name})", periods[-1], hidden, takes, step, wish.exposed))
  queue = delays.smallest_queued_period(served, step, share=wish.exposed)
  if queue > periods[-1]:
    periods[-1], rows[-1] = queue, _queued(rows[-1].quantity, queue, served, step, wish.exposed)
  settings = Settings(job.params_bytes, batch.examples, step, workers, servers, delay, *periods)
  told = [*(Row(*row) for row in batch_rows.rows(job, cluster, batch, asked=bool(wish.batch))), *sharing]
  if workers > 1:
    told += [*_exchanging(job, cluster, workers, batch.examples), serving, *rows]
  else:
    told.append(Row("exchange", "none", "one worker has nobody to exchange with", "no servers, delay or periods"))
  found = (*_beside(job, cluster, settings), *speeds(settings, cluster))
  return Plan(
    tuple(told), settings, batch.examples, (*found, *((_speed(job, cluster, settings, *own),) if own else ()))
  )


def _beside(job: Job, cluster: Cluster, settings: Settings) -> tuple[Speed, ...]:
  """Synchronous SGD whose gradients leave while the backward pass goes on, as `scaling` has it."""
  if settings.workers == 1 or not cluster.overlap:
    return ()
  gradients = Pattern(local=(Op("all_reduce", job.params_bytes),))
  found = _speed(job, cluster, settings, "sync_sgd", lambda _: gradients)
  return (found._replace(setting="gradients leave as they appear"),)


def _speed(job: Job, cluster: Cluster, settings: Settings, name: str, recorded: scaling.Recorded) -> Speed:
  """Of what an algorithm sends, as `scaling` has it."""
  work, how = scaling.work_of(job.step, job.params_bytes), scaling.Transport(settings.servers)
  (point,) = scaling.curve(
    recorded, work, cluster, [settings.workers], batch=settings.examples, weak=True, transport=how
  )  # fmt: skip
  return speed(settings, name, "as configured", point.seconds)


def _exchanging(job: Job, cluster: Cluster, workers: int, x: int) -> tuple[Row, ...]:
  found = [Row(*advice.all_reduce(job.params_bytes, workers, cluster.network))]
  if job.table:
    found.append(Row(*advice.messages([4.0 * layer.params for layer in job.table], workers, cluster.network)))
    duplex = cluster.network.between.duplex
    found.append(Row(*advice.groups(job.table, x * workers, workers, duplex)))
  return tuple(found)


def _workers(
  job: Job, cluster: Cluster, wish: Wish, x: int, step: float, measured: float | None
) -> tuple[int, tuple[Row, Row]]:
  limit = cluster.workers or MOST_WORKERS
  if not 0 <= wish.workers <= limit:
    why = f"the cluster has {limit}; " if cluster.workers else ""
    raise ValueError(f"{wish.workers} workers can't be had: {why}give 1 to {limit:,}")
  most = cluster.workers or max(TRIED, wish.workers)

  def exchange(workers: int) -> float:
    return collectives.all_reduce(job.params_bytes, workers, cluster.network)

  def weak(workers: int) -> float:
    return step / (step + exchange(workers))

  enough = _largest(weak, most, wish.efficiency)
  workers = wish.workers or enough
  total = x * workers
  compute = _compute(job, cluster, x, workers)
  fixed = max(0.0, step - compute / workers) if measured is None else measured * step  # below 0 by rounding alone

  def overhead(count: int) -> float:
    return (fixed + exchange(count)) / compute

  together, at = _largest(lambda g: speedup_bounds.efficiency(g, overhead(g)), most, wish.efficiency), overhead(workers)
  alpha, limit = speedup_bounds.efficiency(workers, at), speedup_bounds.speedup_limit(at)
  sent = seconds_text(exchange(workers))
  host = "nothing fixed in a step"
  if fixed > 1e-9 * step:
    host = f"{seconds_text(fixed)} of each step, whatever its examples"
  if measured is not None:
    host = f"host {seconds_text(fixed)} of each step, measured R_O = {measured:.3g}"
  edge = "the cluster has no more" if cluster.workers else "no more were tried"
  fed = f"; the data feed at most {job.data // x} with {x} examples each" if job.data else ""
  return workers, (
    Row(
      "workers (weak scaling)",
      str(workers),
      f"{x} examples each, synchronous SGD, nothing overlapped: T_step / (T_step + exchange) = "
      f"{seconds_text(step)} / ({seconds_text(step)} + {sent}) = {percent(weak(workers))}",
      f"{percent(wish.efficiency)} up to {enough}" + (f", {edge}" if enough == most else "") + fed,
    ),
    Row(
      f"workers (strong scaling, {total} examples)",
      str(together),
      f"nothing overlapped: R_O = T_O / T_C = ({host}, + exchange {sent}) / {seconds_text(compute)} = {at:.3g}; "
      f"with {workers} alpha = (1 + R_O) / (1 + G R_O) = {percent(alpha)}, speed-up below (1 + R_O) / R_O = "
      f"{limit:.3g}",
      f"{percent(wish.efficiency)} up to {together}" + (f", {edge}" if together == most else ""),
    ),
  )


def _compute(job: Job, cluster: Cluster, x: int, workers: int) -> float:
  """T_C of all examples on one worker: the part of its step that shrinks with them, from all of them to a share x."""

  def seconds(examples: float) -> float:
    return step_seconds(job.step, examples, cluster.device, cluster.efficiency)

  if workers == 1:
    return seconds(x) - fixed_seconds(job.step, cluster.device, cluster.efficiency)
  return (seconds(x * workers) - seconds(x)) * workers / (workers - 1)


def _largest(efficiency: Callable[[int], float], most: int, least: float) -> int:
  """The largest power of two, or `most`, up to which the efficiency stays at `least`."""
  found = 1
  for g in sorted({*(2**i for i in range(most.bit_length())), most}):
    if efficiency(g) < least:
      break
    found = g
  return found


def _servers(job: Job, cluster: Cluster, wish: Wish, workers: int, step: float) -> tuple[float, float, int, Row]:
  """(seconds of a visit, seconds of all workers' visits in the queue, servers, their row)."""
  link, size = server_link(cluster, workers), job.params_bytes
  needed = speedup_bounds.servers_for(size, workers, link.bandwidth, step, link.duplex)
  most = max(1, min(needed, int(size) // 4))

  def served(servers: int) -> float:
    return server.served_seconds(size, workers, link, cluster.network, servers)

  def turn(servers: int) -> float:  # of one step, with latency and the worker's own link, which the lemma leaves out
    return max(step + server.visit_seconds(size, size, link, servers), served(servers))

  tried = sorted({*(2**i for i in range(most.bit_length())), most})
  best = min(map(turn, tried))
  servers = wish.servers or next(s for s in tried if turn(s) <= 1.01 * best)
  visit = server.visit_seconds(size, size, link, servers)  # complains of more servers than parameters
  factor = f"{2 - link.duplex:g}"
  why = (
    f"lemma: N_ps >= {factor} S_p N_w / (B_ps T_C) = {factor} * {bytes_text(size)} * {workers} / "
    f"({bytes_text(link.bandwidth)}/s * {seconds_text(step)}), so {needed}; with {servers} a turn of one step "
    f"(async_sgd) takes {seconds_text(turn(servers))}"
  )
  limit = "as asked" if wish.servers else "more would not make async_sgd faster"
  if turn(servers) > 1.01 * best:
    limit += "; the servers' links"
  if server.node_seconds(size, size, workers, cluster.network) >= 0.99 * turn(servers):
    limit += f"; the {cluster.network.per_node} workers of a node share its link"
  own = f": a worker's own messages take {seconds_text(visit)}, a step {seconds_text(step)}" if visit > step else ""
  row = Row("servers", str(servers), why, limit + own)
  return (visit, served(servers), servers, row) if workers > 1 else (0.0, 0.0, servers, row)


def _queued(quantity: str, period: int, served: float, step: float, share: float) -> Row:
  why = (
    f"the servers are busy for {seconds_text(served)} with the visits of all workers, so that tau steps are a share "
    f"1 - s = {percent(1 - share)} of a turn: tau >= (1 - s) {seconds_text(served)} / T_step = "
    f"{served * (1 - share) / step:.4g}"
  )
  return Row(quantity, str(period), why, "the servers' queue" + _too_slow(period))


def _period(quantity: str, period: int, delay: int, message: float, step: float, share: float) -> Row:
  exposed = max(0.0, message - delay * step)
  why = f"max(1, d) = {period}: a delay of {delay} hides the exchange"
  if exposed:
    why = (
      f"e = T_comm - {delay} T_step = {seconds_text(exposed)} of waiting, a share s = {percent(share)} of a round at "
      f"most: tau >= e (1 - s) / (s T_step) = {exposed * (1 - share) / (share * step):.4g}"
    )
  limit = "the exposed exchange" if exposed else "the delay"
  return Row(quantity, str(period), why, limit + _too_slow(period))


def _too_slow(period: int) -> str:
  if period <= LONG:
    return ""
  return f"; more than the {LONG} steps of DiLoCo (arXiv 2311.08105): the network is too slow for this job"
