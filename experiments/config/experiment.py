"""The config that every experiment starts from, and what it means: data, model, optimizer, algorithm, budget."""

import math
import warnings
from typing import Any, NamedTuple

import jax
import ml_collections
import numpy as np
import optax
from ml_collections import config_dict

from ddl import memory
from ddl.algorithms import COLLECTIVE, SERVER
from ddl.api import Algorithm, Data, Model, ServerAlgorithm, Source, Spec
from ddl.data import DATA
from ddl.data.order import Order, batches, turns
from ddl.data.partition import PARTITIONS
from ddl.events.barriers import BARRIERS
from ddl.events.times import TIMES
from ddl.models import MODELS
from ddl.runtime import hosts
from ddl.runtime.trainer import Feed
from ddl.schedule import Schedule
from experiments.config.factories import Config, hyper, make, named, section, settings
from experiments.config.optimizers import OPTIMIZERS, SCHEDULES

ALGORITHMS = COLLECTIVE | SERVER
MOST_BLOCKS = 1024
MOST = int(np.iinfo(np.int32).max)  # steps and workers are counted in int32
NETWORK = {  # key of config.network: default, meaning
  "message_seconds": (0.0, "of a message, one way, worker to server"),
  "service_seconds": (0.0, "for which the server is busy with a message"),
  "exchange_seconds": (None, "of one collective; None: a tree of messages"),
  "overlap": (True, "in virtual time, of a collective's message with the steps that need not wait for it"),
  "blocks": (16, "that a lock-free visit reads and adds one by one"),
}


def base() -> Config:
  """All keys of an experiment with their defaults; a config file sets what differs. Unset keys are None."""
  config: Config = ml_collections.ConfigDict()
  config.algorithm = section("sync_sgd", [spec.factory for spec in ALGORITHMS.values()])
  config.model = section("mlp", MODELS.values())
  config.data = section("digits", DATA.values())
  config.partition = section("iid", PARTITIONS.values())
  config.optimizer = section("sgd", OPTIMIZERS.values())
  config.optimizer.learning_rate = 0.1
  config.schedule = section("constant", SCHEDULES.values())
  config.times = section("lognormal", TIMES.values())  # of steps, in virtual time
  config.barrier = section("asp", BARRIERS.values())  # of server algorithms
  config.network = ml_collections.ConfigDict(
    {key: config_dict.placeholder(float) if default is None else default for key, (default, _) in NETWORK.items()}
  )
  config.workers = 8  # p
  config.batch = 32  # examples per worker and step
  config.steps = 200  # of each worker; with a server or peers on average
  config.eval_every = 50  # steps between lines of metrics
  config.seed = 0  # initial parameters, order of the examples, dropout
  config.compare = ml_collections.ConfigDict(
    {
      "title": "",
      "seeds": (0, 1, 2),
      "target": 0.95,  # of the test accuracy, or of the test loss where there is no accuracy
      "expected": (),  # pairs of labels, the first of which a paper found to be sooner at the target
      "algorithms": ml_collections.ConfigDict(),  # label -> what differs, e.g. {"algorithm": {"name": "dasgd"}}
    }
  )
  config.sweep = ml_collections.ConfigDict(
    {
      "trials": 9,  # per algorithm
      "validation": 0.2,  # share of the training examples, where the data section sets none
      "learning_rate": (0.01, 1.0),  # bounds of a logarithmic scale
      "space": ml_collections.ConfigDict(),  # algorithm label -> {key of config.algorithm: (low, high)}
    }
  )
  return config.lock()


PARTS: dict[str, Any] = {
  "data": DATA,
  "partition": PARTITIONS,
  "optimizer": OPTIMIZERS,
  "schedule": SCHEDULES,
  "times": TIMES,
  "barrier": BARRIERS,
}

SECTIONS = (*PARTS, "algorithm", "model", "network", "compare", "sweep")


