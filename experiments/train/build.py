"""From a config and the flags to a trainer on real devices."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax

from ddl import files
from ddl.api import Algorithm
from ddl.events.record import Events
from ddl.runtime import hosts
from ddl.runtime.execution import ExecutionConfig, check_threads, choose_execution, cpu_devices
from ddl.runtime.trainer import Trainer
from ddl.runtime.virtual.simulator import Simulator
from ddl.runtime.workers import Workers, divisors, make_workers
from experiments.commands import flags
from experiments.config import experiment as configs
from experiments.config.experiment import Experiment
from experiments.config.factories import Config
from experiments.train import virtual_time
from experiments.train.run_dir import RunFolder, writable
from experiments.train.runner import Runner


def start_devices(workers: int) -> None:
  """Sets the CPU devices and joins the other processes; before any other use of JAX.

  Raises:
    ValueError: if the processes do not divide the workers or the devices.
  """
  processes = check_processes(workers, hosts.processes())
  mine = flags.DEVICES.value // processes or cpu_devices(workers, processes)
  jax.config.update("jax_num_cpu_devices", mine)
  hosts.join()


def check_processes(workers: int, processes: int) -> int:
  """The number of processes, if it divides the workers and the devices.

  Raises:
    ValueError: if it does not, or for more devices than a process can have.
  """
  devices = flags.DEVICES.value
  check_threads(devices // processes, f"--devices={devices}: CPU devices")
  if workers % processes or devices % processes:
    fits = [n for n in divisors(workers) if devices % n == 0]
    if devices and workers % devices:
      raise ValueError(
        f"{workers} workers do not spread evenly over {devices} devices; "
        f"--devices can be {', '.join(map(str, divisors(workers)))}"
      )
    raise ValueError(
      f"{processes} processes cannot share {workers} workers{f' on {devices} devices' * bool(devices)} evenly; "
      f"--processes can be {', '.join(map(str, fits))}"
    )
  return processes


def make_trainer(experiment: Experiment, config: Config, events: Events | None = None) -> Runner:
  """The trainer of an experiment, run as the flags say, or as chosen for this backend and model.

  events: what a simulator follows, in place of the config's schedule.
  """
  workers = make_workers(config.workers, flags.DEVICES.value or None)
  chosen, algorithm = how(experiment, workers), experiment.algorithm
  if isinstance(algorithm, Algorithm):
    return Trainer(algorithm, experiment.model, workers, chosen)
  return Simulator(algorithm, experiment.model, workers, chosen, *virtual_time.whole_run(config, algorithm, events))


def follow(trainer: Runner, config: Config) -> Callable[[int], float]:
  """Step -> virtual seconds of a run of this config, whose schedule a simulator then follows."""
  if isinstance(trainer, Simulator):
    trainer.follow(*virtual_time.whole_run(config, trainer.algorithm))
  return clock(trainer, config)


def clock(trainer: Runner, config: Config) -> Callable[[int], float]:
  """Step -> virtual seconds of a run of this config; a simulator's are those of the schedule that it follows."""
  if isinstance(trainer, Trainer):
    charged = virtual_time.charges(config, trainer.traffic)
    return virtual_time.lockstep_seconds(config, trainer.algorithm, charged)
  assert isinstance(trainer, Simulator)
  return trainer.virtual_seconds


def how(experiment: Experiment, workers: Workers) -> ExecutionConfig:
  """How to run: what is chosen for this backend and model, and the flags over it."""
  step = experiment.feed(workers.local)(0, 1)
  chosen = choose_execution(workers, experiment.model.dense, sum(x.nbytes for x in step.values()))
  gradients: Any = chosen.gradients if flags.GRADIENTS.value == "auto" else flags.GRADIENTS.value
  steps: Any = chosen.steps if flags.STEPS.value == "auto" else flags.STEPS.value
  return ExecutionConfig(
    gradients, steps, flags.STEPS_PER_CALL.value or chosen.steps_per_call, flags.OVERLAP.value == "on"
  )


def describe(trainer: Runner) -> str:
  """One line that says how a run is run."""
  w, h = trainer.workers, trainer.execution
  layout = (
    f"{w.count} workers on {w.devices} {jax.devices()[0].platform} device(s) of {jax.process_count()} process(es), "
    f"{w.virtual} each; gradients {h.gradients}, steps {h.steps}, up to {h.steps_per_call} steps a call, "
  )
  if isinstance(trainer, Simulator):
    return layout + f"virtual time: {len(trainer.events.worker)} visits"
  assert isinstance(trainer, Trainer)
  alike = not any(jax.tree.leaves(trainer.replication.params))
  copies = "one model per device, as all workers' are equal" if alike else "one model per worker"
  return layout + f"overlap {'on' if h.overlap else 'off'}; {copies}"


def workdir(what: str) -> Path:
  """The folder that --workdir names, or a new one under runs/.

  Raises:
    ValueError: for --resume without a folder or with one that is not there, or a path where no folder can be made.
  """
  if flags.RESUME.value and not flags.WORKDIR.value:
    raise ValueError("--resume needs the folder to continue: --workdir=runs/...")
  path = files.local(flags.WORKDIR.value or f"runs/{what}-{time.strftime('%Y%m%d-%H%M%S')}")
  if flags.RESUME.value and not path.exists():
    raise ValueError(f"{path} holds nothing to resume: it does not exist; without --resume a new one is made")
  return writable(path)


def check_folder(path: Path, config: Config, alone: bool = True) -> None:
  """Finds a folder that a run cannot have before any data is loaded. alone: not one of several, which may be missing.

  Raises:
    ValueError: for a run that is there already, or with --resume for none or one of another config.
  """
  folder = RunFolder(path)
  if not flags.RESUME.value:
    (folder.check_unused if alone else folder.check_new)()
  elif alone or folder.begun:
    folder.reopen(configs.resolve(config))


def launch(workers: int, path: Path) -> int:
  """This command as --processes local processes, all with the same folder; returns the exit code."""
  check_processes(workers, flags.PROCESSES.value)
  return hosts.launch(flags.PROCESSES.value, [*hosts.command_line(), f"--workdir={path}"])


def say(text: str) -> None:
  """Prints in the main process."""
  if hosts.is_main():
    print(text, flush=True)
