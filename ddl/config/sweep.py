"""Sweeps: an experiment and a search space per algorithm label and grid point, and the points to try in a space."""

import copy
import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ml_collections import ConfigDict

from ddl import memory
from ddl.config.catalog import Config, as_type, factory, keywords, named
from ddl.config.comparison import GRID, expanded, experiment_of, only, variants
from ddl.config.experiment import Experiment, jsonable
from ddl.config.user_code import is_in_memory
from ddl.errors import OptionError
from ddl.names import Place
from ddl.ranges import Fraction, PositiveFloat, PositiveInt, Seed, check_all, check_fields

Bounds = tuple[float, float] | list[Any]  # (low, high), or a list of choices
Space = Mapping[str, Bounds]  # by key, such as "optimizer.learning_rate"
Point = dict[str, Any]
SAMPLERS = ("halton", "tpe")
RATE = "optimizer.learning_rate"
STEP = 0.05  # distance beyond the edge of a linear range at which a value is tested, as a share of the range


@dataclass(frozen=True)
class Sweep:
  """A search with `trials` trials per algorithm label and grid point; each trial is trained once per seed."""

  experiments: Mapping[str, Experiment]
  spaces: Mapping[str, Space]
  places: Mapping[str, Place]  # position of each label in `config.compare.grid`
  trials: PositiveInt = 9
  seeds: tuple[Seed, ...] = ()  # (): the experiment's seed
  sampler: str = "halton"  # or "tpe"
  pruning: bool = False
  validation: Fraction = 0.2  # share of the training examples, for data without a validation split
  metric: str = ""  # see `config.compare.metric`; with "perplexity", trials are compared by the loss
  mode: str = ""  # see `config.compare.mode`

  def __post_init__(self) -> None:
    """Raise OptionError for invalid settings, such as a validation split of size 0."""
    check_fields(self, "config.sweep.")
    if not self.validation:
      raise OptionError("config.sweep.validation", "> 0 (for example, 0.2)", f"{self.validation:g}")
    if self.first.data.get("validation") == 0:
      advice = "Trials are compared on the validation split."
      raise OptionError("config.data.validation", "None or > 0 in a sweep", 0, advice)
    if len(set(self.seeds)) < len(self.seeds):
      raise OptionError("config.sweep.seeds", "distinct seeds", self.seeds)
    named("config.sweep.sampler", dict.fromkeys(SAMPLERS), self.sampler)
    late = [e.eval_every for e in self.experiments.values() if e.eval_every >= e.steps]
    if self.pruning and late:
      condition = "less than config.steps with config.sweep.pruning"
      raise OptionError("config.eval_every", condition, late[0], "Pruning needs evaluations before the last step.")
    if self.pruning:
      self._check_evaluations()

  def _check_evaluations(self) -> None:
    """Raise OptionError if eval_every / steps differs between experiments by more than a grid's rounding."""
    shares = {experiment.eval_every / experiment.steps for experiment in self.experiments.values()}
    in_grid = any(place.point for place in self.places.values())
    rounding = in_grid / min(experiment.steps for experiment in self.experiments.values())
    if max(shares) - min(shares) > rounding:
      condition = "the same for all algorithms with config.sweep.pruning"
      raise OptionError("config.eval_every / config.steps", condition, ", ".join(f"{x:g}" for x in sorted(shares)))

  @property
  def first(self) -> Experiment:
    """The first experiment; all experiments have the same model and data."""
    return next(iter(self.experiments.values()))

  @classmethod
  def from_config(cls, config: Config, only_labels: Sequence[str] = ()) -> "Sweep":
    """Create a sweep from a config. Raises as `variants`, `expanded`, `only` and `Experiment.from_config` do."""
    config, section = copy.deepcopy(config), config.sweep
    check_all(Fraction, section.validation, "config.sweep.validation")
    if config.data.validation is None and "validation" in keywords(factory("data", config.data.name)):
      config.data.validation = section.validation
    labels = variants(config)
    for label in section.space:
      named("label in config.sweep.space", labels, label)
    points = only(expanded(config, labels), only_labels)
    places = {label: variant.place for label, variant in points.items()}
    experiments = {label: experiment_of(label, variant.config) for label, variant in points.items()}
    spaces = {label: _space(section, places[label], experiment) for label, experiment in experiments.items()}
    return cls(
      experiments, spaces, places, section.trials, section.seeds, section.sampler, section.pruning,
      section.validation, config.compare.metric, config.compare.mode,
    )  # fmt: skip

  def to_json(self, label: str) -> dict[str, Any]:
    """Return the settings that determine an algorithm label's trials; resuming requires the same settings."""
    rules = {key: getattr(self, key) for key in ("sampler", "pruning", "validation", "seeds")}
    rules |= {key: value for key in ("metric", "mode") if (value := getattr(self, key))}
    return jsonable({**self.experiments[label].to_json(), "sweep": {**rules, "space": self.spaces[label]}})


def points(space: Space, trials: int) -> list[Point]:
  """Return the first `trials` points of a Halton sequence in a search space, evenly spread and deterministic.

  The scale is logarithmic if the bounds are positive and span a factor of 10 or more, else linear. Values are integers
  if both bounds are integers, and are otherwise rounded to four significant digits.
  """
  from scipy.stats import qmc  # half a second to import, which --help would wait for

  memory.require(trials * (8 * len(space) + sys.getsizeof({})), f"{trials} trials")
  sequence = qmc.Halton(len(space), scramble=False)
  sequence.fast_forward(1)  # the first point is the corner of the box
  return [
    {key: _value_at(bounds, u) for u, (key, bounds) in zip(row, space.items(), strict=True)}
    for row in sequence.random(trials)
  ]