class Experiment(NamedTuple):
  """A config made real."""

  data: Data
  model: Model
  algorithm: Algorithm | ServerAlgorithm
  spec: Spec
  hyper: dict[str, Any]
  order: Order
  resolved: dict[str, Any]  # the config with every default filled in

  def feed(self, workers: list[int]) -> Feed:
    """The batches of these workers: (first step, steps) -> arrays [len(workers), steps, batch, ...]."""
    return lambda first, steps: batches(self.data.train, self.order, workers, first, steps)

  def training_feed(self, workers: list[int]) -> Any:
    """The `Feed` of these workers, or for a server algorithm the `TurnFeed`: what the algorithm's trainer takes."""
    if isinstance(self.algorithm, Algorithm):
      return self.feed(workers)
    return lambda pairs, steps: turns(self.data.train, self.order, pairs, steps)


def build(config: Config, data: Data | None = None) -> Experiment:
  """Makes the parts that a config names; `data`: already loaded, where several experiments share it.

  Raises:
    ValueError: for an unknown name or a key that nothing reads, and whatever the parts find wrong with their settings.
  """
  resolved = resolve(config)
  spec = ALGORITHMS[config.algorithm.name]
  chosen = hyper(spec, config.algorithm, config.workers)
  algorithm = make_algorithm(config)
  pull = chosen.get("alpha", 0.0) * config.workers
  _check_pull(pull, config.workers)
  _check_blocks(config)
  data = data or load(config)
  make_model = named("model", MODELS, config.model.name)
  model = make_model(data.meta, **settings("model", make_model, config.model))
  order = _order(config, data.train)
  _warn_of_momentum(config, spec, chosen.get("momentum"))  # nothing is refused any more: an error is one line alone
  if pull > 1:
    warnings.warn(f"p alpha = {pull:g} exceeds 1, so that the center overshoots; the authors take 0.9", stacklevel=2)
  return Experiment(data, model, algorithm, spec, chosen, order, resolved)


def resolve(config: Config) -> dict[str, Any]:
  """The config with every default filled in, as config.json holds it; loads no data. Raises as `build` does."""
  _check_counts(config)
  if not 0 <= config.seed < 2**32:
    raise ValueError(f"config.seed is {config.seed}; it lies between 0 and {2**32 - 1}")
  spec = named("algorithm", ALGORITHMS, config.algorithm.name)
  resolved = jsonable(config.to_dict())
  resolved["algorithm"] = {"name": config.algorithm.name, **hyper(spec, config.algorithm, config.workers)}
  for kind, registry in (PARTS | {"model": MODELS}).items():
    part = config[kind]
    taken = settings(kind, named(kind, registry, part.name), {k: v for k, v in part.items() if k != "learning_rate"})
    resolved[kind] = {"name": part.name, **jsonable(taken)}
  resolved["optimizer"]["learning_rate"] = config.optimizer.learning_rate
  return resolved


def make_algorithm(config: Config) -> Algorithm | ServerAlgorithm:
  """The algorithm that the config names around its inner optimizer. Raises as `build` does."""
  _check_counts(config)
  spec = named("algorithm", ALGORITHMS, config.algorithm.name)
  chosen = hyper(spec, config.algorithm, config.workers)
  for key, least in (("period", 1), ("delay", 0), ("start", 0)):
    if not least <= chosen.get(key, least) <= MOST:
      raise ValueError(f"config.algorithm.{key} is {chosen[key]}: invalid: must be an integer from {least} to {MOST}")
  algorithm = make(spec, _optimizer(config), config.workers, chosen)
  if isinstance(algorithm, Algorithm):
    Schedule(algorithm.exchanges)  # complains of a clock that does not fit before anything runs
    return algorithm
  blocks = config.network.blocks if algorithm.lock_free else 0
  return algorithm._replace(arrivals=algorithm.arrivals._replace(blocks=blocks))


