"""The planner: examples, workers, servers, delay and period for a job on a cluster, each with its reason and its limit.

The guidelines of Zou et al. 2017, arXiv 1709.06622 (memory and convolutions, lemma on workers, lemma on servers), and
the hiding condition of DaSGD, Zhou et al. 2020, arXiv 2006.00441.
"""

from collections import Counter
from collections.abc import Callable
from typing import NamedTuple

from ddl.perf import advice, delays, lemmas, patterns, server
from ddl.perf.batch import Batch, Job, choose_batch
from ddl.perf.clusters import Cluster
from ddl.perf.clusters.cluster import server_link
from ddl.perf.compute import step_seconds
from ddl.perf.families import Settings, Speed, speeds
from ddl.perf.units import bytes_text, percent, seconds_text

MOST_WORKERS = 1024  # tried where the cluster knows no limit
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


def plan(job: Job, cluster: Cluster, wish: Wish, overhead: float | None = None) -> Plan:
  """All recommendations for a job on a cluster.

  Args:
    overhead: R_O of one worker alone, its host's seconds over those of computing, where that was measured; else the
      fixed part of a step is that of the cluster's efficiency curve.

  Raises:
    ValueError: one line, for what can't be: memory too small for one example, a link without bandwidth, more workers
      than the cluster has, more servers than parameters.
  """
  if not 0 < wish.efficiency <= 1 or not 0 < wish.exposed < 1:
    raise ValueError(f"efficiency is {wish.efficiency:g} and exposed {wish.exposed:g}; both are shares between 0 and 1")
  batch = choose_batch(job, cluster, wish.batch)
  step = step_seconds(job.flop_per_example, batch.examples, cluster.device, cluster.efficiency)
  workers, sharing = _workers(job, cluster, wish, batch.examples, step, overhead)
  visit, servers, serving = _servers(job, cluster, wish, workers, step)
  message = patterns.seconds("dasgd", job.params_bytes, workers, cluster.network).exchange
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
  settings = Settings(job.params_bytes, step, workers, servers, delay, *periods)
  exchanging = _exchanging(job, cluster, workers, batch.examples) if workers > 1 else ()
  told = (*_batch(job, cluster, batch, step), *sharing, *exchanging, serving, *rows)
  return Plan(told, settings, batch.examples, speeds(settings, cluster))


def _batch(job: Job, cluster: Cluster, batch: Batch, step: float) -> tuple[Row, ...]:
  x, have = batch.examples, bytes_text(cluster.device.memory)
  begin = f"{seconds_text(cluster.device.start)} + " if cluster.device.start else ""
  rate = (
    f"{begin}{job.flop_per_example * x:.3g} FLOP / ({cluster.device.peak:.3g} FLOP/s * {cluster.efficiency.at(x):.3g})"
  )
  reach = f"{percent(batch.share)} of the throughput of {batch.best}, the best of those tried"
  grown = x > job.least and job.exact is not None  # a layer table has no batch of its own
  more = f"; {x / job.least:.3g} times the {job.least} of the config, so tune the rate anew" if grown else ""
  size = Row(
    "examples per worker",
    str(x),
    f"{reach}; a step takes {rate} = {seconds_text(step)}",
    (f"memory: {batch.largest} fit" if batch.largest != job.most else f"the data: {batch.largest} examples") + more,
  )
  why = f"feature maps, copies of the weights and the optimiser's state, counted: {bytes_text(batch.needed)}"
  if batch.exact is not None:
    why = f"compiled step (XLA, this backend): {bytes_text(batch.exact)}; {why}"
  needed = batch.needed if batch.exact is None else batch.exact
  memory = Row("memory per worker", bytes_text(needed), why, f"the device has {have}")
  if batch.shared is None:
    return size, memory
  shared, separate = batch.shared.choice, batch.separate
  other = f"{seconds_text(separate.choice.seconds)} with one each" if separate else "too little memory for one each"
  convolutions = Row(
    "convolutions",
    ", ".join(f"{n} {name}" for name, n in Counter(shared.algorithms).most_common()),
    f"0-1 program, modelled with memory traffic: {seconds_text(shared.seconds)} with one workspace for all layers, "
    f"{other}; gemm alone {seconds_text(batch.plain)}",
    f"{bytes_text(cluster.device.memory - batch.needed)} are left for workspaces, {bytes_text(shared.workspace)} used",
  )
  return size, memory, convolutions


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
  most = cluster.workers or max(MOST_WORKERS, wish.workers)
  if not 0 <= wish.workers <= most:
    raise ValueError(f"{wish.workers} workers can't be had: the cluster has {most}; give 1 to {most}")

  def exchange(workers: int) -> float:
    return patterns.seconds("sync_sgd", job.params_bytes, workers, cluster.network).step

  def weak(workers: int) -> float:
    return step / (step + exchange(workers))

  enough = _largest(weak, most, wish.efficiency)
  workers = wish.workers or enough
  full = cluster.device.peak * cluster.efficiency.best
  fixed = cluster.device.start + job.flop_per_example * cluster.efficiency.half / full
  fixed = fixed if measured is None else measured * step
  total = x * workers
  compute = job.flop_per_example * total / full

  def overhead(count: int) -> float:
    return (fixed + exchange(count)) / compute

  together, at = _largest(lambda g: lemmas.efficiency(g, overhead(g)), most, wish.efficiency), overhead(workers)
  alpha, limit = lemmas.efficiency(workers, at), lemmas.speedup_limit(at)
  sent = seconds_text(exchange(workers))
  host = f"{seconds_text(fixed)} of each step by the cluster's entry" if fixed else "host overhead not measured"
  if measured is not None:
    host = f"host {seconds_text(fixed)} of each step, measured R_O = {measured:.3g}"
  edge = "the cluster has no more" if cluster.workers else "no more were tried"
  return workers, (
    Row(
      "workers (weak scaling)",
      str(workers),
      f"{x} examples each, synchronous SGD: T_step / (T_step + exchange) = "
      f"{seconds_text(step)} / ({seconds_text(step)} + {sent}) = {percent(weak(workers))}",
      f"{percent(wish.efficiency)} up to {enough}" + (f", {edge}" if enough == most else ""),
    ),
    Row(
      f"workers (strong scaling, {total} examples)",
      str(together),
      f"R_O = T_O / T_C = ({host} + exchange {sent}) / {seconds_text(compute)} = {at:.3g}; with {workers} "
      f"alpha = (1 + R_O) / (1 + G R_O) = {percent(alpha)}, speed-up below (1 + R_O) / R_O = {limit:.3g}",
      f"{percent(wish.efficiency)} up to {together}" + (f", {edge}" if together == most else ""),
    ),
  )


