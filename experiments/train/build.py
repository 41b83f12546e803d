"""From an experiment to its parts, and from these to a trainer on real devices."""

import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import jax
import numpy as np

from ddl import memory
from ddl.api import Algorithm, Data, Model, ServerAlgorithm
from ddl.data.order import Order, batches, round_batches
from ddl.events.record import Events
from ddl.perf.units import counted
from ddl.runtime import hosts
from ddl.runtime.execution import ExecutionConfig, choose_execution
from ddl.runtime.trainer import Feed, Trainer
from ddl.runtime.virtual.simulator import Simulator
from ddl.runtime.workers import Workers, make_workers
from ddl.schedule import Schedule
from experiments.config.experiment import Experiment
from experiments.config.options import RunOptions
from experiments.config.own_objects import is_address
from experiments.train import virtual_time


class Components(NamedTuple):
  """An experiment made real."""

  experiment: Experiment
  data: Data
  model: Model
  algorithm: Algorithm | ServerAlgorithm
  order: Order

  def feed(self, workers: list[int]) -> Feed:
    """The batches of these workers: (first step, steps) -> arrays [len(workers), steps, batch, ...]."""
    return lambda first, steps: batches(self.data.train, self.order, workers, first, steps)

  def training_feed(self, workers: list[int]) -> Any:
    """The `Feed` of these workers, or for a server algorithm the `RoundFeed`: what the algorithm's trainer takes."""
    if isinstance(self.algorithm, Algorithm):
      return self.feed(workers)
    return lambda rounds, steps: round_batches(self.data.train, self.order, rounds, steps)


def build(experiment: Experiment, data: Data | None = None) -> Components:
  """Makes the parts of an experiment; `data`: already loaded, where several experiments share it.

  Raises:
    ValueError: whatever the parts find wrong with their settings.
  """
  algorithm = experiment.make_algorithm()
  pull = _pull(experiment)
  if pull > 2:
    raise ValueError(
      f"config.algorithm.alpha x {experiment.workers} workers is {pull:g}: above 2 the center diverges; the authors "
      "take 0.9"
    )
  data = data or load(experiment)
  model = experiment.make_part("model", data.meta)
  example = sum(x.nbytes for x in data.train.take(np.zeros(1, np.int64)).values())
  step = experiment.workers // hosts.processes() * min(experiment.batch, data.train.size) * example
  told = f"config.workers is {experiment.workers}: the examples of one step of all"
  memory.require(step + 16 * experiment.workers, told)
  order = _order(experiment, data)
  _warn_of_wrapper(experiment)
  _warn_of_silence(experiment, algorithm)
  _warn_of_momentum(experiment)  # nothing is refused any more: an error is one line alone
  if pull > 1:  # the center's own coefficient is 1 - p alpha: beyond 2 it diverges
    warnings.warn(f"p alpha = {pull:g} exceeds 1, so that the center overshoots; the authors take 0.9", stacklevel=2)
  return Components(experiment, data, model, algorithm, order)


def reseeded(components: Components, seed: int) -> Components:
  """The same parts with another seed, which the order of the examples follows; no warning is said again."""
  experiment = replace(components.experiment, seed=seed)
  return components._replace(experiment=experiment, order=_order(experiment, components.data))


def _order(experiment: Experiment, data: Data) -> Order:
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


def make_trainer(components: Components, options: RunOptions, events: Events | None = None) -> Trainer | Simulator:
  """The trainer of an experiment, run as the options say, or as chosen for this backend and model.

  events: what a simulator follows, in place of the experiment's schedule.
  """
  experiment, algorithm = components.experiment, components.algorithm
  workers = make_workers(experiment.workers, options.devices or None)
  chosen = execution(components, workers, options)
  if isinstance(algorithm, Algorithm):
    return Trainer(algorithm, components.model, workers, chosen)
  return Simulator(algorithm, components.model, workers, chosen, *virtual_time.whole_run(experiment, algorithm, events))


def follow(trainer: Trainer | Simulator, experiment: Experiment) -> Callable[[int], float]:
  """Step -> virtual seconds of a run of this experiment, whose schedule a simulator then follows."""
  if isinstance(trainer, Simulator):
    trainer.follow(*virtual_time.whole_run(experiment, trainer.algorithm))
  return virtual_seconds(trainer, experiment)