def _warn_of_momentum(config: Config, spec: Spec, own: float | None) -> None:
  """Of a second momentum: the algorithm's own, or what gradients of other workers' old models amount to."""
  name, momentum, workers = config.algorithm.name, config.optimizer.momentum, config.workers
  if own and momentum:
    warnings.warn(
      f"{name} has a momentum of its own ({own:g}); config.optimizer.momentum adds a second one to it", stacklevel=2
    )
  elif (own or momentum) and spec.taxonomy[1:3] == ("centralized", "asynchronous") and workers > 1:
    chosen = f"config.algorithm.momentum={own:g}" if own else f"config.optimizer.momentum={momentum:g}"
    warnings.warn(
      f"{name}: {workers} workers in turn act like a momentum of about 1 - 1/{workers} = {1 - 1 / workers:.3g} "
      f"(Mitliagkas et al. 2016, arXiv 1605.09774); {chosen} adds to it; try 0, or less of it",
      stacklevel=2,
    )


def _check_counts(config: Config) -> None:
  for key in ("workers", "batch", "steps", "eval_every"):
    if not 1 <= config[key] <= MOST:
      raise ValueError(f"config.{key} is {config[key]}: invalid: must be an integer from 1 to {MOST}")


def _check_blocks(config: Config) -> None:
  """Blocks take turns one by one: as many as a cache has lines tell no more, and take for ever."""
  if not 1 <= config.network.blocks <= MOST_BLOCKS:
    raise ValueError(
      f"config.network.blocks is {config.network.blocks}; a lock-free center has 1 to {MOST_BLOCKS} of them"
    )


def _check_pull(pull: float, workers: int) -> None:
  """The center's own coefficient is 1 - p alpha: it overshoots where p alpha exceeds 1, and diverges beyond 2."""
  if pull > 2:
    raise ValueError(
      f"config.algorithm.alpha x {workers} workers is {pull:g}: above 2 the center diverges; the authors take 0.9"
    )


def load(config: Config) -> Data:
  """The data set that the config names."""
  factory = named("data", DATA, config.data.name)
  return factory(**settings("data", factory, config.data))


def initial_key(seed: int) -> jax.Array:
  """Key of the initial parameters."""
  return jax.random.fold_in(jax.random.key(seed), 0)


def training_key(seed: int) -> jax.Array:
  """Key that each worker folds its id and the step into."""
  return jax.random.fold_in(jax.random.key(seed), 1)


def jsonable(value: Any) -> Any:
  """Tuples as lists, NumPy numbers as numbers: what a JSON file gives back."""
  if isinstance(value, dict):
    return {k: jsonable(v) for k, v in value.items()}
  if isinstance(value, list | tuple):
    return [jsonable(v) for v in value]
  return value.item() if isinstance(value, np.generic) else value


def _optimizer(config: Config) -> optax.GradientTransformation:
  rate = config.optimizer.learning_rate
  if not 0 < rate < math.inf:
    raise ValueError(f"config.optimizer.learning_rate is {rate}: invalid: must be a finite number > 0")
  make_schedule = named("schedule", SCHEDULES, config.schedule.name)
  schedule = make_schedule(rate, config.steps, **settings("schedule", make_schedule, config.schedule))
  factory = named("optimizer", OPTIMIZERS, config.optimizer.name)
  rest = {k: v for k, v in config.optimizer.items() if k != "learning_rate"}
  return factory(schedule, **settings("optimizer", factory, rest))


def _order(config: Config, train: Source) -> Order:
  partition = named("partition", PARTITIONS, config.partition.name)
  chosen = settings("partition", partition, config.partition)
  example = sum(x.nbytes for x in train.take(np.zeros(1, np.int64)).values())
  step = config.workers // hosts.processes() * min(config.batch, train.size) * example
  memory.require(step + 16 * config.workers, f"config.workers is {config.workers}: the examples of one step of all")
  shards = partition(train.size, train.labels, workers=config.workers, seed=config.seed, **chosen)
  return Order(shards, batch=config.batch, seed=config.seed)
