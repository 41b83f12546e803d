"""Zou et al. 2017, arXiv 1709.06622: evaluate both lemmas and compare them with independent simulations."""

import numpy as np

from ddl.perf import bounds, cluster_file, neural_networks, server, timeline
from ddl.perf.collectives import all_reduce
from ddl.perf.device import step_seconds
from ddl.perf.layers import params_bytes, parts
from ddl.perf.server import VisitSeconds
from ddl.perf.timeline import Pass
from experiments.papers import page
from experiments.papers.page import Config, Section


def section(config: Config) -> Section:
  """Build the section with tables for GPUs, for an overhead that grows with the number of GPUs, and for servers."""
  gpus = {
    overhead: [(bounds.efficiency(g, overhead), simulated_efficiency(g, overhead)) for g in config.gpus]
    for overhead in config.overheads
  }
  servers = []
  for gigabits in config.gigabits:
    needed = bounds.servers_for(config.nbytes, config.workers, gigabits * 1e9 / 8, config.seconds)
    tried = sorted({max(1, needed // 2), max(1, needed - 1), needed, 2 * needed})
    servers.append((gigabits, needed, {count: waiting(config, gigabits, count) for count in tried}))
  return page.read("zou", config=config, bounds=bounds, gpus=gpus, grown=_grown(config.grown), servers=servers)


def simulated_efficiency(gpus: int, overhead: float) -> float:
  """Simulate steps of 1 / G s, each followed by R_O s of overhead, and return the speed-up per GPU."""

  def seconds(count: int) -> float:
    third = [1 / count / 3]
    return timeline.simulate(Pass(third, third, third, [1.0]), lambda _: overhead, overlap=False).seconds

  return seconds(1) / seconds(gpus) / gpus


def waiting(config: Config, gigabits: float, servers: int) -> float:
  """Simulate the share of a round spent waiting for servers, if messages overlap compute."""
  visit = VisitSeconds(0.0, 2 * config.nbytes / servers / (gigabits * 1e9 / 8))  # on a server's half-duplex link
  computing = np.full((1, config.workers), float(config.seconds))
  return 1 - config.seconds / server.mean_round(computing, 0 * computing, visit)


def _grown(config: Config) -> list[tuple[float, ...]]:
  """Return rows (G, R_O of G GPUs, three efficiencies).

  The efficiencies follow from the lemma with the R_O of the fewest GPUs, from the lemma with the R_O of G GPUs, and
  from the cost model.
  """
  cluster, layers = cluster_file.named(config.cluster), neural_networks.table(config.network)
  single = step_seconds(parts(layers), config.batch, cluster.device, cluster.efficiency)
  overheads = {g: all_reduce(params_bytes(layers), g, cluster.network) / single for g in config.gpus}
  rows = []
  for g in config.gpus:
    whole = step_seconds(parts(layers), config.batch / g, cluster.device, cluster.efficiency) + overheads[g] * single
    lemmas = [1 / (1 + g * overhead) for overhead in (overheads[config.gpus[0]], overheads[g])]  # T_C / (T_C + G T_O)
    rows.append((g, overheads[g], *lemmas, single / whole / g))
  return rows