def _largest(efficiency: Callable[[int], float], most: int, least: float) -> int:
  """The largest power of two, or `most`, up to which the efficiency stays at `least`."""
  found = 1
  for g in sorted({*(2**i for i in range(most.bit_length())), most}):
    if efficiency(g) < least:
      break
    found = g
  return found


def _servers(job: Job, cluster: Cluster, wish: Wish, workers: int, step: float) -> tuple[float, int, Row]:
  """(seconds of a visit, servers, their row)."""
  link, size = server_link(cluster, workers), job.params_bytes
  needed = lemmas.servers_for(size, workers, link.bandwidth, step, link.duplex)
  most = max(1, min(needed, int(size) // 4))

  def turn(servers: int) -> float:  # of one step, with latency and the worker's own link, which the lemma leaves out
    own = workers / server.throughput(size, workers, link, step, servers)
    return max(own, server.node_seconds(size, size, workers, cluster.network))

  tried = sorted({*(2**i for i in range(most.bit_length())), most})
  best = min(map(turn, tried))
  servers = wish.servers or next(s for s in tried if turn(s) <= 1.01 * best)
  visit = server.visit_seconds(size, size, link, servers)  # complains of more servers than parameters
  factor = f"{2 - link.duplex:g}"
  why = (
    f"lemma: N_ps >= {factor} S_p N_w / (B_ps T_C) = {factor} * {bytes_text(size)} * {workers} / "
    f"({bytes_text(link.bandwidth)}/s * {seconds_text(step)}), so {needed}; with {servers} a turn of one step takes "
    f"{seconds_text(turn(servers))}"
  )
  limit = "the servers' links" if turn(servers) > 1.01 * best else "more would not be faster"
  own = f": a worker's own messages take {seconds_text(visit)}, a step {seconds_text(step)}" if visit > step else ""
  return visit, servers, Row("servers", str(servers), why, limit + own)


def _period(quantity: str, period: int, delay: int, message: float, step: float, share: float) -> Row:
  exposed = max(0.0, message - delay * step)
  why = f"max(1, d) = {period}: a delay of {delay} hides the exchange"
  if exposed:
    why = f"e = T_comm - {delay} T_step = {seconds_text(exposed)}: e / (tau T_step + e) is at most {percent(share)}"
  limit = "the exposed exchange" if exposed else "the delay"
  if period > LONG:
    limit += f"; more than the {LONG} steps of DiLoCo (arXiv 2311.08105): the network is too slow for this job"
  return Row(quantity, str(period), why, limit)