def virtual_seconds(trainer: Trainer | Simulator, experiment: Experiment) -> Callable[[int], float]:
  """Step -> virtual seconds of a run of this experiment; a simulator's are those of the schedule that it follows."""
  if isinstance(trainer, Trainer):
    charged = virtual_time.charges(experiment, trainer.traffic)
    return virtual_time.lockstep_seconds(experiment, trainer.algorithm, charged)
  return trainer.virtual_seconds


def execution(components: Components, workers: Workers, options: RunOptions) -> ExecutionConfig:
  """Execution chosen for this backend and model, with the options over it."""
  step = components.feed(workers.local)(0, 1)
  chosen = choose_execution(workers, components.model.dense, sum(x.nbytes for x in step.values()))
  gradients: Any = chosen.gradients if options.virtual_grad == "auto" else options.virtual_grad
  steps: Any = chosen.steps if options.step_loop == "auto" else options.step_loop
  return ExecutionConfig(gradients, steps, options.steps_per_call or chosen.steps_per_call, options.overlap)


def describe(trainer: Trainer | Simulator) -> str:
  """Describe layout and execution in one line."""
  w, h = trainer.workers, trainer.execution
  devices = counted(w.devices, f"{jax.devices()[0].platform} device")
  layout = (
    f"{counted(w.count, 'worker')} on {devices} of {counted(jax.process_count(), 'process', 'processes')}, "
    f"{w.virtual} each; gradients {h.gradients}, steps {h.steps}, up to {h.steps_per_call} steps a call, "
  )
  if isinstance(trainer, Simulator):
    return layout + f"virtual time: {len(trainer.events.worker)} visits"
  alike = not any(jax.tree.leaves(trainer.replication.params))
  copies = "one model per device, as all workers' are equal" if alike else "one model per worker"
  return layout + f"overlap {'on' if h.overlap else 'off'}; {copies}"


def _warn_of_wrapper(experiment: Experiment) -> None:
  """Warn of a compressor of small changes where whole models are sent."""
  spec = experiment.wrapper_spec
  if spec and experiment.spec.taxonomy.payload == "parameters" != spec.payload:
    warnings.warn(
      f"{experiment.algorithm.short_name} sends parameters; {experiment.wrapper.short_name} is made for gradients and "
      "differences, as diloco's",
      stacklevel=2,
    )


def _warn_of_silence(experiment: Experiment, algorithm: Algorithm | ServerAlgorithm) -> None:
  """Warn of a run that ends before any exchange does: each worker trains alone."""
  clocks = Schedule(algorithm.exchanges).clocks if isinstance(algorithm, Algorithm) else []
  if clocks and (first := min(clock.first + clock.delay for clock in clocks)) > experiment.steps:
    warnings.warn(
      f"{experiment.label}: the first exchange arrives after {first} steps, this run has {experiment.steps}, so that "
      "nothing is exchanged; take a shorter config.algorithm.period, or more steps",
      stacklevel=2,
    )


def _warn_of_momentum(experiment: Experiment) -> None:
  """Warn of a second momentum: the algorithm's own, or the implicit one of asynchrony."""
  name, workers = experiment.algorithm.short_name, experiment.workers
  own, momentum = experiment.algorithm.get("momentum"), experiment.optimizer.get("momentum")
  if own and momentum:
    warnings.warn(
      f"{name} has a momentum of its own ({own:g}); config.optimizer.momentum adds a second one to it", stacklevel=2
    )
  elif (own or momentum) and experiment.spec.taxonomy[1:3] == ("centralized", "asynchronous") and workers > 1:
    chosen = f"config.algorithm.momentum={own:g}" if own else f"config.optimizer.momentum={momentum:g}"
    warnings.warn(
      f"{name}: {workers} workers in turn act like a momentum of about 1 - 1/{workers} = {1 - 1 / workers:.3g} "
      f"(Mitliagkas et al. 2016, arXiv 1605.09774); {chosen} adds to it; try 0, or less of it",
      stacklevel=2,
    )
