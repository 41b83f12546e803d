"""`python run.py plan`: examples, workers, servers, delay and period for a job on a cluster, and why."""

import json
import textwrap
from pathlib import Path
from typing import Any

from absl import flags

from ddl.perf import planner, tables
from ddl.perf.batch import Job
from ddl.perf.clusters import Cluster
from ddl.perf.memory import step_memory
from ddl.perf.tables.totals import params_bytes, train_flop
from ddl.perf.units import percent, seconds_text
from experiments import measured

CLUSTER = flags.DEFINE_string("cluster", "", "name of the cluster")
MODEL = flags.DEFINE_string("model", "", "name of a layer table, instead of --config")
BATCH = flags.DEFINE_integer("batch", 0, "examples per worker and step; 0: chosen", lower_bound=0)
WORKERS = flags.DEFINE_integer("workers", 0, "0: the config's, or with --model chosen", lower_bound=0)
SERVERS = flags.DEFINE_integer("servers", 0, "parameter servers; 0: chosen", lower_bound=0)
EFFICIENCY = flags.DEFINE_float("efficiency", 0.8, "of the workers, at least, where their number is chosen")
EXPOSED = flags.DEFINE_float("exposed", 0.05, "share of a round spent waiting for an exchange, at most")
JSON = flags.DEFINE_string("json", "", "file that the plan is written to")

WIDTH = 118
STARTING = 1e-5  # seconds


def main(config: Any) -> int:
  """Prints it; returns the exit code."""
  if not CLUSTER.value:
    raise ValueError(f"--cluster=NAME is missing; known are {', '.join(measured.clusters())}")
  cluster = measured.named(CLUSTER.value)
  if (config is None) == (not MODEL.value):
    raise ValueError(f"give either --config=FILE or --model=NAME; known models are {', '.join(tables.TABLES)}")
  workers = WORKERS.value or (config.workers if config is not None else 0)
  wish = planner.Wish(BATCH.value, workers, SERVERS.value, EFFICIENCY.value, EXPOSED.value)
  job = table_job(MODEL.value) if config is None else _config_job(config)
  calibrated = measured.load() if CLUSTER.value == measured.NAME else None
  found = planner.plan(job, cluster, wish, overhead=float(calibrated[1]["overhead"]) if calibrated else None)
  print(text(job, cluster, found))
  if JSON.value:
    Path(JSON.value).write_text(json.dumps(record(job, CLUSTER.value, found), indent=2) + "\n")
  return 0


def table_job(name: str) -> Job:
  """A network of `ddl.perf.tables`, trained with SGD with momentum."""
  table = tables.named(name)
  return Job(name, params_bytes(table), train_flop(table), step_memory(table, extra_copies=1), table)


def _config_job(config: Any) -> Job:
  from experiments import config as configs  # only now: a table needs none of it, nor its flags
  from experiments.plan_job import experiment_job

  return experiment_job(configs.build(config), config)


def text(job: Job, cluster: Cluster, found: planner.Plan) -> str:
  """The plan as a table, the predictions below it."""
  left = max(len(row.quantity) for row in found.rows) + 2
  middle = max(len(row.value) for row in found.rows) + 2
  lines = [f"{job.title} on {cluster.title}", *textwrap.wrap(f"source: {cluster.source}", WIDTH), ""]
  lines.append("quantity".ljust(left) + "value".ljust(middle) + "why; what limits it")
  for row in found.rows:
    why = textwrap.wrap(row.why, WIDTH - left - middle) + textwrap.wrap(f"limit: {row.limit}", WIDTH - left - middle)
    lines.append(row.quantity.ljust(left) + row.value.ljust(middle) + why[0])
    lines += [" " * (left + middle) + more for more in why[1:]]
  lines += ["", "predicted     setting                     per step    efficiency"]
  for speed in found.speeds:
    lines.append(
      f"{speed.algorithm:13} {speed.setting:27} {seconds_text(speed.seconds):11} {percent(speed.efficiency)}"
    )
  if found.settings.step < STARTING:
    lines += [
      "",
      f"A step of {seconds_text(found.settings.step)} is less than a device takes to start one: this cluster's",
    ]
    lines[-1] += " entry does not know that time, so that delays and periods come out far too long here."
  return "\n".join(lines)


def record(job: Job, cluster: str, found: planner.Plan) -> dict[str, Any]:
  """The plan for --json: seconds and bytes as numbers, the reasons as they are printed."""
  return {
    "job": job.title,
    "cluster": cluster,
    "examples": found.examples,
    "settings": found.settings._asdict(),
    "rows": [row._asdict() for row in found.rows],
    "speeds": [speed._asdict() for speed in found.speeds],
  }
