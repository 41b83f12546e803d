"""Elastic training (`config.elastic=True`) in several processes, which Ray starts and, if they fail, replaces."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, cast

from ddl import elastic, hosts
from ddl.api import Algorithm
from ddl.config.experiment import Experiment
from ddl.config.options import RunOptions
from ddl.errors import OptionError
from ddl.events.presence import Presence
from ddl.run import processes, virtual_time
from ddl.run.build import Components, build, by_workers, check_options, param_shapes, round_trainer
from ddl.run.checkpoints import Restored, RunCheckpoints
from ddl.run.exit_codes import Failed, Stopped
from ddl.run.folder import RunFolder
from ddl.run.workdir import resume_command


def needed(experiment: Experiment, options: RunOptions) -> bool:
  """Return whether a run needs processes that Ray starts."""
  return experiment.elastic and max(options.processes, hosts.processes()) > 1


def launch(
  train: Callable[..., dict[str, Any]], experiment: Experiment, options: RunOptions, path: Path
) -> dict[str, Any]:
  """Train in processes that Ray starts and replaces if they fail; return the last line of metrics.

  train: a function that each process calls with the experiment, options, folder and `ProcessGroup`.

  Raises:
    Failed: if too few processes are left, training fails repeatedly, or a signal comes before the run can be saved.
    Stopped: after SIGTERM or Ctrl-C; the run is saved.
    ValueError: if Ray is missing or has too few CPUs or GPUs, or a process raised ValueError.
  """
  from ddl.elastic.ray_job import JobFailed, RayJob

  if hosts.processes() > 1:
    advice = "Start one process: Ray starts the others (option processes)."
    raise OptionError("num_processes", "1 with config.elastic=True", hosts.processes(), advice)
  components = build(experiment)  # before any process starts, so that an error is printed only once
  check_options(components, options, replaceable=True)
  processes.check_processes(experiment.workers, options.processes, options)
  _check_loss(components, options.processes)
  round_steps = virtual_time.round_steps(cast(Algorithm, components.algorithm))
  first = elastic.ProcessGroup(options.processes, experiment.workers, round_steps, tuple(range(options.processes)))
  processes.say("starting Ray and its processes")
  run = partial(_train, train, experiment, options, path.absolute())
  job = RayJob(run, first, options, RunFolder(path).has_begun, lambda text: hosts.print_error(f"train: {text}"))
  try:
    return job.train()
  except JobFailed as error:
    resume = resume_command("train", path, options.command)
    raise Failed(128 + job.signal if job.signal else 1, f"{error}; resume with: {resume}") from error
  except Stopped as stopped:
    stopped.args = stopped.args[0], job.signal or stopped.args[1]
    raise


def _train(
  train: Callable[..., dict[str, Any]],
  experiment: Experiment,
  options: RunOptions,
  path: Path,
  group: elastic.ProcessGroup,
) -> dict[str, Any]:
  """Call `train` in one process of a group; resume from the survivors' state or a checkpoint, if there is one."""
  options = replace(
    options,
    workdir=str(path),
    resume=options.resume or bool(group.survivors) or group.resume,
    peer_timeout=max(100.0, 10 * options.peer_timeout),  # until JAX aborts all processes; the driver reacts earlier
  )
  return train(experiment, options, path, group)


def parts(
  components: Components, options: RunOptions, group: elastic.ProcessGroup, checkpoints: RunCheckpoints
) -> tuple[elastic.ElasticTrainer, elastic.KeeperStore, elastic.ElasticClock]:
  """Build the trainer, the store and the clock for one process of a group."""
  everyone = group.layout(group.ids())
  trainer = elastic.trainer_of_process(partial(round_trainer, components, options, everyone), group)
  experiment = components.experiment
  trainer.follow(group.presence, 1, by_workers(experiment), experiment.label)
  return trainer, elastic.KeeperStore(checkpoints, group, Restored), elastic.ElasticClock(trainer)


def _check_loss(components: Components, count: int) -> None:
  """Raise OptionError if the algorithm cannot continue without one of `count` processes."""
  experiment = components.experiment
  everyone, share = tuple(range(experiment.workers)), experiment.workers // count
  round_steps = virtual_time.round_steps(cast(Algorithm, components.algorithm))
  presence = Presence(experiment.workers, ((0, everyone), (round_steps, everyone[share:])))
  elastic.check(by_workers(experiment), param_shapes(components.model), presence, experiment.label)
