"""Processes of `scale --measure`: seconds of real steps, written to a file as JSON.

All processes compute in every measurement, as in a calibration: a single worker is one that exchanges nothing while
the others compute.
"""

import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ddl import hosts
from ddl.costs.workloads import SIZES


def measure(
  model: str, algorithms: Mapping[str, Mapping[str, Any]], *, workers: int, alone: int, together: int
) -> dict[str, dict[int, float]]:
  """Return, by algorithm, number of workers (1 and `workers`) -> seconds per step, the median of interleaved blocks.

  Args:
    model: of ddl.models, with the sizes that `scale` counts.
    algorithms: collective ones with their settings.
    workers: as many processes.
    alone, together: examples of a worker's step where it is the only one, and where there are all.

  Raises:
    ValueError: if a process fails; its output is on stderr.
  """
  with tempfile.TemporaryDirectory() as folder:
    task, result = Path(folder) / "task.json", Path(folder) / "result.json"
    settings = {"model": model, "algorithms": {k: dict(v) for k, v in algorithms.items()}, "workers": workers}
    task.write_text(json.dumps(settings | {"alone": alone, "together": together, "result": str(result)}))
    done = subprocess.run(
      [sys.executable, "-m", "ddl.costs.scale_process", str(task)],
      cwd=Path(__file__).parents[2],
      check=False,
      env=hosts.launched(),
    )
    if done.returncode or not result.exists():
      raise ValueError("the measurement failed; its errors stand above")
    found = json.loads(result.read_text())
  return {name: {1: found["alone"], workers: found["together"][name]} for name in algorithms}


def main(file: str) -> int:
  """Measure in each process; the main one writes the result."""
  hosts.follow_launcher()
  task = json.loads(Path(file).read_text())
  if hosts.processes() == 1 and task["workers"] > 1:
    return hosts.launch(task["workers"], [sys.executable, "-m", "ddl.costs.scale_process", file])
  from ddl.costs import microbench
  from ddl.costs import microbench as measure
  from ddl.costs.microbench import Case

  joined, sizes = measure.join(), SIZES.get(task["model"], ({}, []))[0]

  def block(name: str, hyper: dict[str, Any], batch: int) -> microbench.Block:
    trainer, experiment, _ = microbench.make_trainer(Case(task["model"], sizes, batch), name, hyper, joined)
    return microbench.trainer_blocks(trainer, experiment)[0]

  blocks = {"alone": block("independent", {}, task["alone"])}
  blocks |= {name: block(name, hyper, task["together"]) for name, hyper in task["algorithms"].items()}
  took = {name: microbench.typical(seconds) for name, seconds in microbench.in_turn(blocks, 5).items()}
  if hosts.is_main():
    Path(task["result"]).write_text(json.dumps({"alone": took.pop("alone"), "together": took}))
  return 0


if __name__ == "__main__":
  sys.exit(main(sys.argv[1]))
