"""You, Buluc, Demmel 2017, arXiv 1708.02983 (SC17): eight GPUs on a host, a divided chip, weak scaling to 64 chips.

The GPU model is a timeline of a round, in which each of P workers processes one batch. Its parts, in units of Original
EASGD's round, are messages with parameters, copies of examples, and the rest (forward, backward, updates). Two things
are unknown: whether the workers of Original EASGD compute one after the other, as in the paper's pseudo-code, or at the
same time; and whether the exchange of Sync EASGD is the paper's tree or another algorithm.
"""

import statistics
from typing import NamedTuple

from ddl.perf import bounds, cluster_file, neural_networks
from ddl.perf.cluster import LinkModel
from ddl.perf.collectives import ALL_REDUCE, BROADCAST, REDUCE, all_reduce
from ddl.perf.layers import FLOAT, params_bytes
from experiments.papers import page
from experiments.papers.page import Config, Prediction, ReportedRow, Section

SAME, AMDAHL = "baseline: the same chip", "Amdahl's law fitted"
NOTHING, BEST, TREE = "baseline: no communication", "best all-reduce fitted", "tree fitted"
TOGETHER, TURNS, STAGED = "computing together", "computing in turns", "together, staged through the host"
ORIGINAL, SYNC1, SYNC2, SYNC3 = "Original EASGD", "Sync EASGD 1", "Sync EASGD 2", "Sync EASGD 3"


def round_robin_seconds(nbytes: float, workers: int, link: LinkModel) -> float:
  """Return the seconds of one message per worker, one after the other: p (L + n G); a tree takes log2 p (L + n G)."""
  return workers * link.seconds(nbytes)


class GpuRound(NamedTuple):
  """Parts of a round in units of Original EASGD's round."""

  host_parameters: float  # between CPU and GPUs
  device_parameters: float  # between GPUs
  data: float  # copies of examples
  computing: float  # forward and backward passes, and the updates of workers and center
  hidden: float = 0.0  # part of the parameter messages that overlaps `data` and `computing`

  @property
  def total(self) -> float:
    """Sum of the parts without the hidden part."""
    return self.host_parameters + self.device_parameters + self.data + self.computing - self.hidden

  @property
  def communication(self) -> float:
    """Share of the round that is not computing."""
    return 1 - self.computing / self.total


def rounds(config: Config, reading: str) -> dict[str, GpuRound]:
  """Predict the round of each method from the published shares of Original EASGD's round.

  The share of parameters gives the time of a message; the rest, except the copies of examples, is computing.

  Args:
    reading: assumption about the paper. TOGETHER: workers compute at the same time and exchange with a tree. TURNS: the
      workers of Original EASGD compute one after the other. STAGED: like TOGETHER, but an exchange sends 2 (p - 1) / p
      times the parameters, copies them twice through the host (Sync EASGD 1) or once between GPUs (2 and 3), and only
      its broadcast half can be hidden.
  """
  workers = config.workers
  message = config.parameters / (2 * round_robin_seconds(0, workers, LinkModel(1.0, 1.0)))
  rest = 1 - config.parameters - config.data
  original = GpuRound(2 * round_robin_seconds(0, workers, LinkModel(message, 1.0)), 0.0, config.data, rest)
  computing = rest / workers if reading == TURNS else rest
  busy = config.data + computing  # copies and passes, which overlap the exchange
  if reading == STAGED:
    exchange = ALL_REDUCE["ring"](1.0, workers, LinkModel(0.0, 1 / message))
    second = GpuRound(0.0, exchange / 2, config.data, computing)
    third = second._replace(hidden=min(second.device_parameters / 2, busy))
  else:
    exchange = sum(way["tree"](0, workers, LinkModel(message, 1.0)) for way in (REDUCE, BROADCAST))
    second = GpuRound(0.0, exchange, config.data, computing)
    third = second._replace(hidden=busy + exchange - bounds.round_seconds(step=busy, message=exchange, delay=1))
  return {ORIGINAL: original, SYNC1: GpuRound(exchange, 0.0, config.data, computing), SYNC2: second, SYNC3: third}


def gains(rounds: dict[str, GpuRound]) -> dict[str, float]:
  """Return the speed-ups of Sync EASGD 1 over Original EASGD, 2 over 1, 3 over 2, and 3 over Original EASGD."""
  original, first, second, third = (rounds[name].total for name in (ORIGINAL, SYNC1, SYNC2, SYNC3))
  return {"first": original / first, "second": first / second, "third": second / third, "whole": original / third}


NAMES = {
  "first": f"{SYNC1} over {ORIGINAL}",
  "second": f"{SYNC2} over 1",
  "third": f"{SYNC3} over 2",
  "whole": f"{SYNC3} over {ORIGINAL}",
}


