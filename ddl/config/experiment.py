"""An experiment as a frozen value: what is trained, how, on what and for how long, with every default filled in."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

import jax
import numpy as np
import optax

from ddl.algorithms import WRAPPERS
from ddl.api import Algorithm, ServerAlgorithm, Spec, Wrapper
from ddl.config.optimizers import elementwise
from ddl.config.parts import PARTS, Network, Part
from ddl.config.registry import (
  NO_WRAPPER,
  Config,
  entry,
  factory,
  for_workers,
  has_server,
  hyper,
  make,
  make_algorithm,
  settings,
)
from ddl.config.schedules import recorded
from ddl.config.user_code import is_address
from ddl.contract import check_server
from ddl.group_recorder import record
from ddl.precision import PRECISIONS
from ddl.ranges import NonNegativeInt, PositiveFloat, PositiveInt, Seed, check_all, check_fields
from ddl.schedule import Clock, Schedule

STRIPS = "reduce-scatter + all-gather"  # pattern of algorithms whose optimizer sees a part of the packed parameters
NUMBERS = ("workers", "batch", "microbatches", "steps", "eval_every", "noise_batches", "seed")


@dataclass(frozen=True)
class Experiment:
  """All that decides a run's result. `dataclasses.replace(experiment, seed=1)` is the next seed's."""

  algorithm: Part
  wrapper: Part
  model: Part
  data: Part
  partition: Part
  optimizer: Part
  schedule: Part
  times: Part
  barrier: Part
  network: Network
  workers: PositiveInt
  batch: PositiveInt
  microbatches: PositiveInt
  precision: str
  elastic: bool
  steps: PositiveInt
  eval_every: PositiveInt
  noise_batches: NonNegativeInt
  seed: Seed

  def __post_init__(self) -> None:
    """Raises ValueError for numbers out of range."""
    check_fields(self, "config.")
    if self.batch % self.microbatches:
      raise ValueError(f"config.microbatches is {self.microbatches}; invalid: must divide config.batch={self.batch}")
    if self.precision not in PRECISIONS:
      raise ValueError(f"config.precision is {self.precision!r}; invalid: must be one of {', '.join(PRECISIONS)}")
    if self.noise_batches == 1:
      raise ValueError("config.noise_batches must be 0 or >= 2, got 1. One batch has no variance.")

  @classmethod
  def from_config(cls, config: Config) -> "Experiment":
    """From a config of `base()`. Raises as `from_json` does, and for settings that do not fit the algorithm."""
    experiment = cls.from_json(config.to_dict())
    experiment.make_algorithm()
    return experiment

  @classmethod
  def from_json(cls, values: Mapping[str, Any]) -> "Experiment":
    """From what `to_json` gives, or with settings left out or None, which then are the factories' defaults.

    Raises:
      ValueError: for an unknown name, a setting that its factory does not read, or a value of the wrong type.
    """
    numbers = {key: values[key] for key in NUMBERS}
    check_all(PositiveInt, numbers["workers"], "config.workers")  # defaults of hyper-parameters follow from it
    spec = entry("algorithm", values["algorithm"]["name"])
    chosen = hyper(spec, values["algorithm"], numbers["workers"])
    parts = {"algorithm": Part(values["algorithm"]["name"], chosen)}
    parts["wrapper"] = _wrapper(values["wrapper"])
    for kind in PARTS:
      section = {key: value for key, value in values[kind].items() if key != "learning_rate"}
      parts[kind] = Part(section["name"], settings(kind, factory(kind, section["name"]), section))
    rate = {"learning_rate": values["optimizer"]["learning_rate"]}
    parts["optimizer"] = Part(parts["optimizer"].name, {**parts["optimizer"].settings, **rate})
    rest = {key: values[key] for key in ("precision", "elastic")}
    return cls(**parts, network=Network(**values["network"]), **rest, **numbers)

  def to_json(self) -> dict[str, Any]:
    """As JSON: stored in the folder of a run, and compared key by key by a resume."""
    values = {each.name: getattr(self, each.name) for each in fields(self)}
    return {
      key: value.to_json() if isinstance(value, Part) else asdict(value) if key == "network" else value
      for key, value in values.items()
    }

  def changed(self, changes: Mapping[str, Mapping[str, Any]]) -> "Experiment":
    """With other settings: part -> key -> value. Raises as `from_json` does."""
    values = self.to_json()
    return Experiment.from_json(values | {part: values[part] | dict(keys) for part, keys in changes.items()})

  @property
  def spec(self) -> Spec:
    """Registry entry of the algorithm."""
    return entry("algorithm", self.algorithm.name)

  @property
  def has_server(self) -> bool:
    """Whether the algorithm has a server or peers: a `ServerAlgorithm`."""
    return has_server(self.algorithm.name)

  @property
  def wrapper_spec(self) -> Wrapper | None:
    """Registry entry of the wrapper."""
    return entry("wrapper", self.wrapper.name) if self.wrapper.name != NO_WRAPPER else None

  @property
  def label(self) -> str:
    """The algorithm's name, and the wrapper's: "sync_sgd+topk"."""
    return self.algorithm.short_name + (f"+{self.wrapper.short_name}" if self.wrapper_spec else "")

  def make_part(self, kind: str, *arguments: Any, **more: Any) -> Any:
    """What the factory of this section makes of these arguments and the section's settings."""
    part: Part = getattr(self, kind)
    return make(kind, part.name, *arguments, **more, **part.settings)

  def make_algorithm(self) -> Algorithm | ServerAlgorithm:
    """The algorithm around its inner optimizer. ValueError for settings that do not fit each other."""
    inner = self.make_optimizer()
    known = not is_address(self.optimizer.name)  # a user-defined one may fit this model only: the algorithm checks it
    if self.spec.taxonomy.pattern == STRIPS and known and not elementwise(inner):
      raise ValueError(
        f"{self.algorithm.short_name} updates strips of one vector; {self.optimizer.short_name} with these settings "
        "looks at whole layers: use sync_sgd, or set config.optimizer.clip_norm=0 and config.optimizer.decay_all=True"
      )
    algorithm = make_algorithm(self.algorithm.name, inner, self.workers, self.algorithm.settings)
    if self.wrapper_spec:
      algorithm = self._wrapped(algorithm)
    if isinstance(algorithm, Algorithm):
      self._check_delays(Schedule(algorithm.exchanges).clocks)  # before anything runs, as the clocks check themselves
      return algorithm
    check_server(algorithm)
    blocks = self.network.blocks if algorithm.lock_free else 0
    return algorithm._replace(arrivals=algorithm.arrivals._replace(blocks=blocks))

  def _check_delays(self, clocks: Sequence[Clock]) -> None:
    """ValueError if messages pile up in flight, and none arrives within the run. One in flight is only warned of."""
    for clock in clocks:
      if clock.delay > max(self.steps, clock.period(0)):
        key = self.length_key(clock.delay)
        raise ValueError(
          f"config.algorithm.{key} must be at most config.steps={self.steps}, got "
          f"{self.algorithm.get(key, clock.delay)}. No message would arrive within the run."
        )

  def length_key(self, steps: int) -> str:
    """The algorithm's hyper-parameter that so many steps of its exchanges follow from: the nearest integer."""
    lengths = {key: value for key, value in self.algorithm.settings.items() if type(value) is int}
    return min(lengths, key=lambda key: abs(lengths[key] - steps), default="period")

  def _wrapped(self, algorithm: Algorithm | ServerAlgorithm) -> Algorithm:
    name, of = self.wrapper.short_name, self.algorithm.short_name
    if isinstance(algorithm, ServerAlgorithm):
      raise ValueError(
        f"config.wrapper.name is {name}; invalid: must be {NO_WRAPPER} with {of}, which has no collective"
      )
    wrapped = self.make_part("wrapper", algorithm)
    shape = {"x": jax.ShapeDtypeStruct((1,), np.float32)}
    record(
      lambda group, x: wrapped.init(group, x, jax.random.key(0)), shape, workers=self.workers
    )  # raises for an algorithm without a mean or sum
    return wrapped

  def make_optimizer(self) -> optax.GradientTransformation:
    """The inner optimizer at its learning rate. ValueError for a rate that is not positive."""
    rest = dict(self.optimizer.settings)
    rate = rest.pop("learning_rate")
    check_all(PositiveFloat, rate, "config.optimizer.learning_rate")
    schedule = self.make_part("schedule", rate, self.steps, **for_workers("schedule", self.schedule.name, self.workers))
    return recorded(make("optimizer", self.optimizer.name, schedule, **rest), schedule)


def _wrapper(chosen: Mapping[str, Any]) -> Part:
  name = chosen["name"]
  if name != NO_WRAPPER:
    return Part(name, hyper(entry("wrapper", name), chosen, 1, "wrapper"))
  if keys := [key for key, value in chosen.items() if key != "name" and value is not None]:
    raise ValueError(
      f"config.wrapper.{keys[0]} is set, but config.wrapper.name is {NO_WRAPPER}; there are {', '.join(WRAPPERS)}; "
      f"--config.wrapper.{keys[0]}=None unsets the key"
    )
  return Part(name)


def initial_key(seed: int) -> jax.Array:
  """Key of the initial parameters."""
  return jax.random.fold_in(jax.random.key(seed), 0)


def training_key(seed: int) -> jax.Array:
  """Key that each worker folds its id and the step into."""
  return jax.random.fold_in(jax.random.key(seed), 1)


def noise_key(seed: int) -> jax.Array:
  """Key of the losses that only tell the gradient noise."""
  return jax.random.fold_in(jax.random.key(seed), 2)
