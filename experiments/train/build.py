"""From an experiment to its parts, and from these to a trainer on real devices."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import jax
import numpy as np

from ddl import memory
from ddl.api import Algorithm, Data, Model, ServerAlgorithm
from ddl.data.order import Order, batches, round_batches
from ddl.data.stream import StreamFeed
from ddl.events.presence import Presence
from ddl.events.record import Events
from ddl.perf.units import counted
from ddl.precision import in_bfloat16
from ddl.runtime import hosts
from ddl.runtime.elastic import Elastic
from ddl.runtime.execution import ExecutionConfig, choose_execution
from ddl.runtime.layout.placement import find_rules
from ddl.runtime.layout.workers import Workers, make_workers
from ddl.runtime.trainer import Feed, Trainer
from ddl.runtime.virtual.simulator import Simulator
from experiments.config.experiment import Experiment
from experiments.config.options import RunOptions
from experiments.config.own_objects import is_address
from experiments.train import doubtful_settings, elastic, virtual_time
from experiments.train.auto_sharding import with_auto

AnyTrainer = Trainer | Simulator | Elastic


class Components(NamedTuple):
  """An experiment made real."""

  experiment: Experiment
  data: Data
  model: Model
  algorithm: Algorithm | ServerAlgorithm
  order: Order | None  # None: of a stream

  def feed(self, workers: list[int]) -> Feed:
    """The batches of these workers: (first step, steps) -> arrays [len(workers), steps, batch, ...].

    Those of a stream are a new `StreamFeed`.
    """
    train, order, chosen = self.data.train, self.order, self.experiment
    if train.stream:
      return StreamFeed(train.stream, workers, count=chosen.workers, batch=chosen.batch, seed=chosen.seed)
    assert order
    return lambda first, steps: batches(train, order, workers, first, steps)

  def training_feed(self, workers: list[int]) -> Any:
    """The `Feed` of these workers, or for a server algorithm the `RoundFeed`: what the algorithm's trainer takes."""
    if isinstance(self.algorithm, Algorithm):
      return self.feed(workers)
    order = self.order
    assert order  # `build` refuses streams
    return lambda rounds, steps: round_batches(self.data.train, order, rounds, steps)


def build(experiment: Experiment, data: Data | None = None) -> Components:
  """Makes the parts of an experiment; `data`: already loaded, where several experiments share it.

  Raises:
    ValueError: whatever the parts find wrong with their settings.
  """
  algorithm = experiment.make_algorithm()
  if experiment.elastic and isinstance(algorithm, ServerAlgorithm):
    raise ValueError(
      f"config.elastic is of collective algorithms: with {experiment.algorithm.short_name} the others go on without a "
      "worker that dies anyway; --config.elastic=False"
    )
  pull = _pull(experiment)
  if pull > 2:
    raise ValueError(
      f"config.algorithm.alpha x {experiment.workers} workers is {pull:g}: above 2 the center diverges; the authors "
      "take 0.9"
    )
  data = data or load(experiment)
  _check_stream(experiment, algorithm, data)
  model = make_model(experiment, data)
  example = sum(x.nbytes for x in data.train.take(np.zeros(1, np.int64)).values())
  step = experiment.workers // hosts.processes() * min(experiment.batch, data.train.size) * example
  told = f"config.workers is {experiment.workers}: the examples of one step of all"
  memory.require(step + 16 * experiment.workers, told)
  order = _order(experiment, data)
  doubtful_settings.warn(experiment, algorithm, pull)  # nothing is refused any more: an error is one line alone
  return Components(experiment, data, model, algorithm, order)


def make_model(experiment: Experiment, data: Data) -> Model:
  """Its model for this data set, in its precision and with its microbatches."""
  model = experiment.make_part("model", data.meta)._replace(microbatches=experiment.microbatches)
  return in_bfloat16(model) if experiment.precision == "bfloat16" else model


