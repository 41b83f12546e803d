"""`python run.py plan`: recommend batch, workers, delay and period for a job on a cluster, with reasons."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from absl import flags

from ddl import files
from ddl.config.experiment import Experiment
from ddl.errors import OptionError
from ddl.perf import neural_networks, plan_text
from ddl.perf.families import FORMATS
from ddl.perf.patterns import Pattern
from ddl.perf.placement import Job, place, table_job
from ddl.perf.plan import PlanRequest, TrainingPlan, plan
from ddl.perf.plan_text import Amount
from ddl.perf.scaling import Recorded
from ddl.report.reader import read_run
from ddl.run import folder as run_dir
from ddl.run.metrics import SCALE
from experiments.command_line import shared_flags
from experiments.command_line.config_flag import CommandLine


def read(folder: str) -> float:
  """Read the last gradient noise scale B_simple of a run, in examples; it grows during training (arXiv 1812.06162).

  Raises:
    OptionError: for a folder without a run or without a measured noise scale.
  """
  path = files.local(folder)
  if not (path / run_dir.METRICS).exists():
    raise OptionError("run", f"the folder of a run with {run_dir.METRICS} (for example, runs/NAME/seed-0)", folder)
  files.regular(path / run_dir.METRICS)  # reading a pipe would block
  scales = read_run(path).get(SCALE, np.empty(0))
  scales = scales[np.isfinite(scales)]
  if not len(scales):
    raise OptionError(
      "run",
      "the folder of a run that measured the gradient noise scale",
      folder,
      "Train with config.noise_batches=16.",
    )
  return float(scales[-1])


SET = tuple(f"--config.{key}" for key in ("algorithm", "workers", "batch", "microbatches"))  # what the plan recommends
shared_flags.cluster()
MODEL = shared_flags.model()
BATCH = shared_flags.batch()
WORKERS = shared_flags.workers()
EFFICIENCY = flags.DEFINE_float("efficiency", 0.8, "minimum scaling efficiency of the recommended number of workers")
EXPOSED = flags.DEFINE_float("exposed", 0.05, "maximum share of a round spent waiting for an exchange")
GRADIENTS = flags.DEFINE_enum("gradients", "float32", list(FORMATS), "number format in which gradients are sent")
RUN = flags.DEFINE_string("run", "", "folder of a run; its gradient noise scale is used as the critical batch size")
TOKENS = flags.DEFINE_float("tokens", None, "tokens of the whole training, for hours and cost", lower_bound=1)
EXAMPLES = flags.DEFINE_float("examples", None, "examples of the whole training, for hours and cost", lower_bound=1)
EXPLAIN = shared_flags.explain()
JSON = shared_flags.json()


def main(line: CommandLine) -> int:
  """Print the plan and write --json; return the exit code."""
  config = line.config
  name, cluster = shared_flags.one_cluster()
  if config is None and not MODEL.value:
    raise OptionError("model", f"one of {', '.join(neural_networks.names())}, unless config is set")
  if config is not None and MODEL.value:
    raise OptionError("model", "unset when config is set", MODEL.value)
  if WORKERS.value and not (WORKERS.value.isdecimal() and int(WORKERS.value)):
    raise OptionError("workers", "an integer >= 1", WORKERS.value)
  workers = int(WORKERS.value or 0) or (config.workers if config is not None else 0)
  batch, origin, micro = BATCH.value or 0, "as requested", config.microbatches if config is not None else 1
  if not batch and config is not None:
    batch, origin = config.batch, "config.batch, which --batch overrides"
  if BATCH.value and batch % micro:
    raise OptionError("batch", f"a multiple of config.microbatches ({micro})", batch)
  noise = read(RUN.value) if RUN.value else 0.0
  request = PlanRequest(batch, workers, EFFICIENCY.value, EXPOSED.value, origin, GRADIENTS.value, noise, micro)
  configured = None
  if config is None:
    placed = table_job(MODEL.value, cluster, workers)
  else:
    job, configured = _configured(config, workers)
    placed = place(job, cluster)
  job, cluster = placed.job, placed.cluster
  result = plan(job, cluster, request, configured)
  settings = result.settings
  sends = _sends(*configured, settings.workers) if configured else ""
  same = request._replace(batch=settings.examples, micro=settings.micro, workers=settings.workers)
  ends = {shares: plan(end, end_cluster, same) for shares, end, end_cluster in placed.ends}
  largest = None
  if not workers and cluster.workers and cluster.workers > settings.workers:
    largest = plan(job, cluster, request._replace(workers=cluster.workers))
  amount = _amount(job)
  arguments = " ".join(a for a in line.arguments if a.startswith("--config") and not a.startswith(SET))
  print(
    plan_text.text(
      job, name, cluster, result, arguments=arguments, sends=sends, ends=ends, largest=largest, amount=amount,
      critical=noise, explain=EXPLAIN.value,
    )
  )  # fmt: skip
  if JSON.value:
    figures = record(job, name, result, ends) | {"sends": sends}
    figures |= {"hours": plan_text.hours(result, amount) if amount else None}
    Path(JSON.value).write_text(json.dumps(figures, indent=2) + "\n")
  return 0


def _amount(job: Job) -> Amount | None:
  """Return the length of the training from --tokens or --examples; None if neither is set.

  Raises OptionError if both are set, or if --tokens is set for a model without sequences.
  """
  if TOKENS.value is None:
    return Amount(EXAMPLES.value, f"{EXAMPLES.value:,.15g} examples") if EXAMPLES.value else None
  if EXAMPLES.value is not None:
    raise OptionError("tokens", "unset when examples is set", f"{TOKENS.value:g}")
  if not job.tokens:
    raise OptionError("tokens", "unset for a model without sequences", f"{TOKENS.value:g}", "Use --examples.")
  return Amount(TOKENS.value / job.tokens, f"{TOKENS.value:,.15g} tokens")


def _configured(config: Any, workers: int) -> tuple[Job, tuple[str, Recorded]]:
  """Return the config's experiment as a job, and (label, function from number of workers to message pattern)."""
  from ddl.costs.cluster_clock import pattern_of, vector
  from ddl.costs.step_cost import experiment_job  # imports the models, which a layer table does not need
  from ddl.run.build import build

  experiment = Experiment.from_config(config)
  job = experiment_job(build(experiment), workers)

  def recorded(workers: int) -> Pattern:
    resized = Experiment.from_json(config.to_dict() | {"workers": workers})
    return pattern_of(resized.make_algorithm(), vector(job.params_bytes), workers)

  return job, (experiment.label, recorded)


