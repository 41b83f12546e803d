"""You, Buluc, Demmel 2017, arXiv 1708.02983: eight GPUs on a host, as a timeline of the parts of a round.

A round uses the examples of one batch of each of P workers. In units of Original EASGD's round: messages of the
parameters, copies of the examples, and the rest (forward, backward, updates). Two things are not known: whether the
workers of Original EASGD compute in turns, as the order of its algorithm says, or at the same time; and how the
exchange of Sync EASGD is made, by the paper's tree or by something else.
"""

import statistics
from typing import NamedTuple

from ddl.perf import bounds, cluster_file, networks
from ddl.perf.cluster import LinkModel
from ddl.perf.collectives import ALL_REDUCE, BROADCAST, REDUCE
from ddl.perf.layers import FLOAT, params_bytes
from experiments.papers import sc17_knl
from experiments.papers.page import (
  HEADLINE,
  PRODUCT,
  SECONDARY,
  Config,
  Prediction,
  ReportedRow,
  Section,
  errors,
  remarks,
  table,
)

TOGETHER, TURNS, STAGED = "computing together", "computing in turns", "together, staged through the host"
ORIGINAL, SYNC1, SYNC2, SYNC3 = "Original EASGD", "Sync EASGD 1", "Sync EASGD 2", "Sync EASGD 3"


def round_robin_seconds(nbytes: float, workers: int, link: LinkModel) -> float:
  """p (L + n G): one worker after the other, one way (arXiv 1708.02983); a tree takes log2 p of them instead."""
  return workers * link.seconds(nbytes)


class GpuRound(NamedTuple):
  """A round's parts in shares of Original EASGD's round. Forward, backward and both updates are one: `computing`."""

  host_parameters: float  # between CPU and GPUs
  device_parameters: float  # between GPUs
  data: float
  computing: float
  hidden: float = 0.0  # of the parameters, behind data and computing

  @property
  def total(self) -> float:
    """All parts, less what is hidden."""
    return self.host_parameters + self.device_parameters + self.data + self.computing - self.hidden

  @property
  def communication(self) -> float:
    """Share of the round in which nothing is computed."""
    return 1 - self.computing / self.total


def rounds(config: Config, reading: str) -> dict[str, GpuRound]:
  """Return the round of each method; one message follows from the share of the parameters, the computing from the rest.

  TURNS: in Original EASGD the computing of a worker follows that of the one before. STAGED: an exchange sends
  2 (p - 1) / p messages; through the host each is copied twice, between GPUs once, and only the broadcast half hides.
  """
  workers = config.workers
  message = config.parameters / (2 * round_robin_seconds(0, workers, LinkModel(1.0, 1.0)))
  rest = 1 - config.parameters - config.data
  original = GpuRound(2 * round_robin_seconds(0, workers, LinkModel(message, 1.0)), 0.0, config.data, rest)
  computing = rest / workers if reading == TURNS else rest
  beside = config.data + computing  # copies and passes run beside the exchange
  if reading == STAGED:
    exchange = ALL_REDUCE["ring"](1.0, workers, LinkModel(0.0, 1 / message))
    second = GpuRound(0.0, exchange / 2, config.data, computing)
    third = second._replace(hidden=min(second.device_parameters / 2, beside))
  else:
    exchange = sum(way["tree"](0, workers, LinkModel(message, 1.0)) for way in (REDUCE, BROADCAST))
    second = GpuRound(0.0, exchange, config.data, computing)
    third = second._replace(hidden=beside + exchange - bounds.round_seconds(step=beside, message=exchange, delay=1))
  return {ORIGINAL: original, SYNC1: GpuRound(exchange, 0.0, config.data, computing), SYNC2: second, SYNC3: third}


def gains(found: dict[str, GpuRound]) -> dict[str, float]:
  """Return the gains of Sync EASGD 1 over the original, 2 over 1, 3 over 2, and 3 over the original."""
  original, first, second, third = (found[name].total for name in (ORIGINAL, SYNC1, SYNC2, SYNC3))
  return {"first": original / first, "second": first / second, "third": second / third, "whole": original / third}


NAMES = {
  "first": f"{SYNC1} over {ORIGINAL}",
  "second": f"{SYNC2} over 1",
  "third": f"{SYNC3} over 2",
  "whole": f"{SYNC3} over {ORIGINAL}",
}