def gpus(config: Config, weak: Section) -> Section:
  """Build the section on eight GPUs. weak: the weak scaling section, which tests the same exchange algorithms."""
  readings = {reading: rounds(config, reading) for reading in (TOGETHER, TURNS, STAGED)}
  share = 100 * readings[TOGETHER][ORIGINAL].communication
  fits = {reading: Prediction(share, fitted=True) for reading in readings}
  rows = [
    ReportedRow(f"{ORIGINAL}, communication", 100 * (config.parameters + config.data), "%", fits, source=page.SECONDARY)
  ]
  for key, name in NAMES.items():
    predicted = {reading: Prediction(gains(by_step)[key]) for reading, by_step in readings.items()}
    whole = key == "whole"  # from the abstract, and the product of the other three
    source, kind = ("", page.PRODUCT) if whole else (page.SECONDARY, page.HEADLINE)
    rows.append(ReportedRow(name, config.gains[key], "x", predicted, source=source, kind=kind))
  predicted = {reading: Prediction(100 * by_step[SYNC3].communication) for reading, by_step in readings.items()}
  rows.append(ReportedRow(f"{SYNC3}, communication", config.left, "%", predicted))
  link, table = cluster_file.named(config.cluster).network.between, neural_networks.table(config.network)
  layers = [FLOAT * layer.params for layer in table]
  return page.read(
    "sc17_gpus", rows, config=config, readings=readings, first=readings[TOGETHER][SYNC1], staged=readings[STAGED],
    gains=gains(readings[STAGED]), nbytes=params_bytes(table), visit=2 * link.seconds(params_bytes(table)),
    packed=sum(map(link.seconds, layers)) / link.seconds(sum(layers)), ring=statistics.median(page.errors(weak, BEST)),
    tree=statistics.median(page.errors(weak, TREE)), law_bytes=params_bytes(neural_networks.table(config.law.network)),
    law=_law(config.law),
  )  # fmt: skip


def _law(law: Config) -> list[tuple[int, float, float]]:
  """Return (workers, seconds of sequential messages, seconds of a tree broadcast) for each number of workers."""
  link, nbytes = cluster_file.named(law.cluster).network.between, params_bytes(neural_networks.table(law.network))
  return [(p, round_robin_seconds(nbytes, p, link), BROADCAST["tree"](nbytes, p, link)) for p in law.workers]


def amdahl(seconds: dict[int, float], fitted: int) -> dict[int, float]:
  """Predict T(p) = T(1) (s + (1 - s) / p) by Amdahl's law for each number of parts p; s follows from T(fitted)."""
  whole = seconds[1]
  serial = (seconds[fitted] / whole - 1 / fitted) / (1 - 1 / fitted)
  return {parts: whole * (serial + (1 - serial) / parts) for parts in seconds}


def parts(config: Config) -> Section:
  """Build the section on a chip divided into parts: seconds until the same accuracy is reached."""
  seconds = dict(config.seconds)
  curve, other = amdahl(seconds, config.fitted), amdahl(seconds, config.other)
  rows = []
  for p, reported in seconds.items():
    predicted = {SAME: Prediction(seconds[1]), AMDAHL: Prediction(curve[p], p == config.fitted)}
    if p > 1:
      rows.append(ReportedRow(f"{p} parts", reported, "s", predicted, source=page.SECONDARY))
  return page.read("sc17_parts", rows, config=config, seconds=seconds, other=other)


def efficiencies(config: Config, network: str, algorithm: str) -> tuple[list[float], float]:
  """Return the efficiency T(1) / T(N) for each number of nodes N, and the fitted seconds of a step.

  T(N) = step + all-reduce(N), T(1) = step. The step is fitted to the reported T(N) / T(1) at N = `config.fitted`.

  Args:
    network: key of `config.networks`.
    algorithm: algorithm of the all-reduce, such as "best" or "tree".
  """
  inputs, links = config.networks[network], cluster_file.named(config.cluster).network
  nbytes = params_bytes(neural_networks.table(inputs.network))
  reported = inputs.seconds[config.nodes.index(config.fitted)] / inputs.seconds[0]
  step = all_reduce(nbytes, config.fitted, links, algorithm) / (reported - 1)
  return [step / (step + all_reduce(nbytes, nodes, links, algorithm)) for nodes in config.nodes], step


def weak(config: Config) -> Section:
  """Build the section on weak scaling efficiency over the number of nodes."""
  rows, fits = [], {}  # fits: network -> seconds of a step, and efficiency lost on the most nodes: best, tree, reported
  headline = config.headline
  for name, inputs in config.networks.items():
    (best, step), (tree, _) = (efficiencies(config, name, algorithm) for algorithm in ("best", "tree"))
    for i, nodes in enumerate(config.nodes[1:], 1):
      abstract = (name, nodes) == (headline.network, headline.nodes)
      reported = headline.reported if abstract else 100 * inputs.seconds[0] / inputs.seconds[i]
      fitted = nodes == config.fitted
      predicted = {
        NOTHING: Prediction(100.0),
        BEST: Prediction(100 * best[i], fitted),
        TREE: Prediction(100 * tree[i], fitted),
      }
      source = page.PAPER if abstract else page.MEMORY
      kind = page.HEADLINE if nodes == config.nodes[-1] else page.BETWEEN
      label = f"{name}, {nodes} nodes ({config.cores * nodes} cores)"
      rows.append(ReportedRow(label, reported, "%", predicted, source=source, kind=kind))
    fits[name] = step, 1 - best[-1], 1 - tree[-1], 1 - rows[-1].reported / 100
  seconds = config.networks[headline.network].seconds
  own = seconds[0] / seconds[config.nodes.index(headline.nodes)]
  return page.read("sc17_weak", rows, config=config, headline=headline, own=own, fits=fits)
