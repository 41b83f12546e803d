"""An experiment as a frozen dataclass: algorithm, model, data and training settings, with all defaults filled in."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import MISSING, asdict, dataclass, field, fields, replace
from typing import Annotated, Any, get_type_hints

import jax
import numpy as np
import optax

from ddl.api import Algorithm, ServerAlgorithm, Spec, Wrapper
from ddl.config.catalog import (
  NO_WRAPPER,
  Config,
  entry,
  for_workers,
  has_server,
  has_varying_period,
  keyword_arguments,
  make,
  make_algorithm,
  outer_rate,
  traceable,
)
from ddl.config.optimizers import elementwise
from ddl.config.schedules import Rate, recorded
from ddl.config.user_code import is_address, is_in_memory
from ddl.contract import check_server
from ddl.errors import OptionError
from ddl.group_recorder import record
from ddl.names import short_name
from ddl.precision import PRECISIONS
from ddl.ranges import NonNegativeInt, PositiveFloat, PositiveInt, Range, Seed, check, check_all, check_fields, integers
from ddl.schedule import Clock, Schedule

STRIPS = "reduce-scatter + all-gather"  # pattern of algorithms that shard the flattened parameters and the optimizer
# Sections other than the algorithm and its wrapper.
PARTS = (
  *("model", "data", "partition", "optimizer", "schedule", "outer_schedule", "period_schedule", "times", "barrier"),
)


SCALINGS: dict[str, Callable[[float], float]] = {  # global batch / base batch -> factor of the learning rate
  "none": lambda ratio: 1.0,
  "linear": lambda ratio: ratio,  # Goyal et al. 2017, arXiv 1706.02677
  "sqrt": math.sqrt,  # Krizhevsky 2014, arXiv 1404.5997; for Adam: Malladi et al. 2022, arXiv 2205.10287
}


@dataclass(frozen=True)
class Part:
  """A config section: the name of its factory and all keyword arguments, which are also attributes."""

  name: str
  settings: Mapping[str, Any] = field(default_factory=dict)

  def __getattr__(self, key: str) -> Any:
    if key != "settings" and key in self.settings:
      return self.settings[key]
    # Unpickling asks for attributes before `name` and `settings` exist.
    raise AttributeError(f"{vars(self).get('name')!r} has no setting {key!r}")

  @property
  def short_name(self) -> str:
    """The name; for a user-defined function, without its file."""
    return short_name(self.name)

  def get(self, key: str, default: Any = None) -> Any:
    """Return a setting, or `default` if the factory does not take it."""
    return self.settings.get(key, default)

  def to_json(self) -> dict[str, Any]:
    """Return the name and the settings as one JSON dictionary."""
    return {"name": self.name, **jsonable(self.settings)}


UNSCHEDULED = Part("constant", {"warmup": 0})  # the default of config.schedule and config.outer_schedule
CONSTANT_PERIOD = Part("constant", {})  # the default of config.period_schedule

MessageSeconds = Annotated[float, Range(0, 1e30)]  # large enough for predictions with a cluster's slowest links


@dataclass(frozen=True)
class Network:
  """The cost of messages in virtual time."""

  message_seconds: Annotated[MessageSeconds, "one-way time of a message to or from a server, or between workers"] = 0.0
  service_seconds: Annotated[MessageSeconds, "time that the server takes to process a message"] = 0.0
  exchange_seconds: Annotated[
    MessageSeconds | None,
    "time of a collective; None: message_seconds times the number of sequential messages in a binomial tree",
  ] = None
  overlap: Annotated[bool, "whether collectives overlap with steps that do not depend on them"] = True
  # Blocks are simulated one at a time: very many of them cost time and add no information.
  blocks: Annotated[int, integers(1, 1024), "parameter blocks that a lock-free visit reads and writes in sequence"] = 16

  def __post_init__(self) -> None:
    """Raise OptionError for a value out of range."""
    check_fields(self, "config.network.")


def meanings(cls: type) -> dict[str, str]:
  """Return the description of each dataclass field that has one in its annotation."""
  hints = get_type_hints(cls, include_extras=True)
  metadata = {key: getattr(hint, "__metadata__", ()) for key, hint in hints.items()}
  return {key: items[-1] for key, items in metadata.items() if items and isinstance(items[-1], str)}


def jsonable(value: Any) -> Any:
  """Convert tuples to lists and NumPy scalars to Python numbers, so that a JSON round trip returns an equal value."""
  if isinstance(value, Mapping):
    return {k: jsonable(v) for k, v in value.items()}
  if isinstance(value, list | tuple):
    return [jsonable(v) for v in value]
  return value.item() if isinstance(value, np.generic) else value


def flat(values: Mapping[str, Any]) -> dict[str, Any]:
  """Flatten {"model": {"name": "mlp"}} to {"model.name": "mlp"}."""
  out = {}
  for key, value in values.items():
    out |= {f"{key}.{inner}": v for inner, v in value.items()} if isinstance(value, Mapping) else {key: value}
  return out


@dataclass(frozen=True)
class Experiment:
  """All settings that determine a run's result; `dataclasses.replace(experiment, seed=1)` changes the seed."""

  algorithm: Part
  wrapper: Part
  model: Part
  data: Part
  partition: Part
  optimizer: Part
  schedule: Part
  outer_schedule: Part
  period_schedule: Part
  times: Part
  barrier: Part
  network: Network
  workers: Annotated[PositiveInt, "number of workers, p"] = 8
  batch: Annotated[PositiveInt, "examples per worker and step"] = 32
  rate_scaling: Annotated[str, "scaling of the learning rate with the global batch: none, linear or sqrt"] = "none"
  base_batch: Annotated[NonNegativeInt, "global batch for which the learning rate was chosen; 0: no scaling"] = 0
  microbatches: Annotated[PositiveInt, "parts into which a batch is split to accumulate gradients"] = 1
  precision: Annotated[str, "float32, or bfloat16 for loss and gradient; all else is float32"] = "float32"
  elastic: Annotated[bool, "whether training continues without failed workers; collective algorithms only"] = False
  steps: Annotated[PositiveInt, "steps of each worker; on average if the algorithm has a server or peers"] = 200
  eval_every: Annotated[PositiveInt, "steps between evaluations"] = 50
  ema: Annotated[
    float, Range(0, 1, open_high=True), "decay per step of the model's moving average, which is also evaluated; 0: none"
  ] = 0.0
  noise_batches: Annotated[NonNegativeInt, "batches per evaluation to estimate the gradient noise scale; 0: none"] = 0
  seed: Annotated[Seed, "seed of the initial parameters, the order of the examples and dropout"] = 0

  def __post_init__(self) -> None:
    """Raise ValueError for values out of range."""
    check_fields(self, "config.")
    if self.batch % self.microbatches:
      raise OptionError("config.microbatches", f"a divisor of config.batch={self.batch}", self.microbatches)
    if self.precision not in PRECISIONS:
      raise OptionError("config.precision", f"one of {', '.join(PRECISIONS)}", repr(self.precision))
    if self.rate_scaling not in SCALINGS:
      raise OptionError("config.rate_scaling", f"one of {', '.join(SCALINGS)}", repr(self.rate_scaling))
    if (self.base_batch > 0) != (self.rate_scaling != "none"):
      condition = (
        "0 with config.rate_scaling=none" if self.base_batch else f"> 0 with config.rate_scaling={self.rate_scaling}"
      )
      advice = "It is the number of examples per step, over all workers, for which the learning rate was chosen."
      raise OptionError("config.base_batch", condition, self.base_batch, advice)
    if self.ema and self.elastic:
      raise OptionError("config.ema", "0 with config.elastic=True", self.ema)
    if self.noise_batches == 1:
      raise OptionError("config.noise_batches", "0 or >= 2", 1, "One batch has no variance.")

  @classmethod
  def from_config(cls, config: Config) -> "Experiment":
    """Create an experiment from a config. Raises as `from_json` does, and for settings that contradict each other."""
    experiment = cls.from_json(config.to_dict())
    experiment.make_algorithm()
    return experiment

  @classmethod
  def from_json(cls, values: Mapping[str, Any]) -> "Experiment":
    """Create an experiment from the result of `to_json`; a factory's settings that are missing or None get defaults.

    Raises ValueError for an unknown name, a setting that the section's factory does not take, a value of the wrong type
    or out of range, or a missing setting without a default.
    """
    check_all(PositiveInt, values["workers"], "config.workers")  # some defaults depend on it
    parts = {}
    for kind in ("algorithm", "wrapper", *PARTS):
      section = dict(values[kind])
      has_rate = kind == "optimizer" and "learning_rate" in section  # not so an optax optimizer
      rate = {"learning_rate": section.pop("learning_rate")} if has_rate else {}
      arguments = keyword_arguments(kind, section, values["workers"])
      parts[kind] = Part(section["name"], arguments | rate)
    return cls(**parts, network=Network(**values["network"]), **{key: values[key] for key in SETTINGS})

  def to_json(self) -> dict[str, Any]:
    """Return the experiment as JSON, which is stored in a run's folder and compared when the run is resumed."""
    values = {item.name: getattr(self, item.name) for item in fields(self)}
    return {
      key: value.to_json() if isinstance(value, Part) else asdict(value) if key == "network" else value
      for key, value in values.items()
    }

  def changed(self, changes: Mapping[str, Mapping[str, Any]]) -> "Experiment":
    """Return a copy with changed settings (section -> key -> value). Raises as `from_json` does."""
    values = self.to_json()
    return Experiment.from_json(values | {part: values[part] | dict(keys) for part, keys in changes.items()})

  def numbers(self, paths: Iterable[str]) -> dict[str, float]:
    """Return the values of the settings at these paths, such as "optimizer.learning_rate"."""
    sections = {path: path.partition(".") for path in paths}
    return {path: getattr(self, section).settings[key] for path, (section, _, key) in sections.items()}

  def with_numbers(self, values: Mapping[str, Any]) -> "Experiment":
    """Return a copy with changed settings ("section.key" -> value), which are not checked and may be traced."""
    parts: dict[str, Part] = {}
    for path, value in values.items():
      section, _, key = path.partition(".")
      part: Part = parts.get(section) or getattr(self, section)
      parts[section] = Part(part.name, {**part.settings, key: value})
    return replace(self, **parts)

  def traceable(self, path: str) -> bool:
    """Return whether a setting ("section.key") can be an argument of a compiled program instead of a constant."""
    section, _, key = path.partition(".")
    part: Part = getattr(self, section)
    schedules = {"optimizer": self.schedule, "algorithm": self.outer_schedule}
    by_user = section in schedules and is_address(schedules[section].name)  # a user's schedule may branch on the rate
    sets_periods = section == "optimizer" and self.period_schedule != CONSTANT_PERIOD
    return not (by_user or sets_periods) and traceable(section, part.name, key, part.settings[key])

  @property
  def spec(self) -> Spec:
    """The registry entry of the algorithm."""
    return entry("algorithm", self.algorithm.name)

  @property
  def has_server(self) -> bool:
    """Whether the algorithm is a `ServerAlgorithm`, which has a server or peers."""
    return has_server(self.algorithm.name)

  @property
  def in_virtual_time(self) -> bool:
    """Whether runs are compared in virtual time, as with a server or peers, or if training is elastic."""
    return self.has_server or self.elastic

  @property
  def wrapper_spec(self) -> Wrapper | None:
    """The registry entry of the wrapper; None without a wrapper."""
    return entry("wrapper", self.wrapper.name) if self.wrapper.name != NO_WRAPPER else None

  @property
  def label(self) -> str:
    """The short names of algorithm and wrapper, such as "sync_sgd+topk"."""
    return self.algorithm.short_name + (f"+{self.wrapper.short_name}" if self.wrapper_spec else "")

  def make_part(self, kind: str, *arguments: Any, **more: Any) -> Any:
    """Build the object of a section: call its factory with these arguments and the section's settings."""
    part: Part = getattr(self, kind)
    return make(kind, part.name, *arguments, **more, **part.settings)

  def make_algorithm(self) -> Algorithm | ServerAlgorithm:
    """Build the algorithm with its inner optimizer. Raises ValueError for settings that contradict each other."""
    inner = self.make_optimizer()
    known = not is_address(self.optimizer.name)  # a user-defined optimizer is checked by the algorithm
    if self.spec.taxonomy.pattern == STRIPS and known and not elementwise(inner):
      name = self.algorithm.short_name
      raise OptionError(
        "config.optimizer.name", f"an element-wise optimizer for {name} (which shards the flattened parameters)",
        f"{self.optimizer.short_name}, which is not element-wise with these settings",
        "Use the algorithm sync_sgd, or an optimizer such as adamw with config.optimizer.clip_norm=0 and "
        "config.optimizer.decay_all=True.",
      )  # fmt: skip
    algorithm = make_algorithm(
      self.algorithm.name, inner, self.workers, {**self.algorithm.settings, **self._outer_rate(), **self._period()}
    )
    if self.wrapper_spec:
      algorithm = self._wrapped(algorithm)
    if isinstance(algorithm, Algorithm):
      self._check_delays(Schedule(algorithm.exchanges).clocks)  # `Schedule` also checks the clocks
      return algorithm
    check_server(algorithm)
    blocks = self.network.blocks if algorithm.lock_free else 0
    return algorithm._replace(arrivals=algorithm.arrivals._replace(blocks=blocks))

  def _check_delays(self, clocks: Sequence[Clock]) -> None:
    """Raise OptionError if a delay exceeds both its exchange's first period and `steps`: no message would arrive."""
    for clock in clocks:
      if clock.delay > self.steps and clock.delay > clock.period(0):
        key = self.length_key(clock.delay)
        raise OptionError(
          f"config.algorithm.{key}", f"at most config.steps={self.steps}", self.algorithm.get(key, clock.delay),
          "With a longer delay, no message arrives within the run.",
        )  # fmt: skip

  def length_key(self, steps: int) -> str:
    """Return the key of the algorithm's integer setting whose value is closest to `steps`."""
    lengths = {key: value for key, value in self.algorithm.settings.items() if type(value) is int}
    return min(lengths, key=lambda key: abs(lengths[key] - steps), default="period")

  def _wrapped(self, algorithm: Algorithm | ServerAlgorithm) -> Algorithm:
    if isinstance(algorithm, ServerAlgorithm):
      condition = f"{NO_WRAPPER} for {self.algorithm.short_name} (which has no collective)"
      raise OptionError("config.wrapper.name", condition, self.wrapper.short_name)
    wrapped = self.make_part("wrapper", algorithm)
    shape = {"x": jax.ShapeDtypeStruct((1,), np.float32)}
    record(
      lambda group, x: wrapped.init(group, x, jax.random.key(0)), shape, workers=self.workers
    )  # raises for an algorithm without a mean or sum
    return wrapped

  def make_optimizer(self) -> optax.GradientTransformation:
    """Build the inner optimizer with its schedule. Raises as `make_schedule` does."""
    if is_in_memory(self.optimizer.name):
      if self.rate_scaling != "none":
        advice = "Scale its learning rate yourself."
        raise OptionError("config.rate_scaling", "none with an optax optimizer", self.rate_scaling, advice)
      if self.schedule != UNSCHEDULED:
        advice = "An optax optimizer contains its own schedule."
        raise OptionError("config.schedule", "unset with an optax optimizer", self.schedule.name, advice)
      return make("optimizer", self.optimizer.name)
    settings = {key: value for key, value in self.optimizer.settings.items() if key != "learning_rate"}
    schedule = self.make_schedule()
    return recorded(make("optimizer", self.optimizer.name, schedule, **settings), schedule)

  def make_schedule(self) -> Rate:
    """Build the schedule, or return the rate if it is constant.

    Raises OptionError if the rate is not positive, if the warm-up is too long, or if the optimizer is an optax object,
    which contains its own rate.
    """
    if is_in_memory(self.optimizer.name):
      raise OptionError("config.optimizer", "a name or a function that takes the learning rate", "an optax optimizer")
    rate = self.optimizer.learning_rate
    check_all(PositiveFloat, rate, "config.optimizer.learning_rate")
    if self.rate_scaling != "none":
      rate = rate * SCALINGS[self.rate_scaling](self.workers * self.batch / self.base_batch)
    return self._make_rate("schedule", rate, self.steps)

  def _outer_rate(self) -> dict[str, Rate]:
    """Return {key: rate}, the algorithm's outer learning rate scheduled over the run's outer steps; {} if it has none.

    Raises OptionError for an outer schedule without an outer learning rate.
    """
    if key := outer_rate(self.algorithm.name):
      outer_steps = max(1, self.steps // self.algorithm.get("period", 1))
      return {key: self._make_rate("outer_schedule", self.algorithm.settings[key], outer_steps)}
    if self.outer_schedule != UNSCHEDULED:
      condition = f"unset with {self.algorithm.short_name} (which has no outer learning rate)"
      settings = ", ".join(f"{key}={value}" for key, value in self.outer_schedule.settings.items())
      raise OptionError("config.outer_schedule", condition, f"{self.outer_schedule.short_name} with {settings}")
    return {}

  def _period(self) -> dict[str, Any]:
    """Return {"period": function of the round} as a keyword argument if the algorithm's period varies, else {}.

    Raises OptionError if the algorithm or another setting does not support a period that varies.
    """
    part, name = self.period_schedule, self.algorithm.short_name
    if part == CONSTANT_PERIOD:
      return {}
    if not has_varying_period(self.algorithm.name):
      raise OptionError("config.period_schedule", f"unset with {name} (whose period cannot vary)", part.short_name)
    if self.outer_schedule != UNSCHEDULED:
      condition = "unset with config.period_schedule (which determines the number of outer steps)"
      raise OptionError("config.outer_schedule", condition, self.outer_schedule.short_name)
    if self.elastic:
      condition = "False with config.period_schedule (workers join and leave only between rounds of equal length)"
      raise OptionError("config.elastic", condition, True)
    period = self.make_part("period_schedule", self.algorithm.period, self.make_schedule(), self.steps)
    return {"period": period}

  def _make_rate(self, kind: str, rate: float, steps: int) -> Rate:
    """Build a learning rate with the schedule of a section. Raises OptionError if its warm-up is too long."""
    part: Part = getattr(self, kind)
    if not is_address(part.name):
      unit = "steps" if kind == "schedule" else "outer steps"
      check(f"config.{kind}.warmup with {steps} {unit}", part.get("warmup", 0), integers(0, steps - 1))
    return self.make_part(kind, rate, steps, **for_workers(kind, part.name, self.workers))


# Settings outside of the sections, with their defaults.
SETTINGS = {item.name: item.default for item in fields(Experiment) if item.default is not MISSING}


def initial_key(seed: int) -> jax.Array:
  """Return the PRNG key of the initial parameters."""
  return jax.random.fold_in(jax.random.key(seed), 0)


def training_key(seed: int) -> jax.Array:
  """Return the PRNG key of training, into which each worker folds its index and the step."""
  return jax.random.fold_in(jax.random.key(seed), 1)


def noise_key(seed: int) -> jax.Array:
  """Return the PRNG key for estimating the gradient noise scale."""
  return jax.random.fold_in(jax.random.key(seed), 2)
