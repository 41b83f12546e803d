"""You, Buluc, Demmel 2017, arXiv 1708.02983: one Knights Landing chip in parts, and weak scaling over 64 of them."""

from ddl.perf import cluster_file, networks
from ddl.perf.collectives import all_reduce
from ddl.perf.layers import params_bytes
from experiments.papers.page import (
  BETWEEN,
  HEADLINE,
  MEMORY,
  PAPER,
  SECONDARY,
  Config,
  Prediction,
  ReportedRow,
  Section,
  remarks,
)

SAME, AMDAHL = "baseline: the same chip", "Amdahl's law fitted"
NOTHING, BEST, TREE = "baseline: no communication", "best all-reduce fitted", "tree fitted"


def amdahl(seconds: dict[int, float], fitted: int) -> dict[int, float]:
  """T(p) = T(1) (s + (1 - s) / p) with s from T(fitted)."""
  whole = seconds[1]
  serial = (seconds[fitted] / whole - 1 / fitted) / (1 - 1 / fitted)
  return {parts: whole * (serial + (1 - serial) / parts) for parts in seconds}


def parts(config: Config) -> Section:
  """Seconds to the same accuracy with the chip in parts."""
  seconds = dict(config.seconds)
  curve, other = amdahl(seconds, config.fitted), amdahl(seconds, config.other)
  rows = [
    ReportedRow(
      f"{p} parts",
      reported,
      "s",
      {SAME: Prediction(seconds[1]), AMDAHL: Prediction(curve[p], p == config.fitted)},
      source=SECONDARY,
    )
    for p, reported in seconds.items()
    if p > 1
  ]
  last, before, first = sorted(seconds, reverse=True)[:3]
  text = remarks(
    "sc17_parts", config=config, last=last, before=before, first=first, late=seconds[before] / seconds[last],
    early=seconds[first] / seconds[before],
    others=" and ".join(f"{other[p]:.0f} s for {p}" for p in seconds if p not in (1, config.other)),
  )  # fmt: skip
  fitted = f"the serial share of Amdahl's law, on {config.fitted} parts; one part is the reference of both columns."
  return Section(
    "SC17: a chip in parts", "configs/reproduce_sc17_parts.py", fitted, rows, remarks=text, curves=(AMDAHL,),
    uncounted="no column is a mechanism.",
  )  # fmt: skip


def efficiencies(config: Config, network: str, algorithm: str) -> tuple[list[float], float]:
  """(T(1) / T(N) of each number of nodes, seconds of a step), from T(N) = step + all-reduce(N), fitted on one N."""
  inputs, links = config.networks[network], cluster_file.named(config.cluster).network
  nbytes = params_bytes(networks.table(inputs.network))
  reported = inputs.seconds[config.nodes.index(config.fitted)] / inputs.seconds[0]
  step = all_reduce(nbytes, config.fitted, links, algorithm) / (reported - 1)
  return [step / (step + all_reduce(nbytes, nodes, links, algorithm)) for nodes in config.nodes], step


def weak(config: Config) -> Section:
  """Efficiency over the number of nodes."""
  rows, steps, lost, more = [], [], [], []
  for name, inputs in config.networks.items():
    best, step = efficiencies(config, name, "best")
    tree, _ = efficiencies(config, name, "tree")
    steps.append(f"{1e3 * step:.0f} ms for {name}")
    for i, nodes in enumerate(config.nodes):
      if nodes == 1:
        continue
      abstract = (name, nodes) == (config.headline.network, config.headline.nodes)
      reported = config.headline.reported if abstract else 100 * inputs.seconds[0] / inputs.seconds[i]
      fits = nodes == config.fitted
      predicted = {
        NOTHING: Prediction(100.0),
        BEST: Prediction(100 * best[i], fits),
        TREE: Prediction(100 * tree[i], fits),
      }
      what, last = f"{name}, {nodes} nodes ({config.cores * nodes} cores)", nodes == config.nodes[-1]
      source = PAPER if abstract else MEMORY
      rows.append(ReportedRow(what, reported, "%", predicted, source=source, kind=HEADLINE if last else BETWEEN))
    lost.append(f"{100 * (1 - best[-1]):.1f} % (reported: {100 - rows[-1].reported:.1f} %, {name})")
    more.append(f"{100 * (1 - tree[-1]):.1f} %")
  headline = config.headline
  seconds = config.networks[headline.network].seconds
  own = seconds[0] / seconds[config.nodes.index(headline.nodes)]
  text = remarks(
    "sc17_weak", config=config, headline=headline, cores=config.cores * headline.nodes, own=100 * own,
    steps=" and ".join(steps), nodes=config.nodes[-1], lost=" and ".join(lost), more=" and ".join(more),
  )  # fmt: skip
  fitted = f"seconds of a step over those of an exchange, for each network on {config.fitted} nodes."
  return Section(
    "SC17: weak scaling on Cori", "configs/reproduce_sc17_weak.py", fitted, rows, TREE, text,
    uncounted="the fits are on seconds from memory.",
  )  # fmt: skip
