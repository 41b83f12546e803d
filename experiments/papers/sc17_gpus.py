"""You, Buluc, Demmel 2017, arXiv 1708.02983: eight GPUs on a host, as a timeline of the parts of a round.

A round uses the examples of one batch of each of P workers. In units of Original EASGD's round: messages of the
parameters, copies of the examples, and the rest (forward, backward, updates). One thing is not known: whether the
workers of Original EASGD compute in turns, as the order of its algorithm says, or at the same time.
"""

from typing import NamedTuple

from ddl.perf import hardware
from ddl.perf.comm import server
from ddl.perf.comm.collectives import BROADCAST, REDUCE
from ddl.perf.hardware.network import Link
from ddl.perf.planning import delays
from ddl.perf.tables import TABLES
from ddl.perf.tables.totals import FLOAT, params_bytes
from experiments.papers.page import Config, Prediction, Row, Section, remarks, table

TURNS, TOGETHER = "computing in turns", "computing together"
ORIGINAL, SYNC1, SYNC2, SYNC3 = "Original EASGD", "Sync EASGD 1", "Sync EASGD 2", "Sync EASGD 3"


class Round(NamedTuple):
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


def rounds(config: Config, *, turns: bool) -> dict[str, Round]:
  """Return the round of each method; one message follows from the share of the parameters, the computing from the rest.

  turns: in Original EASGD the computing of a worker follows that of the one before.
  """
  workers = config.workers
  message = Link(config.parameters / (2 * server.round_robin_seconds(0, workers, Link(1.0, 1.0))), float("inf"))
  rest = 1 - config.parameters - config.data
  original = Round(2 * server.round_robin_seconds(0, workers, message), 0.0, config.data, rest)
  exchange = REDUCE["tree"](0, workers, message) + BROADCAST["tree"](0, workers, message)
  computing = rest / workers if turns else rest
  first = Round(exchange, 0.0, config.data, computing)
  second = Round(0.0, exchange, config.data, computing)
  beside = config.data + computing  # copies and passes run beside the exchange
  third = second._replace(hidden=beside + exchange - delays.round_seconds(step=beside, message=exchange, delay=1))
  return {ORIGINAL: original, SYNC1: first, SYNC2: second, SYNC3: third}


def gains(found: dict[str, Round]) -> dict[str, float]:
  """Return the gains of Sync EASGD 1 over the original, 2 over 1, 3 over 2, and 3 over the original."""
  original, first, second, third = (found[name].total for name in (ORIGINAL, SYNC1, SYNC2, SYNC3))
  return {"first": original / first, "second": first / second, "third": second / third, "whole": original / third}


NAMES = {
  "first": f"{SYNC1} over {ORIGINAL}",
  "second": f"{SYNC2} over 1",
  "third": f"{SYNC3} over 2",
  "whole": f"{SYNC3} over {ORIGINAL}",
}


def section(config: Config) -> Section:
  """Table of both readings."""
  turns, together = rounds(config, turns=True), rounds(config, turns=False)
  share = 100 * turns[ORIGINAL].communication
  both = {TURNS: Prediction(share, fitted=True), TOGETHER: Prediction(share, fitted=True)}
  rows = [Row(f"{ORIGINAL}, communication", 100 * (config.parameters + config.data), "%", both)]
  for key, name in NAMES.items():
    predicted = {TURNS: Prediction(gains(turns)[key]), TOGETHER: Prediction(gains(together)[key])}
    rows.append(Row(name, config.gains[key], "x", predicted))
  left = {TURNS: turns[SYNC3], TOGETHER: together[SYNC3]}
  predicted = {column: Prediction(100 * found.communication) for column, found in left.items()}
  rows.append(Row(f"{SYNC3}, communication", config.left, "%", predicted))
  cells = [
    (f"{name}, {reading}", *(f"{100 * each:.1f}" for each in parts), f"{100 * parts.total:.1f}")
    for reading, found in ((TURNS, turns), (TOGETHER, together))
    for name, parts in found.items()
  ]
  head = ("share of Original EASGD's round, %", "CPU-GPU parameters", "GPU-GPU parameters", "CPU-GPU data")
  parts = table((*head, "forward, backward, updates", "hidden", "total"), cells)
  unknown, off, law = _text(config, together[SYNC1], share)
  fitted = (
    f"the ratio of computing to a message, on the {share:.0f} % of communication of Original EASGD "
    f"({100 * config.parameters:.0f} % parameters and {100 * config.data:.0f} % data)."
  )
  title = f"SC17: {config.workers} GPUs, LeNet on MNIST"
  return Section(
    title, "configs/reproduce_sc17_gpus.py", fitted, rows, TURNS, [parts, unknown, off, law, _law(config.law)]
  )


def _text(config: Config, first: Round, share: float) -> list[str]:
  """Remarks. first: Sync EASGD 1, computing together; share: % of communication of Original EASGD."""
  link, nbytes = hardware.named(config.cluster).network.between, params_bytes(TABLES[config.network])
  layers = [FLOAT * layer.params for layer in TABLES[config.network]]
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
    law_megabytes=params_bytes(TABLES[config.law.network]) / 1e6,
  )


def _law(law: Config) -> str:
  link, nbytes = hardware.named(law.cluster).network.between, params_bytes(TABLES[law.network])
  cells = []
  for workers in law.workers:
    robin, tree = server.round_robin_seconds(nbytes, workers, link), BROADCAST["tree"](nbytes, workers, link)
    cells.append((str(workers), f"{robin:.3f} s", f"{tree:.3f} s", f"{robin / tree:.3g}"))
  return table(("workers", "one after the other", "tree", "ratio"), cells)
