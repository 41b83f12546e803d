"""`python run.py calibrate`: measure this machine with several processes at work, and keep it as `measured`.

Steps of the project's own models through its own trainer, and collectives over loopback or the network between the
processes. Everything is measured with all processes computing at once: on shared cores a step is slower then.
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
PASSES = 7  # blocks of each
UNSEEN = 1e15  # bytes per second, above any memory: the fit has no cost of bytes


def main(line: CommandLine) -> int:
  """Measure, print the fits and write them; return the exit code."""
  if hosts.processes() == 1:
    writable(cluster_file.path().parent, "XDG_CACHE_HOME (~/.cache by default)")
    return microbench.launch("calibrate", PROCESSES.value if PROCESSES.present else 2)
  blocks, work = microbench.prepare(microbench.join())
  microbench.progress(f"measuring {len(blocks)} blocks, {PASSES} times, interleaved")
  found = calibration.solve(work, microbench.interleaved(blocks, PASSES))
  if hosts.is_main():
    figures = record(found, line.words)
    cluster_file.save(found.cluster, figures)
    print("\n".join([*lines(found), f"saved as cluster '{cluster_file.MEASURED}' in {cluster_file.path()}"]))
    if JSON.value:
      Path(JSON.value).write_text(cluster_file.path().read_text())
  return 0


def record(found: Calibration, command: Sequence[str]) -> dict[str, Any]:
  """Return the figures kept beside the cluster: every measurement with its error, the command, device and time."""
  return {
    "measured_at": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
    "about": about(command, device=jax.devices()[0].device_kind, processes=jax.process_count()),
    "rates": {kind: rates._asdict() for kind, rates in found.rates.items()},
    "efficiencies": {kind: {"best": curve.best, "half": curve.half} for kind, curve in found.efficiencies.items()},
    "links": {name: link._asdict() for name, link in found.links.items()},
    "overhead": found.overhead,
    "waiting": found.waiting,
    "measurements": found.rows,
  }


def lines(found: Calibration) -> list[str]:
  """Return the fits as lines, each with its errors."""
  out = [f"{'':36}{'measured':>12}{'fitted':>12}{'error':>9}"]
  for kind in dict.fromkeys(row["fit"] for row in found.rows):
    rows = [row for row in found.rows if row["fit"] == kind]
    middle = float(np.median([abs(row["error"]) for row in rows]))
    out.append(f"{kind}: {_found(found, kind)}; median error {percent(middle)}")
    for row in rows:
      times = "".join(f"{seconds_text(row[key]):>12}" for key in ("measured_s", "predicted_s"))
      out.append(f"  {row['of']:34}{times}{100 * row['error']:+8.1f} %")
  device = found.cluster.device
  out.append(
    f"peak {device.peak / 1e9:.3g} GFLOP/s and {bytes_text(device.memory_bandwidth)}/s per process with all at work; "
    f"memory {bytes_text(device.memory)} each"
  )
  out.append(f"R_O = {found.overhead:.3g}: a worker's input and dispatch over its compute, median over the models")
  beside = "run beside the steps" if found.cluster.overlap else "never run beside the steps on this backend"
  return [*out, f"exchanges {beside}"]


def _found(found: Calibration, kind: str) -> str:
  if kind in found.links:
    link = found.links[kind]
    return f"latency {seconds_text(link.latency)}, bandwidth {bytes_text(link.bandwidth)}/s"
  if kind == "step":
    fixed, _, memory, feed = next(iter(found.rates.values()))
    moving = f" + bytes / {bytes_text(memory)}/s" if memory < UNSEEN else ", and no time for bytes that shows"
    flop = ", ".join(f"{rates.flop / 1e9:.3g} ({kind})" for kind, rates in found.rates.items())
    return f"{seconds_text(fixed)} + input / {bytes_text(feed)}/s + FLOP / GFLOP/s of {flop}{moving}"
  if kind == "sync_sgd":
    return f"the step, its messages, and {seconds_text(found.waiting)} of waiting per message"
  curve = found.efficiencies[kind.partition(", ")[2]]
  return f"{percent(curve.best)} of the peak, half of it with {curve.half:.3g} examples"
