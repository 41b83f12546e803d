"""`python run.py plan`: examples, workers, servers, delay and period for a job on a cluster, and why."""

import json
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from absl import flags

from ddl.perf import tables
from ddl.perf.comm.patterns import Pattern
from ddl.perf.hardware import Cluster
from ddl.perf.planning import algorithm_rates, planner
from ddl.perf.planning.batch import Job
from ddl.perf.planning.placement import Placed, place, table_job
from ddl.perf.planning.scaling import Recorded
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
  batch, origin = BATCH.value or 0, "as given"
  if not batch and config is not None:
    batch, origin = config.batch, "config.batch, which --batch overrides"
  wish = planner.Wish(batch, workers, SERVERS.value or 0, EFFICIENCY.value, EXPOSED.value, origin)
  own = None
  if config is None:
    placed = table_job(MODEL.value, cluster, workers)
  else:
    job, own = _configured(config, workers)
    placed = place(job, cluster)
  job, cluster = placed.job, placed.cluster
  if workers and workers < job.split:
    raise ValueError(
      f"--workers={workers}: the states of {MODEL.value} need {job.split} devices; give --workers={job.split} or more"
    )
  calibrated = local_cluster.load() if name == local_cluster.NAME else None
  overhead = float(calibrated[1]["overhead"]) if calibrated else None
  found = planner.plan(job, cluster, wish, overhead, own)
  sends = _sends(*own, found.settings.workers) if own else ""
  print(text(job, name, cluster, found, sends))
  ends = at_both_ends(placed, found)
  if ends:
    print(_ends_text(ends))
  if JSON.value:
    Path(JSON.value).write_text(json.dumps(record(job, name, found, ends) | {"sends": sends}, indent=2) + "\n")
  return 0


def _configured(config: Any, workers: int) -> tuple[Job, tuple[str, Recorded]]:
  """Return the config's experiment as a job, and its algorithm by the name that folders and tables have."""
  from experiments.costs.job_description import experiment_job  # here: a table needs none of it
  from experiments.costs.patterns import pattern_of, vector
  from experiments.train.build import build

  experiment = Experiment.from_config(config)
  job = experiment_job(build(experiment), workers)

  def recorded(workers: int) -> Pattern:
    there = Experiment.from_json(config.to_dict() | {"workers": workers})
    return pattern_of(there.make_algorithm(), vector(job.params_bytes), workers)

  return job, (experiment.label, recorded)


def _sends(name: str, recorded: Recorded, workers: int) -> str:
  """What a worker of the config's algorithm sends at its own settings, in words."""
  from experiments.compare import traffic_text

  return f"{name}, as configured, sends {traffic_text.sends(recorded(workers))}" if workers > 1 else ""


def text(job: Job, name: str, cluster: Cluster, found: planner.Plan, sends: str = "") -> str:
  """Return the plan as a table, with the predictions and the verdict below it.

  name: of the cluster; sends: what the config's own algorithm does.
  """
  left = max(len(row.quantity) for row in found.rows) + 2
  middle = max(len(row.value) for row in found.rows) + 2
  lines = [f"{job.title} on {cluster.title}", *textwrap.wrap(f"source: {cluster.source}", WIDTH), *_warning(found), ""]
  lines.append("quantity".ljust(left) + "value".ljust(middle) + "why; what limits it")
  indent = " " * (left + middle)
  for row in found.rows:
    start = row.quantity.ljust(left) + row.value.ljust(middle)
    lines += textwrap.wrap(row.why, WIDTH, initial_indent=start, subsequent_indent=indent)
    lines += textwrap.wrap(f"limit: {row.limit}", WIDTH, initial_indent=indent, subsequent_indent=indent)
  below = [textwrap.fill(each, WIDTH) for each in (sends, verdict(found, name)) if each]
  return "\n".join([*lines, "", *_speeds(found), *below])


def at_both_ends(placed: Placed, found: planner.Plan) -> list[tuple[str, planner.Plan]]:
  """(shares in words, the plan of the same settings) at each end of a range of efficiencies."""
  chosen = found.settings
  wish = planner.Wish(batch=chosen.examples, workers=chosen.workers, servers=chosen.servers)
  return [(words, planner.plan(job, cluster, wish)) for words, job, cluster in placed.ends]


def _ends_text(ends: Sequence[tuple[str, planner.Plan]]) -> str:
  """A step at each end, and the most that every algorithm keeps there."""
  paragraphs = []
  for words, end in ends:
    kept: dict[str, float] = {}
    for each in end.speeds:
      kept[each.algorithm] = max(each.efficiency, kept.get(each.algorithm, 0.0))
    families = ", ".join(f"{name} {percent(share)}" for name, share in kept.items())
    step = f"a step on {end.settings.examples} takes {seconds_text(end.settings.step)}"
    paragraphs.append(textwrap.fill(f"with {words}: {step}; {families}", WIDTH))
  return "\n".join(["", *paragraphs]) if paragraphs else ""


def _speeds(found: planner.Plan) -> list[str]:
  """Predictions as lines of aligned columns."""
  rows = [("at these settings", "", "a step", "efficiency", "examples/s")]
  for each in found.speeds:
    figures = seconds_text(each.seconds), percent(each.efficiency), rate_text(each.rate)
    rows.append((each.algorithm, each.setting, *figures))
  a, b, *numbers = (max(map(len, column)) for column in zip(*rows, strict=True))
  return ["  ".join([row[0].ljust(a), row[1].ljust(b), *map(str.rjust, row[2:], numbers)]) for row in rows]


def verdict(found: planner.Plan, cluster: str) -> str:
  """Return which algorithms have the most examples per second, and what that number leaves out."""
  best = algorithm_rates.most(found.speeds)
  names = list(dict.fromkeys(speed.algorithm for speed in best))
  lead = f"{' and '.join(filter(None, [', '.join(names[:-1]), names[-1]]))} keep{'s' * (len(names) == 1)} the most"
  count = found.settings.workers
  return (
    f"{lead}: {rate_text(best[0].rate)} examples/s of {count} worker{'s' * (count > 1)}. The progress "
    f"per example is not in that number: python run.py compare --config=FILE --cluster={cluster} sets accuracy against "
    "seconds."
  )


def _warning(found: planner.Plan) -> list[str]:
  """Lines for a step shorter than the start of one on any machine, which the cluster's entry leaves out."""
  if found.settings.step >= STARTING:
    return []
  text = (
    f"Warning: a step of {seconds_text(found.settings.step)} is shorter than a machine takes to start one, which is "
    "tens of microseconds and more. This cluster's entry has no such time, so that the efficiencies below are too low, "
    "and the delays and periods too long."
  )
  return ["", *textwrap.wrap(text, WIDTH)]


def record(
  job: Job, cluster: str, found: planner.Plan, ends: Sequence[tuple[str, planner.Plan]] = ()
) -> dict[str, Any]:
  """Return the plan for --json: seconds and bytes as numbers, the reasons as they are printed."""
  return {
    "job": job.title,
    "cluster": cluster,
    "examples": found.settings.examples,
    "settings": found.settings._asdict(),
    "rows": [row._asdict() for row in found.rows],
    "speeds": [speed._asdict() for speed in found.speeds],
    "ends": [  # of a range of efficiencies
      {"shares": words, "step": end.settings.step, "speeds": [speed._asdict() for speed in end.speeds]}
      for words, end in ends
    ],
  }
