"""Build the data, model, algorithm, sampler, trainer and clock of an experiment."""

import warnings
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np

from ddl import elastic, hosts, memory
from ddl.api import Algorithm, Data, Model, ServerAlgorithm
from ddl.asynchronous.simulator import Simulator
from ddl.config.catalog import factory
from ddl.config.experiment import Experiment
from ddl.config.options import ON_RAY, RunOptions
from ddl.config.user_code import is_address, is_in_memory
from ddl.contract import of_collective, of_model, of_server, trace_model
from ddl.data import checks
from ddl.data.sampling import ExampleSampler, batches, round_batches
from ddl.data.stream import StreamFeed
from ddl.engine import traffic
from ddl.engine.compiled_trainer import CompiledTrainer
from ddl.engine.execution import ExecutionConfig, choose_execution
from ddl.engine.injected import inject
from ddl.engine.placement import find_rules
from ddl.engine.trainer import Feed, Trainer
from ddl.engine.workers import Workers, divisors, make_workers, nbytes
from ddl.errors import OptionError
from ddl.events.presence import Presence
from ddl.perf import hybrid
from ddl.perf.layers import Layer, Table
from ddl.precision import in_bfloat16
from ddl.run import setting_warnings, virtual_time
from ddl.run.virtual_time import EventClock, LockstepClock, RunClock
from ddl.sharding import Rules, columns


class Components(NamedTuple):
  """An experiment and the objects that `build` creates from it."""

  experiment: Experiment
  data: Data
  model: Model
  algorithm: Algorithm | ServerAlgorithm
  order: ExampleSampler | None  # samples the workers' examples; None if the training set is a stream

  def feed(self, workers: list[int]) -> Feed:
    """Return the function (first step, number of steps) -> batches: arrays [len(workers), steps, batch, ...].

    workers: IDs of the workers. If the training set is a stream, return a new `StreamFeed`.
    """
    train, order, experiment = self.data.train, self.order, self.experiment
    if train.stream:
      check = checks.batch_check(self.data.meta, "training")
      return StreamFeed(
        train.stream, workers, count=experiment.workers, batch=experiment.batch, seed=experiment.seed, check=check
      )
    assert order
    return lambda first, steps: batches(train, order, workers, first, steps)

  def training_feed(self, workers: list[int]) -> Any:
    """Return the `Feed` of these workers, or the `RoundFeed` of a server algorithm."""
    if not self.experiment.has_server:
      return self.feed(workers)
    order = self.order
    assert order  # `build` rejects streams
    return lambda rounds, steps: round_batches(self.data.train, order, rounds, steps)


def build(experiment: Experiment, data: Data | None = None) -> Components:
  """Build the objects of an experiment. data: the loaded data set; None: load it.

  Raises:
    ValueError: if a setting or the data set is invalid, or the examples of a step do not fit into memory.
  """
  algorithm = experiment.make_algorithm()
  if experiment.elastic and experiment.has_server:
    raise ValueError(
      f"config.elastic must be False with {experiment.algorithm.short_name}, got True. This algorithm already "
      "continues when a worker fails."
    )
  pull = _pull(experiment)
  if pull > 2:
    raise ValueError(
      f"config.algorithm.alpha x {experiment.workers} workers must be at most 2, got {pull:g}. Above 2 the center "
      "diverges; the authors of EASGD use 0.9."
    )
  data = data or load(experiment)
  _check_stream(experiment, data)
  model = make_model(experiment, data)
  _check_contract(experiment, algorithm, model, data)
  example = sum(x.nbytes for x in data.train.take(np.zeros(1, np.int64)).values())
  step = experiment.workers // hosts.processes() * min(experiment.batch, data.train.size) * example
  what = f"the examples for one step with config.workers={experiment.workers}"
  memory.require(step + 16 * experiment.workers, what)
  order = _order(experiment, data)
  setting_warnings.warn(experiment, algorithm, pull)  # last, so that no warning precedes an error
  return Components(experiment, data, model, algorithm, order)


def _check_contract(experiment: Experiment, algorithm: Any, model: Model, data: Data) -> None:
  """Trace a user-defined model, algorithm or wrapper. Raises ValueError if a function returns a wrong structure."""
  custom = [kind for kind in ("model", "algorithm", "wrapper") if is_address(getattr(experiment, kind).name)]
  try:
    if "model" in custom:
      trace_model(model, data.train.take(np.arange(min(2, data.train.size))))
    if {"algorithm", "wrapper"} & {*custom}:
      params = param_shapes(model)
      if experiment.has_server:
        of_server(algorithm, params)
      else:
        traffic.of(of_collective(algorithm), params, experiment.workers)
  except ValueError as error:
    names = ", ".join(f"config.{kind}.name={getattr(experiment, kind).name}" for kind in custom)
    raise ValueError(f"user-defined code ({names}): {error}") from error


