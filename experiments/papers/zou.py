"""Zou et al. 2017, arXiv 1709.06622: both lemmas worked out, and against simulations that do not know them."""

from ddl.perf import bounds, cluster_file, neural_networks, server, timeline
from ddl.perf.collectives import all_reduce
from ddl.perf.device import step_seconds
from ddl.perf.layers import params_bytes, parts
from ddl.perf.timeline import Pass
from ddl.perf.units import seconds_text
from experiments.papers import page
from experiments.papers.page import Config, Section, table


def section(config: Config) -> Section:
  """Tables of GPUs, of an overhead that grows, and of servers."""
  return page.read(
    "zou", config=config, nbytes=config.nbytes / 1e6, gpus=_gpus(config), grown=_grown(config.grown),
    servers=_servers(config),
  )  # fmt: skip


def simulated_efficiency(gpus: int, overhead: float) -> float:
  """Speed-up per GPU by the event model: steps of 1 / G s, each followed by R_O s that all wait for."""

  def seconds(count: int) -> float:
    third = [1 / count / 3]
    return timeline.simulate(Pass(third, third, third, [1.0]), lambda _: overhead, overlap=False).seconds

  return seconds(1) / seconds(gpus) / gpus


def waiting(config: Config, gigabits: float, servers: int) -> float:
  """Share of a worker's round that it waits at so many simulated servers, if it sends while it computes."""
  simulated = server.simulate(
    workers=config.workers, servers=servers, nbytes=config.nbytes, bandwidth=gigabits * 1e9 / 8,
    compute_seconds=config.seconds, overlap=1.0,
  )  # fmt: skip
  return simulated.wait_seconds / simulated.round_seconds


def _gpus(config: Config) -> str:
  head = ("R_O", *(f"G = {g}: lemma, simulated" for g in config.gpus), f"G up to, at {100 * config.share:g} %", "limit")
  rows = []
  for overhead in config.overheads:
    both = [(bounds.efficiency(g, overhead), simulated_efficiency(g, overhead)) for g in config.gpus]
    most, limit = bounds.workers_for(config.share, overhead), bounds.speedup_limit(overhead)
    cells = (f"{100 * lemma:.1f}, {100 * simulated:.1f} %" for lemma, simulated in both)
    rows.append((f"{100 * overhead:g} %", *cells, f"{most:.3g}", f"{limit:.3g}x"))
  allowed = (f"{100 * bounds.overhead_for(config.share, g):.1f} %" for g in config.gpus)
  return table(head, [*rows, (f"R_O at {100 * config.share:g} %", *allowed, "-", "-")])


def _grown(config: Config) -> str:
  """An all-reduce takes longer among more GPUs: the lemma with R_O of the fewest, and with that of each number."""
  cluster, layers = cluster_file.named(config.cluster), neural_networks.table(config.network)
  alone = step_seconds(parts(layers), config.batch, cluster.device, cluster.efficiency)
  overheads = {g: all_reduce(params_bytes(layers), g, cluster.network) / alone for g in config.gpus}
  rows = []
  for g in config.gpus:
    step = step_seconds(parts(layers), config.batch / g, cluster.device, cluster.efficiency)
    whole = step + overheads[g] * alone
    lemmas = [1 / (1 + g * overhead) for overhead in (overheads[config.gpus[0]], overheads[g])]  # T_C / (T_C + G T_O)
    shares = (*lemmas, alone / whole / g)
    rows.append((str(g), f"{100 * overheads[g]:.1f} %", *(f"{100 * share:.1f} %" for share in shares)))
  first = f"lemma, R_O of {config.gpus[0]} GPUs"
  return table(("GPUs", "R_O", first, "lemma, R_O of these", "cost model"), rows)


def _servers(config: Config) -> str:
  rows = []
  for gigabits in config.gigabits:
    needed = bounds.servers_for(config.nbytes, config.workers, gigabits * 1e9 / 8, config.seconds)
    tried = sorted({max(1, needed // 2), max(1, needed - 1), needed, 2 * needed})
    shares = ", ".join(f"{n}: {100 * waiting(config, gigabits, n):.1f} %" for n in tried)
    rows.append((f"{gigabits} Gb/s", str(needed), shares))
  who = f"{config.workers} workers, T_C = {seconds_text(config.seconds)}"
  return table((who, "servers by the lemma", "share of a round spent waiting, simulated, by servers"), rows)
