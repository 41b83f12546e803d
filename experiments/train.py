"""`python run.py train`: one run of one algorithm."""

import sys
import time
from pathlib import Path
from typing import Any

import jax
from absl import flags as absl_flags

from ddl.runtime import hosts
from experiments import config as configs
from experiments import flags, session, setup
from experiments.evaluate import Evaluator
from experiments.folder import RunFolder, about

WORKDIR = absl_flags.DEFINE_string("workdir", "", "the run's folder; default: runs/train-<algorithm>-<time>")
RESUME = absl_flags.DEFINE_bool("resume", False, "continue the run in --workdir from its last checkpoint")
CHECKPOINT_EVERY = absl_flags.DEFINE_integer(
  "checkpoint_every", 0, "steps between checkpoints; 0: only when the run stops or ends", lower_bound=0
)


def main(config: Any) -> int:
  """Runs it; returns the exit code."""
  if RESUME.value and not WORKDIR.value:
    raise ValueError("--resume needs the run's folder: --workdir=runs/...")
  if flags.PROCESSES.value > 1 and hosts.processes() == 1:
    setup.check_processes(config.workers, flags.PROCESSES.value)
    configs.build(config)  # what is wrong with the config is said once, before any process starts
    workdir = [] if WORKDIR.value else [f"--workdir={_folder(config)}"]
    return hosts.launch(flags.PROCESSES.value, [*hosts.command_line(), *workdir])
  setup.start_devices(config.workers)
  experiment = configs.build(config)
  trainer = setup.make_trainer(experiment, config)
  folder = RunFolder(Path(WORKDIR.value or _folder(config)), writes=hosts.is_main())
  options = session.Options(
    RESUME.value, CHECKPOINT_EVERY.value, batch_stats=flags.BATCH_STATS.value, label=config.algorithm.name
  )
  _say(setup.describe(trainer))
  _say(f"{experiment.data.meta['description']}; {experiment.data.train.size} training examples")
  try:
    last = session.run(
      experiment, trainer, folder, Evaluator(experiment.model, experiment.data.test), options,
      about(["python", *sys.argv], device=str(jax.devices()[0].device_kind)),
    )  # fmt: skip
  except session.Stopped as stopped:
    step, number = stopped.args
    _say(f"stopped at step {step} of {config.steps} and saved; continue with --resume --workdir={folder.path}")
    return 128 + number
  seconds = last.get("seconds", 0)
  shown = ", ".join(f"{k} {v:.4g}" for k, v in last.items())
  _say(f"{shown}\n{last['examples'] / max(seconds, 1e-9):.0f} examples/s; {folder.path}")
  return 0


def _folder(config: Any) -> str:
  return f"runs/train-{config.algorithm.name}-{time.strftime('%Y%m%d-%H%M%S')}"


def _say(text: str) -> None:
  if hosts.is_main():
    print(text, flush=True)
