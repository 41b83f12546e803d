"""Numbers of workers and of servers for a job on a cluster, with their rows of a plan (lemmas of arXiv 1709.06622)."""

from collections.abc import Callable

from ddl.perf.comm import collectives, server
from ddl.perf.hardware import Cluster
from ddl.perf.hardware.device import fixed_seconds, step_seconds
from ddl.perf.planning import speedup_bounds
from ddl.perf.planning.advice import Row
from ddl.perf.planning.batch import Job
from ddl.perf.units import bytes_text, percent, seconds_text

MOST_WORKERS = 65_536  # where the cluster has no limit
TRIED = 1024  # then, at most


def choose_workers(
  job: Job, cluster: Cluster, x: int, step: float, *, given: int, least: float, measured: float | None
) -> tuple[int, tuple[Row, Row]]:
  """Return the number of workers, and the rows on weak and on strong scaling.

  Args:
    x: examples of a worker's step.
    step: its seconds.
    given: number of workers; 0: the most of that efficiency.
    least: efficiency of the workers.
    measured: R_O of one worker alone, see `planner.plan`.

  Raises:
    ValueError: for more workers than the cluster has.
  """
  limit = cluster.workers or MOST_WORKERS
  if not 0 <= given <= limit:
    raise ValueError(f"number of workers is {given}; invalid: must be from 1 to {limit:,} on this cluster")
  most = cluster.workers or max(TRIED, given)

  def exchange(workers: int) -> float:
    return collectives.all_reduce(job.params_bytes, workers, cluster.network)

  def weak(workers: int) -> float:
    return step / (step + exchange(workers))

  enough = _largest(weak, most, least)
  workers = given or enough
  compute = _compute(job, cluster, x, workers)
  fixed = max(0.0, step - compute / workers) if measured is None else measured * step  # below 0 by rounding alone

  def overhead(count: int) -> float:
    return (fixed + exchange(count)) / compute

  together, at = _largest(lambda g: speedup_bounds.efficiency(g, overhead(g)), most, least), overhead(workers)
  sent, host = seconds_text(exchange(workers)), "nothing fixed in a step"
  if measured is not None:
    host = f"host {seconds_text(fixed)} of each step, measured R_O = {measured:.3g}"
  elif fixed > 1e-9 * step:
    host = f"{seconds_text(fixed)} of each step, whatever its examples"

  def up_to(count: int) -> str:
    edge = "the cluster has no more" if cluster.workers else "no more were tried"
    return f"{percent(least)} up to {count}" + (f", {edge}" if count == most else "")

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


def choose_servers(
  job: Job, cluster: Cluster, workers: int, step: float, *, given: int
) -> tuple[float, float, int, Row]:
  """Return (seconds of a visit, seconds of all workers' visits in the queue, servers, their row).

  given: number of servers; 0: the fewest that more would not make async_sgd faster than. ValueError for more servers
  than parameters.
  """
  link, size = cluster.server_link(workers), job.params_bytes
  needed = speedup_bounds.servers_for(size, workers, link.bandwidth, step, link.duplex)

  def served(servers: int) -> float:
    return server.served_seconds(size, workers, link, cluster.network, servers)

  def rounds(servers: int) -> float:  # seconds, with latency and the worker's own link, which the lemma leaves out
    return max(step + server.visit_seconds(size, size, link, servers), served(servers))

  tried = _doubled(max(1, min(needed, int(size) // 4)))
  best = min(map(rounds, tried))
  servers = given or next(s for s in tried if rounds(s) <= 1.01 * best)
  visit = server.visit_seconds(size, size, link, servers)  # ValueError for more servers than parameters
  factor = f"{2 - link.duplex:g}"
  why = (
    f"lemma: N_ps >= {factor} S_p N_w / (B_ps T_C) = {factor} * {bytes_text(size)} * {workers} / "
    f"({bytes_text(link.bandwidth)}/s * {seconds_text(step)}), so {needed}; with {servers} a worker round of one step "
    f"(async_sgd) takes {seconds_text(rounds(servers))}"
  )
  limit = "as given" if given else "more would not make async_sgd faster"
  if rounds(servers) > 1.01 * best:
    limit += "; the servers' links"
  if server.node_seconds(size, size, workers, cluster.network) >= 0.99 * rounds(servers):
    limit += f"; the {cluster.network.per_node} workers of a node share its link"
  if visit > step:
    limit += f": a worker's own messages take {seconds_text(visit)}, a step {seconds_text(step)}"
  row = Row("servers", str(servers), why, limit)
  return (visit, served(servers), servers, row) if workers > 1 else (0.0, 0.0, servers, row)


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
