"""The measurement: rounds with and without communication in turn, on one link speed after the other, and its table."""

import json
import math
import re
import statistics
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from ddl.costs.step_cost import synthetic
from ddl.errors import OptionError
from ddl.perf.cluster import LinkModel
from ddl.perf.units import bytes_text, seconds_text
from ddl.run import build
from ddl.run.build import param_shapes
from experiments.netbench import expected
from experiments.netbench.cases import CASES, SYNCHRONOUS, Case, Measured
from experiments.netbench.group import ProcessGroup
from experiments.netbench.host_process import experiment_of
from experiments.netbench.network import NamespaceNetwork, address

RATES = {"kbit": 1e3, "mbit": 1e6, "gbit": 1e9}
TIMES = {"us": 1e-6, "ms": 1e-3, "s": 1.0}


def bandwidth(text: str) -> float:
  """Return bits per second of "200mbit"."""
  return _number("bandwidth", text, RATES, (1e6, 1e10), "from 1mbit to 10gbit, such as 200mbit")


def latency(text: str) -> float:
  """Return seconds of "5ms"."""
  return _number("latency", text, TIMES, (0.0, 1.0), "at most 1s, one way, such as 5ms")


def _number(option: str, text: str, units: dict[str, float], limits: tuple[float, float], condition: str) -> float:
  match = re.fullmatch(r"([0-9]+(?:\.[0-9]*)?|\.[0-9]+)([a-z]+)", text.strip().lower())
  value = float(match[1]) * units[match[2]] if match and match[2] in units else math.nan
  if not limits[0] <= value <= limits[1]:
    raise OptionError(option, f"a number and one of {', '.join(units)}, {condition}", text)
  return value


def bandwidth_text(rate: float) -> str:
  """50e6 -> 50 Mbit/s."""
  return f"{rate / 1e9:.3g} Gbit/s" if rate >= 1e9 else f"{rate / 1e6:.3g} Mbit/s"


BOUND = 120.0  # seconds that no answer may take
PROBE = Path(__file__).with_name("probe.py")


class SpeedRow(NamedTuple):
  """Figures of a case on a link; seconds are of a round, medians over the turns."""

  label: str
  batch: int
  period: int
  delay: int
  nbytes: float  # that each host sends in a round
  alone: float  # without communication
  seconds: float
  ratio: float  # median of the turns' ratios
  link: float  # the link's own seconds for the messages
  predicted: float
  ratios: tuple[float, ...]  # of each turn

  @property
  def exposed(self) -> float:
    """Seconds that a round takes longer than without communication."""
    return self.seconds - self.alone

  @property
  def error(self) -> float:
    """Of the prediction."""
    return self.predicted / self.seconds - 1


def probe(network: NamespaceNetwork, seconds: float = 0.5) -> dict[str, float]:
  """Return what the link gives to one TCP connection: "latency", seconds one way, and "rate", bits per second."""
  words = [sys.executable, "-I", "-S", str(PROBE)]
  with network.start(1, [*words, "answer", address(1)], 0, stdout=subprocess.PIPE) as answering:
    try:
      assert answering.stdout
      answering.stdout.readline()
      asking = [*words, "ask", address(1), str(math.ceil(network.rate * seconds / 8))]
      with network.start(0, asking, 0, stdout=subprocess.PIPE) as process:
        return json.loads(process.communicate(timeout=60 + 20 * seconds)[0])
    except (subprocess.TimeoutExpired, json.JSONDecodeError) as error:
      raise ValueError("the link carried no plain transfer; it was removed") from error
    finally:
      answering.kill()


def clocks(
  network: NamespaceNetwork, joined: ProcessGroup, alone: ProcessGroup, turns: int
) -> tuple[SpeedRow, Measured]:
  """Measure synchronous SGD on the current link; return its row, and what a step and an exchange take."""
  first = row(network, joined, alone, SYNCHRONOUS, turns)
  exchange = max(first.exposed, first.link)
  measured = Measured(first.alone, exchange, exchange)
  streaming = _described(network, CASES["streaming_diloco"](measured))
  return first, measured._replace(fragment=exchange * max(streaming.messages) / first.link)


def row(network: NamespaceNetwork, joined: ProcessGroup, alone: ProcessGroup, case: Case, turns: int) -> SpeedRow:
  """Measure a case on the current link, with and without communication in turn."""
  groups, what = (joined, alone), f"{case.label} on {network.rate / 1e6:g} Mbit/s"
  question = {"case": {**case._asdict(), "steps_per_call": case.steps}}
  for group in groups:
    group.ask(question, what, BOUND)
    for _ in range(2):  # the first block has another call than those that follow
      group.seconds(case.steps, what, BOUND)
  pairs = [[group.seconds(case.steps, what, BOUND) / case.rounds for group in groups] for _ in range(turns)]
  ratios = tuple(both / one for both, one in pairs)
  seconds, without = (statistics.median(column) for column in zip(*pairs, strict=True))
  expect = _described(network, case)
  return SpeedRow(
    case.label, case.batch, case.period, case.delay, expect.nbytes, without, seconds, statistics.median(ratios),
    expect.link, expect.predicted(without / case.period), ratios,
  )  # fmt: skip


def _described(network: NamespaceNetwork, case: Case) -> expected.Expected:
  experiment = experiment_of(case._asdict(), network.hosts)
  params = param_shapes(build.make_model(experiment, synthetic("mlp", 8)))
  return expected.Expected(experiment, params, LinkModel(network.latency, network.rate / 8), case.period, case.overlap)


COLUMNS = {
  "algorithm": 17, "batch": 7, "period, delay": 14, "bytes": 9, "alone": 9, "round": 9, "ratio": 7, "link": 9,
  "exposed": 9, "predicted": 10, "error": 8,
}  # fmt: skip


def line(row: SpeedRow) -> str:
  """Return the cells of a row, aligned under those of the head."""
  return aligned((
    row.label, str(row.batch), f"{row.period}, {row.delay}", bytes_text(row.nbytes), seconds_text(row.alone),
    seconds_text(row.seconds), f"{row.ratio:.2f}", seconds_text(row.link), seconds_text(row.exposed),
    seconds_text(row.predicted), f"{100 * row.error:+.0f} %",
  ))  # fmt: skip


def aligned(cells: Iterable[str]) -> str:
  """Return a line of the table, the first cell to the left."""
  first, *others = zip(cells, COLUMNS.values(), strict=True)
  return "".join([first[0].ljust(first[1]), *(cell.rjust(width) for cell, width in others)])
