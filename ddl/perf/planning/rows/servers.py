"""The number of parameter servers for a job on a cluster, with its row of a plan (second lemma of arXiv 1709.06622)."""

from ddl.perf.comm import server
from ddl.perf.hardware import Cluster
from ddl.perf.planning import speedup_bounds
from ddl.perf.planning.batch import Job
from ddl.perf.planning.rows import Row
from ddl.perf.planning.rows.counts import doubled
from ddl.perf.units import bytes_text, seconds_text


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

  tried = doubled(max(1, min(needed, int(size) // 4)))
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