def section(config: Config, weak: Section) -> Section:
  """Table of the readings. weak: weak scaling of the same paper, where an exchange is judged too."""
  readings = {reading: rounds(config, reading) for reading in (TOGETHER, TURNS, STAGED)}
  share = 100 * readings[TOGETHER][ORIGINAL].communication
  fits = {reading: Prediction(share, fitted=True) for reading in readings}
  rows = [
    ReportedRow(f"{ORIGINAL}, communication", 100 * (config.parameters + config.data), "%", fits, source=SECONDARY)
  ]
  for key, name in NAMES.items():
    predicted = {reading: Prediction(gains(found)[key]) for reading, found in readings.items()}
    whole = key == "whole"  # the abstract's, and the product of the three others
    source, kind = ("", PRODUCT) if whole else (SECONDARY, HEADLINE)
    rows.append(ReportedRow(name, config.gains[key], "x", predicted, source=source, kind=kind))
  predicted = {reading: Prediction(100 * found[SYNC3].communication) for reading, found in readings.items()}
  rows.append(ReportedRow(f"{SYNC3}, communication", config.left, "%", predicted))
  cells = [
    (f"{name}, {reading}", *(f"{100 * each:.1f}" for each in parts), f"{100 * parts.total:.1f}")
    for reading, found in readings.items()
    for name, parts in found.items()
  ]
  head = ("share of Original EASGD's round, %", "CPU-GPU parameters", "GPU-GPU parameters", "CPU-GPU data")
  parts = table((*head, "forward, backward, updates", "hidden", "total"), cells)
  *text, law = _text(config, readings, weak)
  fitted = (
    f"the ratio of computing to a message, on the {share:.0f} % of communication of Original EASGD "
    f"({100 * config.parameters:.0f} % parameters and {100 * config.data:.0f} % data)."
  )
  title = f"SC17: {config.workers} GPUs, LeNet on MNIST"
  found = [parts, *text, law, _law(config.law)]
  return Section(title, "configs/reproduce_sc17_gpus.py", fitted, rows, TOGETHER, found)


def _text(config: Config, readings: dict[str, dict[str, GpuRound]], weak: Section) -> list[str]:
  """Remarks."""
  first, share = readings[TOGETHER][SYNC1], 100 * readings[TOGETHER][ORIGINAL].communication
  staged = readings[STAGED]
  exposed = staged[SYNC3].device_parameters - staged[SYNC3].hidden
  link, nbytes = cluster_file.named(config.cluster).network.between, params_bytes(networks.table(config.network))
  layers = [FLOAT * layer.params for layer in networks.table(config.network)]
  visit = 2 * link.seconds(nbytes)
  left = config.left / config.gains.whole  # % of Original EASGD's time
  room = 100 / config.gains.first - 100 * (first.computing + first.data)
  tree = 100 * first.host_parameters
  return remarks(
    "sc17_gpus",
    config=config,
    megabytes=nbytes / 1e6,
    visit_ms=1e3 * visit,
    rest_us=1e6 * (1 - config.parameters - config.data) * visit / config.parameters,
    share=share,
    other=100 - share,
    left=left,
    computing=100 / config.gains.whole - left,
    room=room,
    tree=tree,
    cheaper=tree / room,
    packed=sum(map(link.seconds, layers)) / link.seconds(sum(layers)),
    law_megabytes=params_bytes(networks.table(config.law.network)) / 1e6,
    staged=gains(staged),
    staged_exchange=100 * staged[SYNC1].host_parameters,
    staged_message=100 * config.parameters / (2 * config.workers),
    staged_left=100 * staged[SYNC3].communication,
    staged_parameters=100 * exposed / staged[SYNC3].total,
    ring=100 * statistics.median(errors(weak, sc17_knl.BEST)),
    tree_weak=100 * statistics.median(errors(weak, sc17_knl.TREE)),
  )


def _law(law: Config) -> str:
  link, nbytes = cluster_file.named(law.cluster).network.between, params_bytes(networks.table(law.network))
  cells = []
  for workers in law.workers:
    robin, tree = round_robin_seconds(nbytes, workers, link), BROADCAST["tree"](nbytes, workers, link)
    cells.append((str(workers), f"{robin:.3f} s", f"{tree:.3f} s", f"{robin / tree:.3g}"))
  return table(("workers", "one after the other", "tree", "ratio"), cells)
