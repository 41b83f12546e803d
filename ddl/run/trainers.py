"""The trainer of an experiment on real devices, its clock and its description."""

from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from typing import Any

import jax
import numpy as np

from ddl.api import Algorithm, Model, ServerAlgorithm
from ddl.asynchronous.simulator import Simulator
from ddl.config.experiment import Experiment
from ddl.config.options import RunOptions
from ddl.elastic import Elastic
from ddl.engine.execution import ExecutionConfig, choose_execution
from ddl.engine.placement import find_rules
from ddl.engine.trainer import Trainer
from ddl.engine.workers import Workers, divisors, make_workers
from ddl.events.presence import Presence
from ddl.events.record import Events
from ddl.perf import hybrid
from ddl.perf.layers import Layer, Table, dense
from ddl.perf.units import counted
from ddl.run import elastic, virtual_time
from ddl.run.build import Components
from ddl.run.elastic import Generation
from ddl.sharding import Rules, columns

AUTO = "auto"


def with_auto(model: Model, experiment: Experiment, members: int) -> Model:
  """Return the model with rules named "auto", if it has "hybrid" ones, for these workers of so many members."""
  if "hybrid" not in model.rules:
    return model
  return model._replace(rules={**model.rules, AUTO: _rules(model, experiment, members)})


def _rules(model: Model, experiment: Experiment, members: int) -> Rules:
  workers, nodes, table = experiment.workers, experiment.workers * members, _table(model)
  total = workers * experiment.batch
  split = [layer.name for layer in table if _inside(layer, total, nodes, workers) < _across(layer, total, nodes)]
  sums = {groups: sum(_least(layer, total, nodes, groups) for layer in table) for groups in divisors(nodes)}
  best = nodes // min(sums, key=lambda groups: (sums[groups], -groups))  # N / G*
  words = f"{', '.join(split)} by outputs" if split else "all layers by examples"
  note = f"{words}; the fewest bytes of {nodes} devices have workers of {best}"
  return columns([layer.name for layer in table], model.rules["hybrid"].batch, split)._replace(note=note)


def _least(layer: Layer, total: int, nodes: int, groups: int) -> float:
  return min(_inside(layer, total, nodes, groups), _across(layer, total, nodes))


def _inside(layer: Layer, total: int, nodes: int, groups: int) -> float:
  """Bytes of a node if the members of each group split the layer by outputs."""
  if groups == nodes or layer.outputs % (nodes // groups):  # what does not divide stays whole
    return _across(layer, total, nodes)
  return hybrid.volume(layer, total, nodes, groups).total


def _across(layer: Layer, total: int, nodes: int) -> float:
  """Bytes of a node if all share the examples."""
  return hybrid.volume(layer, total, nodes, nodes).total


def _table(model: Model) -> Table:
  """Return the dense layers that the hybrid rules split."""
  params: Any = jax.eval_shape(lambda: model.init(jax.random.key(0)))[0]  # a key outside would start the devices
  return tuple(dense(name, *params[name]["kernel"].shape) for name in model.rules["hybrid"].layers)


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
