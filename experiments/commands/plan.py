"""`python run.py plan`: what to run for a job on a cluster, and why: examples, workers, servers, delay and period."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from absl import flags

from ddl import files
from ddl.config.experiment import Experiment
from ddl.costs import clusters
from ddl.costs.plan_text import text
from ddl.perf import tables
from ddl.perf.patterns import Pattern
from ddl.perf.planning import planner
from ddl.perf.planning.batch import Job
from ddl.perf.planning.formats import FORMATS
from ddl.perf.planning.placement import place, table_job
from ddl.perf.planning.scaling import Recorded
from ddl.report.reader import read_run
from ddl.run import folder as run_dir
from ddl.run.metrics import SCALE
from experiments.command_line import shared_flags
from experiments.command_line.config_flag import CommandLine


def read(folder: str) -> float:
  """Return B_simple in examples: the last one of the run, which grows in training (arXiv 1812.06162).

  ValueError, with what would help, for a folder that is no run's or has no noise scale.
  """
  path = files.local(folder)
  if not (path / run_dir.METRICS).exists():
    raise ValueError(f"--run={folder}: no {run_dir.METRICS} there; give the folder of a run, such as runs/NAME/seed-0")
  files.regular(path / run_dir.METRICS)  # else a pipe would be waited for
  found = read_run(path).columns.get(SCALE, np.empty(0))
  found = found[np.isfinite(found)]
  if not len(found):
    raise ValueError(f"--run={folder} has measured no noise scale; train it with --config.noise_batches=16")
  return float(found[-1])


shared_flags.cluster()
MODEL = shared_flags.model()
BATCH = shared_flags.batch()
WORKERS = shared_flags.workers()
SERVERS = shared_flags.servers()
EFFICIENCY = flags.DEFINE_float("efficiency", 0.8, "of the workers, at least, where their number is chosen")
EXPOSED = flags.DEFINE_float("exposed", 0.05, "share of a round spent waiting for an exchange, at most")
GRADIENTS = flags.DEFINE_enum("gradients", "float32", list(FORMATS), "number format in which gradients are sent")
RUN = flags.DEFINE_string("run", "", "a run's folder, whose gradient noise scale is the critical batch")
JSON = shared_flags.json()


def main(line: CommandLine) -> int:
  """Print the plan; return the exit code."""
  config = line.config
  name, cluster = shared_flags.one_cluster()
  if (config is None) == (not MODEL.value):
    raise ValueError(f"give either --config=FILE or --model=NAME; known models are {', '.join(tables.TABLES)}")
  if WORKERS.value and not (WORKERS.value.isdecimal() and int(WORKERS.value)):
    raise ValueError(
      f"--workers={WORKERS.value} is invalid: must be one integer of 1 or more; default: the config's, or chosen"
    )
  workers = int(WORKERS.value or 0) or (config.workers if config is not None else 0)
  batch, origin, micro = BATCH.value or 0, "as given", config.microbatches if config is not None else 1
  if not batch and config is not None:
    batch, origin = config.batch, "config.batch, which --batch overrides"
  if BATCH.value and batch % micro:
    raise ValueError(f"--batch must be a multiple of config.microbatches, {micro}, got {batch}.")
  noise = read(RUN.value) if RUN.value else 0.0
  wish = planner.Wish(
    batch, workers, SERVERS.value or 0, EFFICIENCY.value, EXPOSED.value, origin, GRADIENTS.value, noise, micro
  )
  own = None
  if config is None:
    placed = table_job(MODEL.value, cluster, workers)
  else:
    job, own = _configured(config, workers)
    placed = place(job, cluster)
  job, cluster = placed.job, placed.cluster
  calibrated = clusters.load() if name == clusters.NAME else None
  overhead = calibrated[1].get("overhead") if calibrated else None
  found = planner.plan(job, cluster, wish, overhead, own)
  sends = _sends(*own, found.settings.workers) if own else ""
  ends = {words: planner.plan(end, on, _as_planned(wish, found)) for words, end, on in placed.ends}
  print(text(job, name, cluster, found, sends, ends))
  if JSON.value:
    Path(JSON.value).write_text(json.dumps(record(job, name, found, ends) | {"sends": sends}, indent=2) + "\n")
  return 0


def _as_planned(wish: planner.Wish, found: planner.Plan) -> planner.Wish:
  """The wish for the plan's own numbers of examples, workers and servers."""
  s = found.settings
  return wish._replace(batch=s.examples, micro=s.micro, workers=s.workers, servers=s.servers)


def _configured(config: Any, workers: int) -> tuple[Job, tuple[str, Recorded]]:
  """Return the config's experiment as a job, and its algorithm by the name that folders and tables have."""
  from ddl.costs.cluster_clock import pattern_of, vector
  from ddl.costs.step_cost import experiment_job  # here: a table needs none of it
  from ddl.run.build import build

  experiment = Experiment.from_config(config)
  job = experiment_job(build(experiment), workers)

  def recorded(workers: int) -> Pattern:
    there = Experiment.from_json(config.to_dict() | {"workers": workers})
    return pattern_of(there.make_algorithm(), vector(job.params_bytes), workers)

  return job, (experiment.label, recorded)


def _sends(name: str, recorded: Recorded, workers: int) -> str:
  """What a worker of the config's algorithm sends at its own settings, in words."""
  from ddl.comparison import record as traffic_text

  return f"{name}, as configured, sends {traffic_text.sends(recorded(workers))}" if workers > 1 else ""


def record(job: Job, cluster: str, found: planner.Plan, ends: Mapping[str, planner.Plan]) -> dict[str, Any]:
  """Return the plan for --json: seconds and bytes as numbers, the reasons as they are printed."""
  return {
    "job": job.title,
    "cluster": cluster,
    "recommended": found.advice.speed._asdict(),
    "advice": found.advice.lines,
    "examples": found.settings.examples,
    "enough": found.enough and found.enough._asdict(),
    "settings": found.settings._asdict(),
    "sizes": [
      line.size._asdict()
      | {"step": line.step, "relative": line.relative}
      | {"efficiency": {name: cell._asdict() for name, cell in line.cells.items()}}
      for line in found.lines
    ],
    "rows": [row._asdict() for row in found.rows],
    "speeds": [speed._asdict() for speed in found.speeds],
    "ends": [  # of a range of a step's efficiency
      {"shares": words, "step": end.settings.step, "speeds": [speed._asdict() for speed in end.speeds]}
      for words, end in ends.items()
    ],
  }