def make_model(experiment: Experiment, data: Data) -> Model:
  """Build an experiment's model for a data set; the experiment also sets the precision and the microbatches."""
  try:
    model = experiment.make_part("model", data.meta)
  except KeyError as error:
    if error.args[0] in data.meta:
      raise
    keys = ", ".join(map(str, data.meta)) or "none"
    condition = f"a dictionary with the key '{error.args[0]}' for this model"
    raise OptionError("the data set's meta", condition, f"only these keys: {keys}") from error
  model = of_model(model)._replace(microbatches=experiment.microbatches)
  return in_bfloat16(model) if experiment.precision == "bfloat16" else model


def param_shapes(model: Model) -> Any:
  """Return the shapes and dtypes of a model's parameters without initializing the devices."""
  return jax.eval_shape(lambda: model.init(jax.random.key(0)))[0]


def params_bytes(model: Model) -> int:
  """Return the size of a model's parameters in bytes."""
  return nbytes(param_shapes(model))


def variant(components: Components, experiment: Experiment) -> Components:
  """Replace the experiment by one that differs only in the seed or in traced settings; do not repeat warnings."""
  return components._replace(experiment=experiment, order=_order(experiment, components.data))


def _check_stream(experiment: Experiment, data: Data) -> None:
  """Raise OptionError for a streamed test set, or for settings that streamed training data does not support."""
  if any(part.stream for part in (data.test, *data.tests.values(), *filter(None, [data.validation]))):
    raise OptionError(
      "config.data.name", "a data set without streamed test or validation examples", experiment.data.short_name
    )
  if not data.train.stream:
    return
  if experiment.has_server:
    condition = "a collective algorithm for streamed training data (which can only be read in order)"
    raise OptionError("config.algorithm.name", condition, experiment.algorithm.short_name)
  if experiment.partition.name != "iid":
    condition = "iid for streamed training data (which is already sharded by worker)"
    raise OptionError("config.partition.name", condition, experiment.partition.short_name)
  if experiment.noise_batches:
    condition = "0 for streamed training data (from which batches cannot be drawn at random)"
    raise OptionError("config.noise_batches", condition, experiment.noise_batches)


def _order(experiment: Experiment, data: Data) -> ExampleSampler | None:
  if data.train.stream:
    return None
  shards = experiment.make_part(
    "partition", data.train.size, data.train.labels, workers=experiment.workers, seed=experiment.seed
  )
  repeat = experiment.partition.get("repeat", False)
  return ExampleSampler(shards, batch=experiment.batch, seed=experiment.seed, repeat=repeat)


def _pull(experiment: Experiment) -> float:
  """Return workers x alpha, the weight with which all workers together pull the center.

  Return 0 if workers update the center one at a time, and for a user-defined algorithm, whose alpha may have another
  meaning.

  Raises:
    OptionError: if workers update the center one at a time and alpha is outside [0, 1].
  """
  alpha = experiment.algorithm.get("alpha", 0.0)
  if is_address(experiment.algorithm.name):
    return 0.0
  if experiment.spec.taxonomy.pattern != "round robin":
    return alpha * experiment.workers
  if not 0 <= alpha <= 1:
    advice = "A larger or negative alpha makes the center diverge."
    raise OptionError("config.algorithm.alpha", "in [0, 1]", f"{alpha:g}", advice)
  return 0.0


def load(experiment: Experiment) -> Data:
  """Load and check an experiment's data set. Raises ValueError as `checks.checked` does."""
  ours = getattr(factory("data", experiment.data.name), "__module__", "").startswith("ddl.")
  return checks.checked(experiment.make_part("data"), complete=ours)


def make_trainer(
  components: Components, options: RunOptions, recorded: Any = None, traced: Sequence[str] = ()
) -> tuple[Trainer, RunClock]:
  """Build the trainer and clock of a run with runtime=simulator.

  Args:
    recorded: the schedule (`Events`) or the presence of workers (`Presence`) to replay; None: draw it from the config.
    traced: settings that may differ between the runs of a batch, see `traced_settings`.
  """
  experiment, algorithm = components.experiment, components.algorithm
  workers = make_workers(experiment.workers, options.devices or None, options.members)
  if experiment.elastic:
    trainer = elastic.in_virtual_time(partial(round_trainer, components, options, workers), workers)
    return trainer, follow(trainer, experiment, recorded)
  if isinstance(algorithm, ServerAlgorithm):
    schedule = virtual_time.whole_run(experiment, algorithm, recorded)
    simulator = Simulator(algorithm, components.model, workers, execution(components, workers, options), *schedule)
    return simulator, EventClock(experiment.workers, simulator.events, simulator.virtual_seconds)
  if traced:

    def make(values: Mapping[str, Any]) -> Algorithm:
      return cast(Algorithm, experiment.with_numbers(values).make_algorithm())

    components = components._replace(algorithm=inject(make, experiment.numbers(traced)))
  compiled = _compiled(components, options, workers)
  return compiled, follow(compiled, experiment, recorded)