def reseeded(components: Components, seed: int) -> Components:
  """The same parts with another seed, which the order of the examples follows; no warning is said again."""
  experiment = replace(components.experiment, seed=seed)
  return components._replace(experiment=experiment, order=_order(experiment, components.data))


def _check_stream(experiment: Experiment, algorithm: Algorithm | ServerAlgorithm, data: Data) -> None:
  """ValueError, one line, for what a stream of training examples cannot do, or a test set that is one."""
  if data.test.stream or (data.validation and data.validation.stream):
    raise ValueError(f"config.data.name is {experiment.data.short_name}: a stream can be its training set alone")
  if not data.train.stream:
    return
  told = f"config.data.name is {experiment.data.short_name}, whose training set is a stream"
  if isinstance(algorithm, ServerAlgorithm):
    raise ValueError(
      f"{told}; invalid with {experiment.algorithm.short_name}: must be an algorithm without a server or peers, whose "
      "steps come in order"
    )
  if experiment.partition.name != "iid":
    raise ValueError(f"{told}: config.partition.name must be iid, as the stream itself gives each worker its shard")
  if experiment.noise_batches:
    raise ValueError(f"{told}: config.noise_batches must be 0, as other batches than those of training cannot be drawn")


def _order(experiment: Experiment, data: Data) -> Order | None:
  if data.train.stream:
    return None
  shards = experiment.make_part(
    "partition", data.train.size, data.train.labels, workers=experiment.workers, seed=experiment.seed
  )
  repeat = experiment.partition.get("repeat", False)
  return Order(shards, batch=experiment.batch, seed=experiment.seed, repeat=repeat)


def _pull(experiment: Experiment) -> float:
  """Return p alpha where all workers can pull at a center at the same time; an own algorithm's alpha is anything.

  Raises:
    ValueError: if alpha is not in 0..1 where one worker at a time does.
  """
  alpha = experiment.algorithm.get("alpha", 0.0)
  if is_address(experiment.algorithm.name):
    return 0.0
  if experiment.spec.taxonomy.pattern != "round robin":
    return alpha * experiment.workers
  if not 0 <= alpha <= 1:
    raise ValueError(f"config.algorithm.alpha is {alpha:g}; invalid: must be in 0..1, above which the center diverges")
  return 0.0


def load(experiment: Experiment) -> Data:
  """Its data set."""
  return experiment.make_part("data")


def make_trainer(components: Components, options: RunOptions, recorded: Events | Presence | None = None) -> AnyTrainer:
  """The trainer of an experiment, run as the options say, or as chosen for this backend and model.

  recorded: what a simulator, or workers that come and go, follow in place of the experiment's schedule.
  """
  experiment, algorithm = components.experiment, components.algorithm
  if experiment.elastic:
    assert not isinstance(recorded, Events)
    return elastic.make(experiment, partial(_trainer, components, options), options, recorded)
  assert not isinstance(recorded, Presence)
  if isinstance(algorithm, Algorithm):
    return _trainer(components, options, experiment, options.devices)
  workers = make_workers(experiment.workers, options.devices or None)
  chosen, whole = execution(components, workers, options), virtual_time.whole_run(experiment, algorithm, recorded)
  return Simulator(algorithm, components.model, workers, chosen, *whole)


def _trainer(components: Components, options: RunOptions, experiment: Experiment, devices: int) -> Trainer:
  """The trainer of an experiment with these components, of which only the number of workers may be another."""
  workers = make_workers(experiment.workers, devices or None, options.members)
  model, algorithm = with_auto(components.model, experiment, options.members), experiment.make_algorithm()
  assert isinstance(algorithm, Algorithm)
  return Trainer(algorithm, model, workers, execution(components, workers, options), options.sharding)


def check_members(components: Components, options: RunOptions) -> None:
  """ValueError if workers cannot have several devices, or the members of one cannot share its model or batch."""
  experiment, members = components.experiment, options.members
  if experiment.elastic:
    elastic.check(experiment, options)
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
