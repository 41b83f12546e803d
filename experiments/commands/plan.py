"""`python run.py plan`: examples, workers, servers, delay and period for a job on a cluster, and why."""

import json
import textwrap
from pathlib import Path
from typing import Any

from absl import flags

from ddl.perf import tables
from ddl.perf.comm.patterns import Pattern
from ddl.perf.hardware import Cluster
from ddl.perf.planning import algorithm_rates, planner
from ddl.perf.planning.batch import Job
from ddl.perf.planning.scaling import Recorded
from ddl.perf.step.memory import step_memory
from ddl.perf.tables.totals import params_bytes, parts
from ddl.perf.units import percent, rate_text, seconds_text
from experiments.commands import shared_flags
from experiments.commands.config_flag import CommandLine
from experiments.config.experiment import Experiment
from experiments.costs import local_cluster

shared_flags.cluster()
MODEL = shared_flags.model()
BATCH = shared_flags.batch()
WORKERS = shared_flags.workers()
SERVERS = shared_flags.servers()
EFFICIENCY = flags.DEFINE_float("efficiency", 0.8, "of the workers, at least, where their number is chosen")
EXPOSED = flags.DEFINE_float("exposed", 0.05, "share of a round spent waiting for an exchange, at most")
JSON = shared_flags.json()

WIDTH = 118
STARTING = 1e-5  # seconds


def main(line: CommandLine) -> int:
  """Prints it; returns the exit code."""
  config = line.config
  name, cluster = shared_flags.one_cluster()
  if (config is None) == (not MODEL.value):
    raise ValueError(f"give either --config=FILE or --model=NAME; known models are {', '.join(tables.TABLES)}")
  workers = _workers() or (config.workers if config is not None else 0)
  wish = planner.Wish(BATCH.value or 0, workers, SERVERS.value or 0, EFFICIENCY.value, EXPOSED.value)
  job, own = (table_job(MODEL.value, cluster.device.width), None) if config is None else _configured(config, workers)
  calibrated = local_cluster.load() if name == local_cluster.NAME else None
  overhead = float(calibrated[1]["overhead"]) if calibrated else None
  found = planner.plan(job, cluster, wish, overhead, own)
  print(text(job, name, cluster, found))
  if JSON.value:
    Path(JSON.value).write_text(json.dumps(record(job, name, found), indent=2) + "\n")
  return 0


def _workers() -> int:
  text = WORKERS.value
  if not text:
    return 0
  if not text.isdecimal() or not int(text):
    raise ValueError(
      f"--workers={text} is not one integer of 1 or more; left out, they are the config's, or chosen with --model"
    )
  return int(text)


def table_job(name: str, width: int) -> Job:
  """A network of `ddl.perf.tables`, trained with SGD with momentum. width: bytes of a value of its feature maps."""
  table = tables.named(name)
  return Job(name, params_bytes(table), parts(table), step_memory(table, extra_copies=1, width=width), table)


def _configured(config: Any, workers: int) -> tuple[Job, tuple[str, Recorded]]:
  """The config's experiment as a job, and its algorithm."""
  from experiments.costs.job_description import experiment_job  # only now: a table needs none of it
  from experiments.costs.patterns import pattern_of, vector
  from experiments.train.build import build

  job = experiment_job(build(Experiment.from_config(config)), workers)

  def recorded(workers: int) -> Pattern:
    there = Experiment.from_json(config.to_dict() | {"workers": workers})
    return pattern_of(there.make_algorithm(), vector(job.params_bytes), workers)

  return job, (config.algorithm.name, recorded)


def text(job: Job, name: str, cluster: Cluster, found: planner.Plan) -> str:
  """The plan as a table, the predictions and what they come to below it. name: of the cluster."""
  left = max(len(row.quantity) for row in found.rows) + 2
  middle = max(len(row.value) for row in found.rows) + 2
  lines = [f"{job.title} on {cluster.title}", *textwrap.wrap(f"source: {cluster.source}", WIDTH), ""]
  lines.append("quantity".ljust(left) + "value".ljust(middle) + "why; what limits it")
  for row in found.rows:
    why = textwrap.wrap(row.why, WIDTH - left - middle) + textwrap.wrap(f"limit: {row.limit}", WIDTH - left - middle)
    lines.append(row.quantity.ljust(left) + row.value.ljust(middle) + why[0])
    lines += [" " * (left + middle) + more for more in why[1:]]
  return "\n".join([*lines, "", *_speeds(found), *textwrap.wrap(verdict(found, name), WIDTH), *_warning(found)])


def _speeds(found: planner.Plan) -> list[str]:
  """The predictions as lines, each column as wide as what is in it."""
  cells = [("at these settings", "", "a step", "efficiency", "examples/s")]
  for each in found.speeds:
    figures = seconds_text(each.seconds), percent(each.efficiency), rate_text(each.rate)
    cells.append((each.algorithm, each.setting, *figures))
  width = [max(map(len, column)) for column in zip(*cells, strict=True)]
  words = [[cell.ljust(wide) for cell, wide in zip(row[:2], width[:2], strict=True)] for row in cells]
  numbers = [[cell.rjust(wide) for cell, wide in zip(row[2:], width[2:], strict=True)] for row in cells]
  return ["  ".join(left + right) for left, right in zip(words, numbers, strict=True)]


def verdict(found: planner.Plan, cluster: str) -> str:
  """Which algorithms keep the most examples per second, and what that does not say."""
  best = algorithm_rates.most(found.speeds)
  names = list(dict.fromkeys(speed.algorithm for speed in best))
  told = f"{' and '.join(filter(None, [', '.join(names[:-1]), names[-1]]))} keep{'s' * (len(names) == 1)} the most"
  count = found.settings.workers
  return (
    f"{told}: {rate_text(best[0].rate)} examples/s of {count} worker{'s' * (count > 1)}. How much an example teaches "
    f"is not in that number: python run.py compare --config=FILE --cluster={cluster} sets accuracy against seconds."
  )


def _warning(found: planner.Plan) -> list[str]:
  """Where a step is shorter than any machine starts one, as the cluster's entry does not know that time."""
  if found.settings.step >= STARTING:
    return []
  told = (
    f"Warning: a step of {seconds_text(found.settings.step)} is shorter than a machine takes to start one, which is "
    "tens of microseconds and more. This cluster's entry does not know that time, so that efficiencies come out too "
    "low, and delays and periods too long."
  )
  return ["", *textwrap.wrap(told, WIDTH)]


def record(job: Job, cluster: str, found: planner.Plan) -> dict[str, Any]:
  """The plan for --json: seconds and bytes as numbers, the reasons as they are printed."""
  return {
    "job": job.title,
    "cluster": cluster,
    "examples": found.settings.examples,
    "settings": found.settings._asdict(),
    "rows": [row._asdict() for row in found.rows],
    "speeds": [speed._asdict() for speed in found.speeds],
  }
