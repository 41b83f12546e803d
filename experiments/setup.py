"""From a config and the flags to a trainer on real devices."""

import time
from pathlib import Path
from typing import Any

import jax

from ddl.runtime import choose, hosts
from ddl.runtime.rounds import How
from ddl.runtime.trainer import Trainer
from ddl.runtime.workers import Workers, make_workers
from experiments import flags
from experiments.config import Experiment
from experiments.parts import Config


def start_devices(workers: int) -> None:
  """Sets the CPU devices and joins the other processes; before any other use of JAX.

  Raises:
    ValueError: if the processes do not divide the workers or the devices.
  """
  processes = check_processes(workers, hosts.processes())
  mine = flags.DEVICES.value // processes or choose.cpu_devices(workers, processes)
  jax.config.update("jax_num_cpu_devices", mine)
  hosts.join()


def check_processes(workers: int, processes: int) -> int:
  """The number of processes, if it divides the workers and the devices.

  Raises:
    ValueError: if it does not.
  """
  devices = flags.DEVICES.value
  if workers % processes or devices % processes:
    fits = [n for n in range(1, workers + 1) if workers % n == 0 and devices % n == 0]
    raise ValueError(
      f"{processes} processes cannot share {workers} workers{f' on {devices} devices' * bool(devices)} evenly; "
      f"--processes can be {', '.join(map(str, fits))}"
    )
  return processes


def make_trainer(experiment: Experiment, config: Config) -> Trainer:
  """The trainer of an experiment, run as the flags say, or as chosen for this backend and model."""
  workers = make_workers(config.workers, flags.DEVICES.value or None)
  return Trainer(experiment.algorithm, experiment.model, workers, how(experiment, workers))


def how(experiment: Experiment, workers: Workers) -> How:
  """How to run: what is chosen for this backend and model, and the flags over it."""
  step = experiment.feed(workers.local)(0, 1)
  chosen = choose.choose_how(workers, experiment.model.dense, sum(x.nbytes for x in step.values()))
  gradients: Any = chosen.gradients if flags.GRADIENTS.value == "auto" else flags.GRADIENTS.value
  steps: Any = chosen.steps if flags.STEPS.value == "auto" else flags.STEPS.value
  return How(gradients, steps, flags.STEPS_PER_CALL.value or chosen.steps_per_call, flags.OVERLAP.value == "on")


def describe(trainer: Trainer) -> str:
  """One line that says how a run is run."""
  w, h, c = trainer.workers, trainer.how, trainer.copies
  copies = (
    "one model per worker" if any(jax.tree.leaves(c.params)) else "one model per device, as all workers' are equal"
  )
  return (
    f"{w.count} workers on {w.devices} {jax.devices()[0].platform} device(s) of {jax.process_count()} process(es), "
    f"{w.virtual} each; gradients {h.gradients}, steps {h.steps}, up to {h.steps_per_call} steps a call, "
    f"overlap {'on' if h.overlap else 'off'}; {copies}"
  )


def workdir(what: str) -> Path:
  """The folder that --workdir names, or a new one under runs/.

  Raises:
    ValueError: for --resume without a folder.
  """
  if flags.RESUME.value and not flags.WORKDIR.value:
    raise ValueError("--resume needs the folder to continue: --workdir=runs/...")
  return Path(flags.WORKDIR.value or f"runs/{what}-{time.strftime('%Y%m%d-%H%M%S')}")


def launch(workers: int, path: Path) -> int:
  """This command as --processes local processes, all with the same folder; returns the exit code."""
  check_processes(workers, flags.PROCESSES.value)
  return hosts.launch(flags.PROCESSES.value, [*hosts.command_line(), f"--workdir={path}"])


def say(text: str) -> None:
  """Prints in the main process."""
  if hosts.is_main():
    print(text, flush=True)
