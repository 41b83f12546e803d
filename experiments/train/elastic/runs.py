"""Runs whose workers come and go (`config.elastic`): who is present at which step, drawn, recorded or lost for real."""

import warnings
from collections.abc import Callable
from dataclasses import replace
from functools import cache

import jax

from ddl.api import Algorithm
from ddl.events import presence
from ddl.events.presence import Presence, everyone
from ddl.runtime import elastic, hosts
from ddl.runtime.elastic import Elastic
from ddl.runtime.layout.workers import Workers, divisors, make_workers
from ddl.runtime.trainer import Trainer
from experiments.config.experiment import Experiment
from experiments.config.options import RunOptions
from experiments.train import virtual_time
from experiments.train.elastic.generation import Generation
from experiments.train.folder.run_dir import PRESENCE, RunFolder


def check(experiment: Experiment, options: RunOptions, lost_for_real: bool) -> None:
  """ValueError, one line, for what workers that come and go cannot be. lost_for_real: with their processes."""
  if options.members > 1:
    raise ValueError(
      f"--members={options.members}: config.elastic is of workers of one device alone, which a death takes whole"
    )
  if not lost_for_real and max(options.processes, hosts.processes()) > 1:
    raise ValueError("config.elastic with several processes is for train alone: the others' runs would be lost too")
  if lost_for_real and experiment.times.get("death_rate"):
    raise ValueError("config.times.death_rate with several processes: those are lost for real; it is of one process")
  if not lost_for_real and not (experiment.times.get("death_rate") or options.replay):
    warnings.warn("config.elastic has no effect: config.times.death_rate is 0", stacklevel=2)


def make(
  experiment: Experiment,
  trainer: Callable[[Experiment, Workers], Trainer],
  options: RunOptions,
  recorded: Presence | None,
) -> Elastic:
  """Return the trainers of a run whose workers come and go.

  Args:
    experiment: of all workers.
    trainer: (the experiment of some of them, these on devices) -> their trainer.
    options: devices are those of all workers; fewer of them have the most that they divide evenly.
    recorded: who is present when; None: drawn from the experiment's step times and deaths.

  Raises:
    ValueError: for an algorithm that cannot go on with fewer workers, or as `follow`.
  """

  every = make_workers(experiment.workers, options.devices or None)

  @cache
  def of(count: int) -> Trainer:
    devices = max(d for d in divisors(count) if d <= every.devices)
    workers = every if count == experiment.workers else make_workers(count, devices)
    return trainer(replace(experiment, workers=count), workers)

  found = Elastic(lambda ids: of(len(ids)), everyone(experiment.workers))
  follow(found, experiment, recorded)
  return found


def of_processes(
  experiment: Experiment, trainer: Callable[[Experiment, Workers], Trainer], generation: Generation
) -> Elastic:
  """Return the trainers of a run whose processes come and go, in one of them, as if nobody had been lost before.

  trainer: as of `make`.

  Raises:
    ValueError: for an algorithm that cannot go on with fewer workers.
  """

  @cache
  def of(workers: Workers) -> Trainer:
    return trainer(replace(experiment, workers=workers.count), workers)

  found = Elastic(
    lambda ids: of(generation.layout(ids)), generation.alone, generation.mine, hosts.share,
    lambda ids: of(generation.here(ids)),
  )  # fmt: skip
  _check(experiment, found, generation.alone)
  return found


def follow(trainer: Elastic, experiment: Experiment, recorded: Presence | None = None) -> None:
  """Set who is present in a run of this experiment, which has another seed perhaps.

  Raises:
    ValueError: for an algorithm that cannot go on with the numbers of workers that come, or a record of other rounds.
  """
  every = trainer.all
  if recorded:
    presence.check(recorded, virtual_time.round_steps(every.algorithm))
  else:
    charged = virtual_time.charges(experiment, every.traffic)
    recorded = virtual_time.drawn_presence(experiment, every.algorithm, charged)
  _check(experiment, trainer, recorded)
  trainer.presence = recorded


def _check(experiment: Experiment, trainer: Elastic, recorded: Presence) -> None:
  params = jax.eval_shape(trainer.all.model.init, jax.random.key(0))[0]
  try:
    elastic.check(lambda count: _algorithm(replace(experiment, workers=count)), params, recorded)
  except ValueError as error:
    raise ValueError(f"config.elastic with {experiment.label}: {error}") from error


def keep(folder: RunFolder, found: Presence) -> None:
  """Write who is present when to a run's folder; ValueError if a run that is there already has another presence."""
  file = folder.path / PRESENCE
  if not file.exists():
    if folder.writes:
      folder.path.mkdir(parents=True, exist_ok=True)
      presence.save(file, found)
  elif presence.load(file, found.workers) != found:
    raise ValueError(f"{file} has another presence than this run; --resume --workdir={folder.path} alone goes on")


def _algorithm(experiment: Experiment) -> Algorithm:
  made = experiment.make_algorithm()
  assert isinstance(made, Algorithm)
  return made