def traced_settings(components: Components, paths: Iterable[str]) -> list[str]:
  """Return the settings of `paths` ("section.key") that can be arguments of a compiled program instead of constants.

  Return [] for an algorithm with a server or peers, for an elastic run, and if parameters do not have JAX's default
  float type.
  """
  experiment = components.experiment
  types = {x.dtype for x in jax.tree.leaves(param_shapes(components.model))}
  if experiment.in_virtual_time or types - {jnp.result_type(float)}:
    return []
  return [path for path in paths if experiment.traceable(path)]


def follow(trainer: Any, experiment: Experiment, recorded: Presence | None = None) -> RunClock:
  """Make a trainer follow an experiment's event schedule or presence of workers; return the run's clock.

  Both depend on the experiment's seed. A trainer of a collective algorithm without elastic membership needs neither.

  Args:
    recorded: the presence of workers to replay; None: draw it from the config.

  Raises:
    ValueError: if the algorithm cannot continue with the workers that are present, or if `recorded` is given for a run
      with config.elastic=False.
  """
  if isinstance(trainer, Simulator):
    trainer.follow(*virtual_time.whole_run(experiment, trainer.algorithm))
    return EventClock(experiment.workers, trainer.events, trainer.plans.seconds)
  if not isinstance(trainer, elastic.ElasticTrainer):
    if recorded:
      raise OptionError("config.elastic", "True to replay the presence of workers", False)
    return LockstepClock(experiment, trainer.algorithm, trainer.traffic)
  every = trainer.all
  clock = LockstepClock(experiment, every.algorithm, every.traffic, recorded or True)
  presence = recorded or clock.drawn_presence()
  trainer.follow(presence, virtual_time.round_steps(every.algorithm), by_workers(experiment), experiment.label)
  return elastic.ElasticClock(trainer, clock)


def by_workers(experiment: Experiment) -> Callable[[int], Algorithm]:
  """Return a function that maps a number of workers to the experiment's algorithm for that number."""
  return lambda count: cast(Algorithm, replace(experiment, workers=count).make_algorithm())


def _compiled(components: Components, options: RunOptions, workers: Workers) -> CompiledTrainer:
  """Build the trainer of a collective algorithm; `workers.count` may differ from the experiment's number of workers."""
  experiment, algorithm = components.experiment, components.algorithm
  if workers.count != experiment.workers:
    experiment = replace(experiment, workers=workers.count)
    algorithm = experiment.make_algorithm()
  model, how = with_auto(components.model, experiment, options.members), execution(components, workers, options)
  return CompiledTrainer(cast(Algorithm, algorithm), model, workers, how)


def round_trainer(components: Components, options: RunOptions, every: Workers, workers: Workers) -> CompiledTrainer:
  """Build the trainer of an elastic run for one set of present workers; by default, a call runs at most one round.

  An elastic run has such a trainer, with its own programs, for each set. every: all workers of the run; workers: those
  that are present.
  """
  round_steps = virtual_time.round_steps(cast(Algorithm, components.algorithm))
  longest = min(execution(components, every, options).steps_per_call, round_steps)
  options = replace(options, steps_per_call=options.steps_per_call or longest)
  if components.model.dense and options.virtual_grad == "auto":
    options = replace(options, virtual_grad="vmap")  # compiles fastest, and each set of workers has its own programs
  return _compiled(components, options, workers)


