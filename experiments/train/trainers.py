"""The trainer of an experiment's parts on real devices, its clock, and what is said of it."""

from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from typing import Any

import jax
import numpy as np

from ddl.api import Algorithm, Model, ServerAlgorithm
from ddl.events.presence import Presence
from ddl.events.record import Events
from ddl.perf.units import counted
from ddl.runtime.elastic import Elastic
from ddl.runtime.execution import ExecutionConfig, choose_execution
from ddl.runtime.layout.placement import find_rules
from ddl.runtime.layout.workers import Workers, make_workers
from ddl.runtime.trainer import Trainer
from ddl.runtime.virtual.simulator import Simulator
from experiments.config.experiment import Experiment
from experiments.config.options import RunOptions
from experiments.train import virtual_time
from experiments.train.auto_sharding import with_auto
from experiments.train.build import Components
from experiments.train.elastic import runs as elastic
from experiments.train.elastic.generation import Generation

AnyTrainer = Trainer | Simulator | Elastic


def make_trainer(components: Components, options: RunOptions, recorded: Events | Presence | None = None) -> AnyTrainer:
  """The trainer of an experiment, run as the options say, or as chosen for this backend and model.

  recorded: what a simulator, or workers that come and go, follow in place of the experiment's schedule.
  """
  experiment, algorithm = components.experiment, components.algorithm
  workers = make_workers(experiment.workers, options.devices or None, options.members)
  if experiment.elastic:
    assert not isinstance(recorded, Events)
    quick = _quick(components, options, workers)
    return elastic.make(experiment, partial(_trainer, components, quick), options, recorded)
  assert not isinstance(recorded, Presence)
  if isinstance(algorithm, Algorithm):
    return _trainer(components, options, experiment, workers)
  chosen, whole = execution(components, workers, options), virtual_time.whole_run(experiment, algorithm, recorded)
  return Simulator(algorithm, components.model, workers, chosen, *whole)


def trainer_of_generation(components: Components, options: RunOptions, generation: Generation) -> Elastic:
  """The trainer of an experiment whose processes come and go, in one of them."""
  quick = _quick(components, options, generation.layout(generation.ids()))
  return elastic.of_processes(components.experiment, partial(_trainer, components, quick), generation)


def _quick(components: Components, options: RunOptions, workers: Workers) -> RunOptions:
  """The options of trainers for several numbers of workers, each of which compiles one short call: a round."""
  algorithm = components.algorithm
  assert isinstance(algorithm, Algorithm)
  steps = min(execution(components, workers, options).steps_per_call, virtual_time.round_steps(algorithm))
  return replace(vectorized(options, components.model), steps_per_call=options.steps_per_call or steps)


def _trainer(components: Components, options: RunOptions, experiment: Experiment, workers: Workers) -> Trainer:
  """The trainer of an experiment with these components, of which only the number of workers may be another."""
  model, algorithm = with_auto(components.model, experiment, options.members), experiment.make_algorithm()
  assert isinstance(algorithm, Algorithm)
  return Trainer(algorithm, model, workers, execution(components, workers, options), options.sharding)


def vectorized(options: RunOptions, model: Model) -> RunOptions:
  """The options, with gradients that are vectorized over a device's workers where they leave it open.

  Measured on XLA:CPU, those of a dense model compile in two thirds of the time of unrolled ones, and run no slower.
  """
  return replace(options, virtual_grad="vmap") if model.dense and options.virtual_grad == "auto" else options


def check_members(components: Components, options: RunOptions, lost_for_real: bool = False) -> None:
  """ValueError if workers cannot have several devices, or the members of one cannot share its model or batch.

  lost_for_real: whether those that come and go do so with their processes.
  """
  experiment, members = components.experiment, options.members
  if experiment.elastic:
    elastic.check(experiment, options, lost_for_real)
  if members == 1:
    return
  if isinstance(components.algorithm, ServerAlgorithm):
    raise ValueError(f"--members={members}: {experiment.algorithm.short_name} has workers of one device alone")
  if find_rules(with_auto(components.model, experiment, members), options.sharding).splits_batch:
    parts = experiment.microbatches * members
    if experiment.batch % parts:
      among = (
        "the members that share it" if parts == members else f"{members} members of {experiment.microbatches} parts"
      )
      raise ValueError(f"config.batch is {experiment.batch}; invalid: must be a multiple of {parts}, {among}")


