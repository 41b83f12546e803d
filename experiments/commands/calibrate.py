"""`python run.py calibrate`: measure this machine with several processes, and save it as the cluster `measured`.

It measures training steps of ddl's models, and collectives over loopback or the network between the processes. All
processes compute at the same time, because steps are slower on shared cores.
"""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from ddl import hosts
from ddl.perf import cluster_file
from ddl.perf.units import bytes_text, percent, seconds_text
from ddl.run.folder import about
from ddl.run.workdir import writable
from experiments.bench import calibration, microbench
from experiments.bench.calibration import Calibration
from experiments.command_line import shared_flags
from experiments.command_line.config_flag import CommandLine

JSON = shared_flags.json()
PROCESSES = shared_flags.processes()
PASSES = 7  # measurements of each block
UNSEEN = 1e15  # bytes/s, above any memory bandwidth: with a larger fitted rate, memory traffic takes no measurable time


def main(line: CommandLine) -> int:
  """Measure the machine, print the fits and save them; return the exit code."""
  if hosts.processes() == 1:
    writable(cluster_file.path().parent, "XDG_CACHE_HOME (~/.cache by default)")
    return microbench.launch("calibrate", PROCESSES.value if PROCESSES.present else 2)
  blocks, work = microbench.prepare(microbench.join())
  microbench.progress(f"measuring {len(blocks)} blocks, {PASSES} times, interleaved")
  solved = calibration.solve(work, microbench.interleaved(blocks, PASSES))
  if hosts.is_main():
    figures = record(solved, line.words)
    cluster_file.save(solved.cluster, figures)
    print("\n".join([*lines(solved), f"saved as cluster '{cluster_file.MEASURED}' in {cluster_file.path()}"]))
    if JSON.value:
      Path(JSON.value).write_text(cluster_file.path().read_text())
  return 0


def record(solved: Calibration, command: Sequence[str]) -> dict[str, Any]:
  """Return the figures saved with the cluster: all measurements with errors, the command, device and time."""
  return {
    "measured_at": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
    "about": about(command, device=jax.devices()[0].device_kind, processes=jax.process_count()),
    "rates": {kind: rates._asdict() for kind, rates in solved.rates.items()},
    "efficiencies": {kind: {"best": curve.best, "half": curve.half} for kind, curve in solved.efficiencies.items()},
    "links": {name: link._asdict() for name, link in solved.links.items()},
    "overhead": solved.overhead,
    "waiting": solved.waiting,
    "measurements": solved.rows,
  }


def lines(solved: Calibration) -> list[str]:
  """Format each fit with its measurements and errors as lines of text."""
  out = [f"{'':36}{'measured':>12}{'fitted':>12}{'error':>9}"]
  for kind in dict.fromkeys(row["fit"] for row in solved.rows):
    rows = [row for row in solved.rows if row["fit"] == kind]
    middle = float(np.median([abs(row["error"]) for row in rows]))
    out.append(f"{kind}: {_fit_text(solved, kind)}; median error {percent(middle)}")
    for row in rows:
      times = "".join(f"{seconds_text(row[key]):>12}" for key in ("measured_s", "predicted_s"))
      out.append(f"  {row['of']:34}{times}{100 * row['error']:+8.1f} %")
  device = solved.cluster.device
  out.append(
    f"peak {device.peak / 1e9:.3g} GFLOP/s and {bytes_text(device.memory_bandwidth)}/s per process while all compute; "
    f"memory {bytes_text(device.memory)} each"
  )
  out.append(
    f"R_O = {solved.overhead:.3g}: seconds of input and dispatch divided by seconds of compute, median over the models"
  )
  overlap = "overlap with steps" if solved.cluster.overlap else "never overlap with steps on this backend"
  return [*out, f"exchanges {overlap}"]


def _fit_text(solved: Calibration, kind: str) -> str:
  if kind in solved.links:
    link = solved.links[kind]
    return f"latency {seconds_text(link.latency)}, bandwidth {bytes_text(link.bandwidth)}/s"
  if kind == "step":
    fixed, _, memory, feed = next(iter(solved.rates.values()))
    moving = f" + bytes / {bytes_text(memory)}/s" if memory < UNSEEN else ", with no measurable time for memory traffic"
    flop = ", ".join(f"{rates.flop / 1e9:.3g} ({kind})" for kind, rates in solved.rates.items())
    return f"{seconds_text(fixed)} + input / {bytes_text(feed)}/s + FLOP / GFLOP/s of {flop}{moving}"
  if kind == "sync_sgd":
    return f"the step, its messages, and {seconds_text(solved.waiting)} of waiting time per message"
  curve = solved.efficiencies[kind.partition(", ")[2]]
  return f"{percent(curve.best)} of the peak, half of it with {curve.half:.3g} examples"
