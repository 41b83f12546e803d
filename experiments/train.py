"""`python run.py train`: one run of one algorithm."""

import sys
import warnings
from typing import Any

import jax
from absl import flags as absl_flags

from ddl.algorithms import SERVER
from ddl.runtime import hosts
from experiments import config as configs
from experiments import flags, live, session, setup
from experiments.evaluate import Evaluator
from experiments.folder import RunFolder, about

CHECKPOINT_EVERY = absl_flags.DEFINE_integer(
  "checkpoint_every", 0, "steps between checkpoints; 0: only when the run stops or ends", lower_bound=0
)
RUNTIME = absl_flags.DEFINE_enum(
  "runtime", "simulator", ["simulator", "threads", "ray"], "of server algorithms: virtual time, real threads, or Ray"
)
SHARDS = absl_flags.DEFINE_integer("shards", 1, "Ray actors that the master is made of", lower_bound=1)
ADDRESS = absl_flags.DEFINE_string("ray_address", "", "host:port of a Ray cluster; default: this machine")
CPUS = absl_flags.DEFINE_float("worker_cpus", 1.0, "CPUs that each of Ray's workers asks for", lower_bound=0.0)
GPUS = absl_flags.DEFINE_float("worker_gpus", 0.0, "GPUs that each of Ray's workers asks for", lower_bound=0.0)
RAYS = ("shards", "ray_address", "worker_cpus", "worker_gpus")
TROUBLE = ("slow", "straggler_rate", "death_rate")


def main(config: Any) -> int:
  """Runs it; returns the exit code."""
  foreign = [name for name in RAYS if absl_flags.FLAGS[name].present]
  if foreign and RUNTIME.value != "ray":
    raise ValueError(f"--{foreign[0]} is read by --runtime=ray alone, not by {RUNTIME.value}")
  if RUNTIME.value != "simulator":
    return _live(config)
  path = setup.workdir(f"train-{config.algorithm.name}")
  if not flags.RESUME.value:
    RunFolder(path).check_new()
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
    setup.say(
      f"stopped at step {step} of {config.steps} and saved; "
      f"the same command goes on with --resume --workdir={folder.path}"
    )
    return 128 + number
  seconds = last.get("seconds", 0)
  shown = ", ".join(f"{k} {v:.4g}" for k, v in last.items())
  setup.say(f"{shown}\n{last['examples'] / max(seconds, 1e-9):.0f} examples/s; {folder.path}")
  return 0


def _live(config: Any) -> int:
  """In real time, on threads or Ray."""
  if config.algorithm.name not in SERVER:
    raise ValueError(
      f"--runtime={RUNTIME.value} is for algorithms with a server or peers, not {config.algorithm.name}; "
      f"there are {', '.join(SERVER)}"
    )
  trouble = [f"config.times.{k}" for k in TROUBLE if config.times.get(k)]
  if trouble:
    told = f"{', '.join(trouble)} and the network's seconds are of virtual time"
    warnings.warn(f"--runtime={RUNTIME.value} takes as long as it takes: {told}", stacklevel=2)
  if RUNTIME.value == "threads" and flags.RESUME.value:
    raise ValueError("--runtime=threads does not resume; --runtime=ray and --runtime=simulator do")
  if RUNTIME.value == "ray" and config.barrier.name != "asp":
    raise ValueError("--runtime=ray has no barriers: config.barrier.name has to be asp; the other runtimes have them")
  path = setup.workdir(f"train-{config.algorithm.name}")
  setup.start_devices(config.workers)
  experiment = configs.build(config)
  folder, told = RunFolder(path), about(["python", *sys.argv], device=str(jax.devices()[0].device_kind))
  setup.say(f"{config.workers} workers on {RUNTIME.value}; {experiment.data.meta['description']}")
  if RUNTIME.value == "threads":
    last = live.threads(experiment, config, folder, told)
  else:
    cluster = {"shards": SHARDS.value, "address": ADDRESS.value or None, "cpus": CPUS.value, "gpus": GPUS.value}
    cluster["checkpoint_every"] = CHECKPOINT_EVERY.value * config.workers // experiment.algorithm.period
    last = live.ray(experiment, config, folder, told, resume=flags.RESUME.value, **cluster)
  setup.say(f"{last['examples'] / max(last['seconds'], 1e-9):.0f} examples/s; {folder.path}")
  return 0