def follow(trainer: AnyTrainer, experiment: Experiment) -> Callable[[int], float]:
  """Step -> virtual seconds of a run of this experiment, whose schedule a simulator then follows."""
  if isinstance(trainer, Simulator):
    trainer.follow(*virtual_time.whole_run(experiment, trainer.algorithm))
  if isinstance(trainer, Elastic):
    elastic.follow(trainer, experiment)
  return virtual_seconds(trainer, experiment)


def clock_is_virtual(components: Iterable[Components]) -> bool:
  """Whether experiments are compared by virtual seconds: where one has a server, or workers that come and go."""
  return any(isinstance(each.algorithm, ServerAlgorithm) or each.experiment.elastic for each in components)


def virtual_seconds(
  trainer: AnyTrainer, experiment: Experiment, recorded: Presence | None = None
) -> Callable[[int], float]:
  """Step -> virtual seconds of a run of this experiment; a simulator's are those of the schedule that it follows.

  recorded: the presence that a run follows in place of its deaths.
  """
  trainer = trainer.all if isinstance(trainer, Elastic) else trainer
  if isinstance(trainer, Trainer):
    charged = virtual_time.charges(experiment, trainer.traffic)
    return virtual_time.lockstep_seconds(experiment, trainer.algorithm, charged, recorded)
  return trainer.virtual_seconds


def execution(components: Components, workers: Workers, options: RunOptions) -> ExecutionConfig:
  """Execution chosen for this backend and model, with the options over it."""
  return execution_of(components.model, workers, step_bytes(components, workers), options)


def execution_of(model: Model, workers: Workers, nbytes: int, options: RunOptions) -> ExecutionConfig:
  """The same. nbytes: `step_bytes`."""
  chosen = choose_execution(workers, model.dense, nbytes)
  gradients: Any = chosen.gradients if options.virtual_grad == "auto" else options.virtual_grad
  steps: Any = chosen.steps if options.step_loop == "auto" else options.step_loop
  return ExecutionConfig(gradients, steps, options.steps_per_call or chosen.steps_per_call, options.overlap)


def step_bytes(components: Components, workers: Workers) -> int:
  """Input of one step of this process's workers."""
  one = components.data.train.take(np.zeros(1, np.int64))
  return len(workers.local) * components.experiment.batch * sum(x.nbytes for x in one.values())


def describe(trainer: AnyTrainer) -> str:
  """Describe layout and execution in one line."""
  if isinstance(trainer, Elastic):
    return describe(trainer.all)
  w, h = trainer.workers, trainer.execution
  devices = counted(w.devices, f"{jax.devices()[0].platform} device")
  members = ""
  if isinstance(trainer, Trainer) and w.members > 1:
    note = trainer.placement.rules.note
    members = f" of {w.members} members ({trainer.placement.sharding}{note and ': '}{note})"
  processes = counted(jax.process_count(), "process", "processes")
  layout = (
    f"{counted(w.count, 'worker')}{members} on {devices} of {processes}, {w.virtual} each; "
    f"gradients {h.gradients}, steps {h.steps}, up to {h.steps_per_call} steps a call, "
  )
  if isinstance(trainer, Simulator):
    return layout + f"virtual time: {len(trainer.events.worker)} visits"
  alike = not any(jax.tree.leaves(trainer.replication.params))
  copies = (
    f"one model per {'device' if w.members == 1 else 'row of members'}, as all workers' are equal"
    if alike
    else "one model per worker"
  )
  return layout + f"overlap {'on' if h.overlap else 'off'}; {copies}"
