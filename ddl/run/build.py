"""From an experiment to its parts: data, model, algorithm, order of the examples."""

from dataclasses import replace
from typing import Any, NamedTuple

import jax
import numpy as np

from ddl import hosts, memory
from ddl.api import Algorithm, Data, Model, ServerAlgorithm
from ddl.config.catalog import factory
from ddl.config.experiment import Experiment
from ddl.config.user_code import is_address
from ddl.contract import of_collective, of_model, of_server, trace_model
from ddl.data import checks
from ddl.data.order import Order, batches, round_batches
from ddl.data.stream import StreamFeed
from ddl.engine import traffic
from ddl.engine.trainer import Feed
from ddl.engine.workers import nbytes
from ddl.precision import in_bfloat16
from ddl.run import setting_warnings


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
      check = checks.batch_check(self.data.meta, "training")
      return StreamFeed(train.stream, workers, count=chosen.workers, batch=chosen.batch, seed=chosen.seed, check=check)
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
  _check_contract(experiment, algorithm, model, data)
  example = sum(x.nbytes for x in data.train.take(np.zeros(1, np.int64)).values())
  step = experiment.workers // hosts.processes() * min(experiment.batch, data.train.size) * example
  told = f"config.workers is {experiment.workers}: the examples of one step of all"
  memory.require(step + 16 * experiment.workers, told)
  order = _order(experiment, data)
  setting_warnings.warn(experiment, algorithm, pull)  # nothing is refused any more: an error is one line alone
  return Components(experiment, data, model, algorithm, order)


def _check_contract(
  experiment: Experiment, algorithm: Algorithm | ServerAlgorithm, model: Model, data: Data
) -> None:  # fmt: skip
  """Trace the functions of user-defined parts. ValueError, one line, for one that returns what it must not."""
  own = [kind for kind in ("model", "algorithm", "wrapper") if is_address(getattr(experiment, kind).name)]
  try:
    if "model" in own:
      trace_model(model, data.train.take(np.arange(min(2, data.train.size))))
    if {"algorithm", "wrapper"} & {*own}:
      params, _ = jax.eval_shape(model.init, jax.random.key(0))
      if isinstance(algorithm, Algorithm):
        traffic.of(of_collective(algorithm), params, experiment.workers)
      else:
        of_server(algorithm, params)
  except ValueError as error:
    names = ", ".join(f"config.{kind}.name is {getattr(experiment, kind).name}" for kind in own)
    raise ValueError(f"{names}: {error}") from error


def make_model(experiment: Experiment, data: Data) -> Model:
  """Its model for this data set, in its precision and with its microbatches."""
  try:
    model = experiment.make_part("model", data.meta)
  except KeyError as error:
    if error.args[0] in data.meta:
      raise
    raise ValueError(
      f"meta of the data must have '{error.args[0]}', which the model reads, got {', '.join(map(str, data.meta))}."
    ) from error
  model = of_model(model)._replace(microbatches=experiment.microbatches)
  return in_bfloat16(model) if experiment.precision == "bfloat16" else model


def params_bytes(model: Model) -> int:
  """Return the bytes of a model's parameters."""
  return nbytes(jax.eval_shape(model.init, jax.random.key(0))[0])


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
  """Its data set, whose examples are checked. ValueError for labels, tokens or targets that do not fit `Data.meta`."""
  ours = getattr(factory("data", experiment.data.name), "__module__", "").startswith("ddl.")
  return checks.checked(experiment.make_part("data"), complete=ours)
