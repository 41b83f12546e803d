"""Measure rounds with and without communication, alternating between the two, and format the table of results."""

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
  """Parse a bandwidth such as "200mbit" into bits per second."""
  return _number("bandwidth", text, RATES, (1e6, 1e10), "from 1mbit to 10gbit (such as 200mbit)")


def latency(text: str) -> float:
  """Parse a latency such as "5ms" into seconds."""
  return _number("latency", text, TIMES, (0.0, 1.0), "and at most 1s one way (such as 5ms)")


def _number(option: str, text: str, units: dict[str, float], limits: tuple[float, float], condition: str) -> float:
  match = re.fullmatch(r"([0-9]+(?:\.[0-9]*)?|\.[0-9]+)([a-z]+)", text.strip().lower())
  value = float(match[1]) * units[match[2]] if match and match[2] in units else math.nan
  if not limits[0] <= value <= limits[1]:
    raise OptionError(option, f"a number with a unit ({', '.join(units)}) {condition}", text)
  return value


def bandwidth_text(rate: float) -> str:
  """Format bits per second: 50e6 -> 50 Mbit/s."""
  return f"{rate / 1e9:.3g} Gbit/s" if rate >= 1e9 else f"{rate / 1e6:.3g} Mbit/s"


BOUND = 120.0  # timeout of a reply in seconds
PROBE = Path(__file__).with_name("probe.py")


class SpeedRow(NamedTuple):
  """Measurements of a case on a link; seconds are per round, medians over several turns (see `row`)."""

  label: str
  batch: int
  period: int
  delay: int
  nbytes: float  # sent by each host per round
  alone: float  # without communication
  seconds: float
  ratio: float  # median over the turns of seconds / alone
  link: float  # seconds for which the messages occupy the link, by the cost model
  predicted: float  # seconds by the cost model
  ratios: tuple[float, ...]  # seconds / alone, one per turn

  @property
  def exposed(self) -> float:
    """Seconds of communication that are not hidden: seconds - alone."""
    return self.seconds - self.alone

  @property
  def error(self) -> float:
    """Relative error of the prediction: predicted / measured - 1."""
    return self.predicted / self.seconds - 1


def probe(network: NamespaceNetwork, seconds: float = 0.5) -> dict[str, float]:
  """Measure one TCP connection over the link: "latency" in seconds, one way, and "rate" in bits per second."""
  words = [sys.executable, "-I", "-S", str(PROBE)]
  with network.start(1, [*words, "server", address(1)], 0, stdout=subprocess.PIPE) as server:
    try:
      assert server.stdout
      server.stdout.readline()
      client = [*words, "client", address(1), str(math.ceil(network.rate * seconds / 8))]
      with network.start(0, client, 0, stdout=subprocess.PIPE) as process:
        return json.loads(process.communicate(timeout=60 + 20 * seconds)[0])
    except (subprocess.TimeoutExpired, json.JSONDecodeError) as error:
      raise ValueError(
        f"the test transfer over the emulated link failed ({type(error).__name__}). The link is removed again; no "
        "cleanup is needed."
      ) from error
    finally:
      server.kill()


def clocks(
  network: NamespaceNetwork, joined: ProcessGroup, isolated: ProcessGroup, turns: int
) -> tuple[SpeedRow, Measured]:
  """Measure synchronous SGD on the current link; return its table row, and the seconds of a step and of exchanges.

  The arguments are those of `row`.
  """
  first = row(network, joined, isolated, SYNCHRONOUS, turns)
  exchange = max(first.exposed, first.link)
  measured = Measured(first.alone, exchange, exchange)
  streaming = _described(network, CASES["streaming_diloco"](measured))
  return first, measured._replace(fragment=exchange * max(streaming.messages) / first.link)


def row(network: NamespaceNetwork, joined: ProcessGroup, isolated: ProcessGroup, case: Case, turns: int) -> SpeedRow:
  """Measure a case on the current link, alternating between rounds with and without communication.

  Args:
    joined: processes that communicate.
    isolated: processes that do not.
    turns: number of measurements; each measures `case.rounds` rounds of both groups.
  """
  groups, what = (joined, isolated), f"{case.label} on {network.rate / 1e6:g} Mbit/s"
  request = {"case": {**case._asdict(), "steps_per_call": case.steps}}
  for group in groups:
    group.request(request, what, BOUND)
    for _ in range(2):  # the first block compiles a call that later blocks do not use
      group.seconds(case.steps, what, BOUND)
  pairs = [[group.seconds(case.steps, what, BOUND) / case.rounds for group in groups] for _ in range(turns)]
  ratios = tuple(communicating / computing for communicating, computing in pairs)
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
  "algorithm": 17, "batch": 7, "period, delay": 14, "bytes": 9, "compute": 9, "round": 9, "ratio": 7, "link": 9,
  "exposed": 9, "predicted": 10, "error": 8,
}  # fmt: skip


def line(row: SpeedRow) -> str:
  """Format a row of the table."""
  return aligned((
    row.label, str(row.batch), f"{row.period}, {row.delay}", bytes_text(row.nbytes), seconds_text(row.alone),
    seconds_text(row.seconds), f"{row.ratio:.2f}", seconds_text(row.link), seconds_text(row.exposed),
    seconds_text(row.predicted), f"{100 * row.error:+.0f} %",
  ))  # fmt: skip


def aligned(cells: Iterable[str]) -> str:
  """Align the cells of a table row: the first to the left, the others to the right."""
  first, *others = zip(cells, COLUMNS.values(), strict=True)
  return "".join([first[0].ljust(first[1]), *(cell.rjust(width) for cell, width in others)])
