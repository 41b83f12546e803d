"""`python run.py netbench`: compare training rounds over a slow link with the same rounds without communication.

Each host is a network namespace on this machine; its processes run on one core. A link with the given bandwidth and
latency connects the hosts. The command requires root and removes the namespaces at the end.
"""

import json
from pathlib import Path
from typing import Any

from absl import flags as absl_flags

from ddl.errors import OptionError
from ddl.perf.units import seconds_text
from ddl.run.folder import about, write_whole
from ddl.run.workdir import writable
from experiments.command_line import shared_flags
from experiments.command_line.config_flag import CommandLine
from experiments.netbench import measure, network
from experiments.netbench.cases import CASES, Measured
from experiments.netbench.group import ProcessGroup, process_group

JSON = shared_flags.json()
WORKDIR = shared_flags.workdir()
ALGORITHMS = shared_flags.algorithms()
BANDWIDTH = absl_flags.DEFINE_list(
  "bandwidth", ["200mbit"], "bandwidths of the link, measured in turn, such as 50mbit,1gbit"
)
LATENCY = absl_flags.DEFINE_string("latency", "5ms", "one-way latency of the link")
HOSTS = absl_flags.DEFINE_integer(
  "hosts", 2, "number of hosts, which are network namespaces", lower_bound=2, upper_bound=16
)
TURNS = shared_flags.turns()


def main(line: CommandLine) -> int:
  """Measure each algorithm on each link, print the tables and write the file --json; return the exit code."""
  rates, latency = [measure.bandwidth(text) for text in BANDWIDTH.value], measure.latency(LATENCY.value)
  if not rates:
    raise OptionError("bandwidth", "one or more bandwidths, such as 50mbit,200mbit,1gbit")
  names = ALGORITHMS.value or list(CASES)
  if unknown := [name for name in names if name not in CASES]:
    raise OptionError("algorithms", f"one or more of {', '.join(CASES)}", ",".join(unknown))
  network.check_rights()
  if WORKDIR.value:
    writable(Path(WORKDIR.value)).mkdir(parents=True, exist_ok=True)
  results: list[dict[str, Any]] = []
  with (
    network.namespace_network(HOSTS.value, rates[0], latency) as net,
    process_group(net, joined=True) as joined,
    process_group(net, joined=False) as isolated,
  ):
    for rate in rates:
      net.set(rate, latency)
      results += _on_link(net, joined, isolated, names)
      if JSON.value:  # after each link, because an interrupt or a failed host can stop the next one
        write_whole(Path(JSON.value), json.dumps({"about": about(line.words), "cases": results}, indent=2) + "\n")
  return 0


def _on_link(
  net: network.NamespaceNetwork, joined: ProcessGroup, isolated: ProcessGroup, names: list[str]
) -> list[dict[str, Any]]:
  """Measure and print the cases with the link's current settings; return their figures."""
  probed = measure.probe(net)
  configured = f"{measure.bandwidth_text(net.rate)}, {seconds_text(net.latency)} one way"
  observed = f"{measure.bandwidth_text(probed['rate'])}, {seconds_text(probed['latency'])}"
  print(f"link: {configured}; measured {observed}; shaped by {net.link.title}", flush=True)
  first, measured = measure.clocks(net, joined, isolated, TURNS.value)
  print(
    f"a step takes {seconds_text(measured.step)}, an exchange of all parameters {seconds_text(measured.exchange)}: "
    f"{measured.exchange / measured.step:.3g} steps\n{measure.aligned(measure.COLUMNS)}",
    flush=True,
  )
  speeds = []
  for name in names:
    row = first if name == "sync_sgd" else measure.row(net, joined, isolated, CASES[name](measured), TURNS.value)
    print(measure.line(row), flush=True)
    case = {**row._asdict(), "exposed": row.exposed, "error": row.error}
    speeds.append({"bandwidth": net.rate, "latency": net.latency, "hosts": net.hosts, "measured_link": probed, **case})
  print()
  if WORKDIR.value:
    _draw(net, measured, names, Path(WORKDIR.value))
  return speeds


def _draw(net: network.NamespaceNetwork, measured: Measured, names: list[str], folder: Path) -> None:
  """Train each algorithm over the link and plot accuracy over seconds."""
  from ddl.report.figure import save_all
  from experiments.netbench import accuracy  # imports the report, which only this function needs

  picture = accuracy.picture(net, accuracy.train(net, measured, names, folder))
  save_all(folder, [picture])
  print(f"{picture.alt}\n{folder / 'figures' / picture.name}.png\n", flush=True)
