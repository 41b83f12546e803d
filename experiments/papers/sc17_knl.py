"""You, Buluc, Demmel 2017, arXiv 1708.02983: one Knights Landing chip in parts, and weak scaling over 64 of them."""

from ddl.perf import hardware
from ddl.perf.comm.collectives import all_reduce
from ddl.perf.tables import TABLES
from ddl.perf.tables.totals import params_bytes
from experiments.papers.page import Config, Prediction, Row, Section

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
    Row(f"{p} parts", told, "s", {SAME: Prediction(seconds[1]), AMDAHL: Prediction(curve[p], p == config.fitted)})
    for p, told in seconds.items()
    if p > 1
  ]
  last, before, first = (seconds[p] for p in sorted(seconds, reverse=True)[:3])
  remarks = (
    "*What is not known.* Nothing in the paper determines these times: they are seconds to an accuracy, and neither "
    "the steps to it, which depend on a part's batch and the learning rate, nor the speed of a part is known. A chip "
    "computes the same FLOP at the same peak, whole or in parts, so that the cost model by itself predicts no gain.",
    f"*Where it is off, and why.* From {sorted(seconds)[-2]} to {sorted(seconds)[-1]} parts the reported time falls "
    f"{before / last:.2f} times, from {sorted(seconds)[-3]} to {sorted(seconds)[-2]} only {first / before:.2f} times; "
    "Amdahl's law can only flatten. Fitted on "
    f"{config.other} parts instead it predicts "
    + " and ".join(f"{other[p]:.0f} s for {p}" for p in seconds if p not in (1, config.other))
    + ". The law is a curve through a point here, not a mechanism.",
  )
  fitted = f"the serial share of Amdahl's law, on {config.fitted} parts; one part is the reference of both columns."
  return Section("SC17: a chip in parts", "configs/reproduce_sc17_parts.py", fitted, rows, AMDAHL, remarks)


def efficiencies(config: Config, network: str, algorithm: str) -> tuple[list[float], float]:
  """(T(1) / T(N) of each number of nodes, seconds of a step), from T(N) = step + all-reduce(N), fitted on one N."""
  inputs, links = config.networks[network], hardware.named(config.cluster).network
  nbytes = params_bytes(TABLES[inputs.network])
  told = inputs.seconds[config.nodes.index(config.fitted)] / inputs.seconds[0]
  step = all_reduce(nbytes, config.fitted, links, algorithm) / (told - 1)
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
      told = config.headline.reported if abstract else 100 * inputs.seconds[0] / inputs.seconds[i]
      fits = nodes == config.fitted
      predicted = {
        NOTHING: Prediction(100.0),
        BEST: Prediction(100 * best[i], fits),
        TREE: Prediction(100 * tree[i], fits),
      }
      what, last = f"{name}, {nodes} nodes ({config.cores * nodes} cores)", nodes == config.nodes[-1]
      rows.append(Row(what, told, "%", predicted, headline=last))
    lost.append(f"{100 * (1 - best[-1]):.1f} % (reported: {100 - rows[-1].reported:.1f} %, {name})")
    more.append(f"{100 * (1 - tree[-1]):.1f} %")
  headline = config.headline
  seconds = config.networks[headline.network].seconds
  own = seconds[0] / seconds[config.nodes.index(headline.nodes)]
  remarks = (
    f'The abstract says {headline.reported:g} % on "4253 KNL cores". That is no multiple of {config.cores}; '
    f"{headline.nodes} nodes have {config.cores * headline.nodes} cores, so that two digits are most likely swapped. "
    f"That row has the abstract's figure (the seconds of the runs give {100 * own:.1f} %); the others are ratios of "
    "the reported seconds of the runs.",
    "*What is not known.* Batch size and steps of a run, hence the seconds of a step: no prediction without a fit is "
    f"possible. With a network's bytes at the full rate of `{config.cluster}` the fit means a step of "
    f"{' and '.join(steps)}. If a step took longer, the exchange was as many times slower than the link.",
    "*Where it is off, and why.* Errors of efficiencies near 1 look small; the first column has no communication. "
    f"Of the time at {config.nodes[-1]} nodes {' and '.join(lost)} is predicted as lost. "
    "That is by the best all-reduce, whose bandwidth part, (p - 1) / p, is nearly flat after a few nodes as the "
    f"reported times are. The tree of the paper's algorithm, log2 p whole messages, loses {' and '.join(more)}: too "
    "much, and the MPI library may have used something better than it. Stragglers, which grow with p, and the file "
    "system are not in the model.",
  )
  fitted = f"seconds of a step over those of an exchange, for each network on {config.fitted} nodes."
  return Section("SC17: weak scaling on Cori", "configs/reproduce_sc17_weak.py", fitted, rows, TREE, remarks)
