"""`python run.py train`: one run of one algorithm."""

import sys
import warnings
from typing import Any

import jax
from absl import flags as absl_flags

from ddl.algorithms import SERVER
from ddl.api import ServerAlgorithm
from ddl.runtime import hosts
from ddl.runtime.virtual.simulator import Simulator
from experiments.commands import flags
from experiments.config import experiment as configs
from experiments.train import build, compilation_cache, realtime, replay, resume, train_loop
from experiments.train.evaluate import Evaluator
from experiments.train.run_dir import EVENTS, RESULT, RunFolder, about, read_result

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
REPLAY = absl_flags.DEFINE_string("replay", "", "events.npz of a run whose order this one makes again, in virtual time")
RAYS = ("shards", "ray_address", "worker_cpus", "worker_gpus")
SIMULATED = ("virtual_grad", "step_loop", "steps_per_call", "overlap", "batch_stats", "replay")
TROUBLE = ("slow", "straggler_rate", "death_rate")


def main(config: Any) -> int:
  """Runs it; returns the exit code."""
  foreign = [name for name in RAYS if absl_flags.FLAGS[name].present]
  if foreign and RUNTIME.value != "ray":
    raise ValueError(f"--{foreign[0]} is read by --runtime=ray alone, not by {RUNTIME.value}")
  if RUNTIME.value != "simulator":
    foreign = [name for name in SIMULATED if absl_flags.FLAGS[name].present]
    if foreign:
      raise ValueError(f"--{foreign[0]} is read by --runtime=simulator alone, not by {RUNTIME.value}")
    if RUNTIME.value == "threads" and CHECKPOINT_EVERY.present:
      raise ValueError("--checkpoint_every is not read by --runtime=threads, which saves no models")
    return _live(config)
  path = build.workdir(f"train-{config.algorithm.name}")
  build.check_folder(path, config)
  if flags.RESUME.value and (path / RESULT).exists():
    print(f"{_shown(read_result(path))}\n{path} is complete")
    return 0
  if flags.PROCESSES.value > 1 and hosts.processes() == 1:
    configs.build(config)  # what is wrong with the config is said once, before any process starts
    return build.launch(config.workers, path)
  compilation_cache.start()
  build.start_devices(config.workers)
  experiment = configs.build(config)
  events = replay.schedule(REPLAY.value, path if flags.RESUME.value else None, experiment)
  trainer = build.make_trainer(experiment, config, events)
  folder = RunFolder(path, hosts.is_main(), resume.record("train", config))
  options = train_loop.Options(
    flags.RESUME.value, CHECKPOINT_EVERY.value, batch_stats=flags.BATCH_STATS.value, label=config.algorithm.name,
    clock=build.clock(trainer, config),
  )  # fmt: skip
  build.say(build.describe(trainer))
  build.say(f"{experiment.data.meta['description']}; {experiment.data.train.size} training examples")
  if not sys.stderr.isatty():  # where the progress bar says it
    build.say("compiling")
  if isinstance(trainer, Simulator) and hosts.is_main():
    replay.keep(path, trainer.events)
  try:
    last = train_loop.run(
      experiment, trainer, folder, Evaluator(experiment.model, experiment.data.test), options,
      about(["python", *sys.argv], device=str(jax.devices()[0].device_kind), runtime=RUNTIME.value),
    )  # fmt: skip
  except train_loop.Stopped as stopped:
    step, number = stopped.args
    build.say(f"stopped at step {step} of {config.steps} and saved; {resume.short('train', path)} goes on")
    return 128 + number
  if isinstance(trainer, Simulator) and hosts.is_main():
    replay.draw(path, experiment, trainer.events, "time" if REPLAY.value else "virtual time")
  seconds = last.get("seconds", 0)
  compiled = f"compiled in {trainer.compile_seconds:.1f} s{compilation_cache.told()}"
  build.say(f"{_shown(last)}\n{last['examples'] / max(seconds, 1e-9):.0f} examples/s, {compiled}; {path}")
  return 0


def _shown(line: dict[str, float]) -> str:
  return ", ".join(f"{k} {v:.4g}" for k, v in line.items())


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
  path = build.workdir(f"train-{config.algorithm.name}")
  build.check_folder(path, config)
  compilation_cache.start()
  build.start_devices(config.workers)
  experiment = configs.build(config)
  folder, told = (
    RunFolder(path, experiment=resume.record("train", config)),
    about(["python", *sys.argv], device=str(jax.devices()[0].device_kind), runtime=RUNTIME.value),
  )
  build.say(f"{config.workers} workers on {RUNTIME.value}; {experiment.data.meta['description']}")
  try:
    last = _run_live(experiment, config, folder, told)
  except train_loop.Stopped as stopped:
    step, number = stopped.args
    saved = f"saved; {resume.short('train', path)} goes on"
    if RUNTIME.value == "threads":
      saved = f"its metrics and {EVENTS} are kept in {path}; threads save no models, so that it can't go on"
    build.say(f"stopped at step {step} of {config.steps}, {saved}")
    return 128 + number
  build.say(f"{last['examples'] / max(last['seconds'], 1e-9):.0f} examples/s; {folder.path}")
  return 0


def _run_live(experiment: configs.Experiment, config: Any, folder: RunFolder, told: dict[str, Any]) -> dict[str, Any]:
  assert isinstance(experiment.algorithm, ServerAlgorithm)
  if RUNTIME.value == "threads":
    return realtime.threads(experiment, config, folder, told)
  build.say("starting Ray and its processes")
  cluster = {"shards": SHARDS.value, "address": ADDRESS.value or None, "cpus": CPUS.value, "gpus": GPUS.value}
  cluster["checkpoint_every"] = CHECKPOINT_EVERY.value * config.workers // experiment.algorithm.period
  return realtime.ray(experiment, config, folder, told, resume=flags.RESUME.value, **cluster)