def _sends(name: str, recorded: Recorded, workers: int) -> str:
  """Describe what a worker sends with the config's algorithm and settings; "" for a single worker."""
  from ddl.comparison import record as traffic_text

  return f"{name}, as configured, sends {traffic_text.sends(recorded(workers))}" if workers > 1 else ""


def record(job: Job, cluster: str, result: TrainingPlan, ends: Mapping[str, TrainingPlan]) -> dict[str, Any]:
  """Convert the plan for --json: seconds and bytes as numbers, reasons as printed."""
  return {
    "job": job.title,
    "cluster": cluster,
    "recommended": result.best._asdict(),
    "one_worker": result.single and result.single._asdict(),
    "examples": result.settings.examples,
    "enough": result.enough and result.enough._asdict(),
    "settings": result.settings._asdict(),
    "sizes": [
      row.size._asdict()
      | {"step": row.step, "relative": row.relative, "efficiency": row.efficiency}
      | {"recommended": row.best._asdict()}
      for row in result.table
    ],
    "rows": [row._asdict() for row in result.rows],
    "speeds": [speed._asdict() for speed in result.speeds],
    "ends": [  # the plans for the lowest and the highest efficiency of a step
      {"shares": shares, "step": end.settings.step, "speeds": [speed._asdict() for speed in end.speeds]}
      for shares, end in ends.items()
    ],
  }
