"""`python run.py train`: one run of one algorithm."""

import sys
from typing import Any

import jax
from absl import flags as absl_flags

from ddl.runtime import hosts
from experiments import config as configs
from experiments import flags, session, setup
from experiments.evaluate import Evaluator
from experiments.folder import RunFolder, about

CHECKPOINT_EVERY = absl_flags.DEFINE_integer(
  "checkpoint_every", 0, "steps between checkpoints; 0: only when the run stops or ends", lower_bound=0
)


def main(config: Any) -> int:
  """Runs it; returns the exit code."""
  path = setup.workdir(f"train-{config.algorithm.name}")
  if flags.PROCESSES.value > 1 and hosts.processes() == 1:
    configs.build(config)  # what is wrong with the config is said once, before any process starts
    return setup.launch(config.workers, path)
  setup.start_devices(config.workers)
  experiment = configs.build(config)
  trainer = setup.make_trainer(experiment, config)
  folder = RunFolder(path, writes=hosts.is_main())
  options = session.Options(
    flags.RESUME.value, CHECKPOINT_EVERY.value, batch_stats=flags.BATCH_STATS.value, label=config.algorithm.name,
    clock=setup.follow(trainer, config),
  )  # fmt: skip
  setup.say(setup.describe(trainer))
  setup.say(f"{experiment.data.meta['description']}; {experiment.data.train.size} training examples")
  try:
    last = session.run(
      experiment, trainer, folder, Evaluator(experiment.model, experiment.data.test), options,
      about(["python", *sys.argv], device=str(jax.devices()[0].device_kind)),
    )  # fmt: skip
  except session.Stopped as stopped:
    step, number = stopped.args
    setup.say(f"stopped at step {step} of {config.steps} and saved; continue with --resume --workdir={folder.path}")
    return 128 + number
  seconds = last.get("seconds", 0)
  shown = ", ".join(f"{k} {v:.4g}" for k, v in last.items())
  setup.say(f"{shown}\n{last['examples'] / max(seconds, 1e-9):.0f} examples/s; {folder.path}")
  return 0