def logarithmic(bounds: tuple[float, float]) -> bool:
  """Return whether the scale is logarithmic: bounds are positive and span a factor of 10 or more."""
  low, high = bounds
  return low > 0 and high / low >= 10


def edges(experiment: Experiment, space: Space, point: Point, tried: Sequence[Point]) -> dict[str, str]:
  """Return {key: "low" or "high"} for keys whose value in the best `point` is the smallest or largest in `tried`.

  A key is omitted if only one value was tried, if its choices are not a range or a list of at least three numbers, or
  if the algorithm or optimizer accepts no value beyond the edge (for example, below period=1).
  """
  out = {}
  for key, bounds in space.items():
    ends = _ends(bounds)
    values = sorted({tried_point[key] for tried_point in tried}) if ends else []
    if not ends or len(values) < 2 or values[0] < point[key] < values[-1]:
      continue
    side = "low" if point[key] == values[0] else "high"
    width = 1 if isinstance(ends[0], int) else STEP * (ends[1] - ends[0])
    beyond = ends[1] + width if side == "high" else ends[0] / 2 if logarithmic(ends) else ends[0] - width
    try:
      experiment.changed(by_section(point | {key: type(ends[0])(beyond)})).make_algorithm()
    except ValueError:
      continue
    out[key] = side
  return out


def _ends(bounds: Bounds) -> tuple[float, float] | None:
  """Return (low, high) of a range, or of a list of three or more numbers; None for other choices."""
  if not isinstance(bounds, list):
    return bounds
  ordered = len(bounds) > 2 and all(isinstance(bound, int | float) and not isinstance(bound, bool) for bound in bounds)
  return (min(bounds), max(bounds)) if ordered else None


def by_section(point: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
  """Convert a point from {"section.key": value} to {section: {key: value}}."""
  out: dict[str, dict[str, Any]] = {}
  for path, value in point.items():
    section, _, key = path.partition(".")
    out.setdefault(section, {})[key] = value
  return out


def _value_at(bounds: Bounds, u: float) -> Any:
  """Map u in [0, 1) to a value within the bounds, or to one of the choices."""
  if isinstance(bounds, list):
    return bounds[int(u * len(bounds))]
  low, high = bounds
  value = low * (high / low) ** u if logarithmic(bounds) else low + (high - low) * u
  if isinstance(low, int) and isinstance(high, int):
    return round(value)
  return min(max(float(f"{value:.4g}"), low), high)


def _space(section: Config, place: Place, experiment: Experiment) -> Space:
  """Return the search space at a grid point: the learning rate and the label's keys in config.sweep.space."""
  if is_in_memory(experiment.optimizer.name):
    advice = "The learning rate of an optax optimizer cannot be tuned."
    name = experiment.optimizer.short_name
    condition = "given in a sweep by name or as a function that takes the learning rate"
    raise OptionError(f"optimizer of '{place.group}'", condition, name, advice)
  space: dict[str, Bounds] = {RATE: _range("config.sweep.learning_rate", section.learning_rate, float)}
  for bound in space[RATE]:
    check_all(PositiveFloat, bound, "config.sweep.learning_rate")
  where = f"config.sweep.space['{place.group}']"
  algorithm = _section(where, section.space.get(place.group, {}))
  optimizer = _section(f"{where}.optimizer", algorithm.pop("optimizer", {}))
  space |= _searched(where, algorithm, "algorithm", experiment.algorithm.name)
  space |= _searched(f"{where}.optimizer", optimizer, "optimizer", experiment.optimizer.name)
  for key in space:
    if key in place.point:
      raise OptionError(f"keys of {GRID}", "settings that the sweep does not tune", key)
  return space


def _section(where: str, value: Any) -> dict[str, Any]:
  if not isinstance(value, Mapping | ConfigDict):
    raise OptionError(where, "a dictionary of keys and bounds (for example, {'period': (1, 16)})", repr(value))
  return {**value}


def _searched(where: str, section: Mapping[str, Any], kind: str, name: str) -> dict[str, Bounds]:
  """Check one section of a search space; return the bounds or choices of each "kind.key"."""
  parameters, out = keywords(factory(kind, name)), dict[str, Bounds]()
  for key, bounds in section.items():
    if key not in parameters:
      taken = f"takes {', '.join(parameters)}" if parameters else "takes no settings"
      raise OptionError(f"{where}.{key}", f"unset with {kind} '{name}', which {taken}")
    read = _choices if isinstance(bounds, list) else _range
    out[f"{kind}.{key}"] = read(f"{where}.{key}", bounds, parameters[key].annotation)
  return out


def _range(where: str, bounds: Any, annotation: Any) -> tuple[float, float]:
  """Convert a pair low < high to the key's type. Raises OptionError for anything else."""
  if annotation not in (int, float):
    raise OptionError(where, "a list of choices (such as ['a', 'b']) for a key that is not numeric", repr(bounds))
  if not isinstance(bounds, tuple) or len(bounds) != 2:
    raise OptionError(where, f"(low, high) of type {annotation.__name__} or a list of choices", repr(bounds))
  low, high = (as_type(bound, annotation, where) for bound in bounds)
  if not (low < high and math.isfinite(high - low)):
    raise OptionError(where, "finite bounds with low < high", (low, high))
  return low, high


def _choices(where: str, values: list[Any], annotation: Any) -> list[Any]:
  """Convert two or more different values to the key's type. Raises OptionError for anything else."""
  out = [as_type(value, annotation, where) for value in values]
  if len(set(map(repr, out))) < max(2, len(out)) or not all(isinstance(v, bool | int | float | str) for v in out):
    raise OptionError(where, "two or more distinct numbers, strings or booleans", repr(values))
  return out