def check_options(
  components: Components, options: RunOptions, replaceable: bool = False, clusters: Collection[str] = ()
) -> None:
  """Check that an experiment supports the options for several processes, elastic training and members.

  Members are the devices of one worker.

  Args:
    replaceable: whether Ray replaces failed processes.
    clusters: names of the clusters for which to predict the training time.

  Raises:
    ValueError: if the experiment does not support an option, or members x microbatches does not divide config.batch.
  """
  experiment, members = components.experiment, options.members
  if several := next((name for name in ("processes", "max_restarts") if name in options.changed()), ""):
    parts = {kind: getattr(experiment, kind) for kind in ("data", "optimizer")}
    if passed := [part.short_name for part in parts.values() if is_in_memory(part.name)]:
      advice = f"Other processes cannot import {passed[0]}: pass a function at the top level of a file."
      raise OptionError(several, f"unset with {passed[0]}", options.changed()[several], advice)
  if experiment.elastic:
    deaths = experiment.times.get("death_rate")
    if clusters:
      advice = "Predicted times do not account for failures."
      raise OptionError("cluster", "unset with config.elastic=True", ", ".join(clusters), advice)
    if members > 1:
      raise OptionError("members", "1 with config.elastic=True", members)
    if replaceable and deaths:
      raise ValueError(
        f"config.times.death_rate must be 0 with several processes, got {deaths:g}. Failures can be simulated only "
        "with processes=1."
      )
    if not replaceable and max(options.processes, hosts.processes()) > 1:
      raise ValueError(
        f"processes must be 1 with config.elastic=True in compare and sweep, got "
        f"{max(options.processes, hosts.processes())}. Only train can continue after losing a process."
      )
    if not replaceable and not (deaths or options.replay):
      warnings.warn("config.elastic has no effect: config.times.death_rate is 0", stacklevel=2)
  for name, value in options.changed().items():
    if name in ON_RAY and options.runtime == "simulator" and not replaceable:
      raise OptionError(name, "unset with config.elastic=False", value, "Only elastic runs and runtime=ray use it.")
  if members == 1:
    return
  if experiment.has_server:
    advice = "A worker of an algorithm with a server has one device."
    raise OptionError("members", f"1 with {experiment.algorithm.short_name}", members, advice)
  if find_rules(with_auto(components.model, experiment, members), options.sharding).splits_batch:
    parts = experiment.microbatches * members
    if experiment.batch % parts:
      product = (
        f"{members} members" if parts == members else f"{members} members x {experiment.microbatches} microbatches"
      )
      raise OptionError("config.batch", f"a multiple of {parts} ({product})", experiment.batch)


def execution(components: Components, workers: Workers, options: RunOptions) -> ExecutionConfig:
  """Return how to execute the components' model on this backend; `options` override the defaults."""
  nbytes = step_bytes(components, workers)
  return execution_of(components.model, workers, nbytes, components.experiment.steps, options)


def execution_of(model: Model, workers: Workers, nbytes: int, steps: int, options: RunOptions) -> ExecutionConfig:
  """Return how to execute a model on this backend.

  nbytes: the input bytes of a step, see `step_bytes`; steps: the planned number of steps.
  """
  default = choose_execution(workers, model, nbytes, steps)
  gradients: Any = default.gradients if options.virtual_grad == "auto" else options.virtual_grad
  step_loop: Any = default.steps if options.step_loop == "auto" else options.step_loop
  longest = options.steps_per_call or default.steps_per_call
  return ExecutionConfig(gradients, step_loop, longest, options.overlap, options.sharding)


def step_bytes(components: Components, workers: Workers) -> int:
  """Return the bytes of the training batches that this process's workers read in one step."""
  one = components.data.train.take(np.zeros(1, np.int64))
  return len(workers.local) * components.experiment.batch * sum(x.nbytes for x in one.values())


AUTO = "auto"


def with_auto(model: Model, experiment: Experiment, members: int) -> Model:
  """Add sharding rules "auto" to a model with "hybrid" rules: per layer, the split that sends the fewest bytes.

  members: devices per worker.
  """
  if "hybrid" not in model.rules:
    return model
  return model._replace(rules={**model.rules, AUTO: _rules(model, experiment, members)})


def _rules(model: Model, experiment: Experiment, members: int) -> Rules:
  workers, nodes, table = experiment.workers, experiment.workers * members, _table(model)
  total = workers * experiment.batch
  split = [layer.name for layer in table if _inside(layer, total, nodes, workers) < _across(layer, total, nodes)]
  sums = {groups: sum(_least(layer, total, nodes, groups) for layer in table) for groups in divisors(nodes)}
  best = nodes // min(sums, key=lambda groups: (sums[groups], -groups))  # N / G*
  layers = f"{', '.join(split)} by outputs" if split else "all layers by examples"
  note = f"{layers}; on {nodes} devices, workers with {best} devices send the fewest bytes"
  return columns([layer.name for layer in table], model.rules["hybrid"].batch, split)._replace(note=note)


def _least(layer: Layer, total: int, nodes: int, groups: int) -> float:
  return min(_inside(layer, total, nodes, groups), _across(layer, total, nodes))


def _inside(layer: Layer, total: int, nodes: int, groups: int) -> float:
  """Return the bytes that a device (node) sends per step if the devices of each group split the layer by outputs."""
  if groups == nodes or layer.outputs % (nodes // groups):  # a layer whose outputs do not divide evenly is not split
    return _across(layer, total, nodes)
  return hybrid.volume(layer, total, nodes, groups).total


def _across(layer: Layer, total: int, nodes: int) -> float:
  """Return the bytes that a device (node) sends per step if all devices replicate the layer and split the examples."""
  return hybrid.volume(layer, total, nodes, nodes).total


def _table(model: Model) -> Table:
  """Return the table of the dense layers that hybrid (data- and model-parallel) sharding may split."""
  params = param_shapes(model)
  return tuple(Layer(name, *params[name]["kernel"].shape) for name in model.rules["hybrid"].layers)
