"""A sweep as a frozen value: an experiment per label, the space that is searched for each, and points of a space."""

import copy
import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ml_collections import ConfigDict
from scipy.stats import qmc

from ddl import memory
from ddl.config import comparison
from ddl.config.catalog import Config, as_type, factory, keywords, named
from ddl.config.comparison import experiment_of, only, variants
from ddl.config.experiment import Experiment, jsonable
from ddl.errors import OptionError
from ddl.ranges import Fraction, PositiveFloat, PositiveInt, Seed, check_all, check_fields

Bounds = tuple[float, float] | list[Any]  # (low, high), or the choices
Space = Mapping[str, Bounds]  # by "optimizer.learning_rate", "algorithm.period", ...
Point = dict[str, Any]
SAMPLERS = ("halton", "tpe")
RATE = "optimizer.learning_rate"
STEP = 0.05  # share of a linear range beyond an edge at which a value has to be possible


@dataclass(frozen=True)
class Sweep:
  """Each label is tried `trials` times, a trial with each of the seeds."""

  experiments: Mapping[str, Experiment]
  spaces: Mapping[str, Space]
  trials: PositiveInt = 9
  seeds: tuple[Seed, ...] = ()  # (): the experiment's own
  sampler: str = "halton"  # or "tpe"
  pruning: bool = False
  validation: Fraction = 0.2  # share of the training examples, for data that does not set any apart itself
  metric: str = ""  # see `config.compare.metric`; perplexity is by the loss

  def __post_init__(self) -> None:
    """Raise OptionError if nothing can be tried or judged."""
    check_fields(self, "config.sweep.")
    if not self.validation or any(experiment.data.get("validation") == 0 for experiment in self.experiments.values()):
      raise OptionError("config.sweep.validation", "above 0, such as 0.2, as a sweep needs a validation split")
    if len(set(self.seeds)) < len(self.seeds):
      raise OptionError("config.sweep.seeds", "different", self.seeds)
    named("config.sweep.sampler", dict.fromkeys(SAMPLERS), self.sampler)
    if self.pruning and any(experiment.eval_every >= experiment.steps for experiment in self.experiments.values()):
      condition = "below config.steps with config.sweep.pruning, which judges before the end"
      raise OptionError("config.eval_every", condition, self.first.eval_every)
    if self.pruning and len({experiment.eval_every / experiment.steps for experiment in self.experiments.values()}) > 1:
      raise OptionError("config.eval_every / config.steps", "the same for all labels with config.sweep.pruning")

  @property
  def first(self) -> Experiment:
    """The first label's: model and data are those of all."""
    return next(iter(self.experiments.values()))

  @classmethod
  def from_config(cls, config: Config, only_labels: Sequence[str] = ()) -> "Sweep":
    """Create it from `config.sweep`. Raises as `variants` and `Experiment.from_config` do."""
    if keys := comparison.values(config):
      advice = "Sweep a config without a grid: a comparison uses its tuned.json at every point."
      raise OptionError(comparison.GRID, "empty for a sweep", ", ".join(keys), advice)
    config, section = copy.deepcopy(config), config.sweep
    check_all(Fraction, section.validation, "config.sweep.validation")
    if config.data.validation is None and "validation" in keywords(factory("data", config.data.name)):
      config.data.validation = section.validation
    configs = variants(config)
    for label in section.space:
      named("a label of config.sweep.space", configs, label)
    experiments = {label: experiment_of(label, configs[label]) for label in only(configs, only_labels)}
    spaces = {label: _space(section, label, experiment) for label, experiment in experiments.items()}
    return cls(
      experiments, spaces, section.trials, section.seeds, section.sampler, section.pruning,
      section.validation, config.compare.metric,
    )  # fmt: skip

  def to_json(self, label: str) -> dict[str, Any]:
    """Return all that decides the trials of a label, but their number: a resume must have the same."""
    rules = {key: getattr(self, key) for key in ("sampler", "pruning", "validation", "seeds")}
    rules |= {"metric": self.metric} if self.metric else {}
    return jsonable({**self.experiments[label].to_json(), "sweep": {**rules, "space": self.spaces[label]}})


def points(space: Space, trials: int) -> list[Point]:
  """Return the first points of a Halton sequence: evenly spread for any number, the same for every algorithm.

  Log scale where the bounds span a decade, else linear; integers where both bounds are, else four digits.
  """
  memory.require(trials * (8 * len(space) + sys.getsizeof({})), f"{trials} trials")
  sequence = qmc.Halton(len(space), scramble=False)
  sequence.fast_forward(1)  # the first point is the corner of the box
  return [
    {key: _at(bounds, u) for u, (key, bounds) in zip(row, space.items(), strict=True)}
    for row in sequence.random(trials)
  ]


def logarithmic(bounds: tuple[float, float]) -> bool:
  """Return whether the bounds span a decade, so that the scale is logarithmic."""
  low, high = bounds
  return low > 0 and high / low >= 10


def edges(experiment: Experiment, space: Space, point: Point, tried: Sequence[Point]) -> dict[str, str]:
  """Return the keys whose value in the best `point` is the smallest or the largest of all `tried` -> "low" or "high".

  Left out are keys with one tried value, choices other than three numbers or more, and bounds beyond which the
  algorithm or the optimizer allows no value, such as a delay of 0.
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
  """Return the bounds of a range, or of three or more numbers to choose from; None for other choices."""
  if not isinstance(bounds, list):
    return bounds
  ordered = len(bounds) > 2 and all(isinstance(bound, int | float) and not isinstance(bound, bool) for bound in bounds)
  return (min(bounds), max(bounds)) if ordered else None


def by_section(point: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
  """Return a point as `Experiment.changed` and a config take it."""
  out: dict[str, dict[str, Any]] = {}
  for path, value in point.items():
    section, _, key = path.partition(".")
    out.setdefault(section, {})[key] = value
  return out


def _at(bounds: Bounds, u: float) -> Any:
  """Return the value at a share u in [0, 1) of the bounds' scale, or of the choices."""
  if isinstance(bounds, list):
    return bounds[int(u * len(bounds))]
  low, high = bounds
  value = low * (high / low) ** u if logarithmic(bounds) else low + (high - low) * u
  if isinstance(low, int) and isinstance(high, int):
    return round(value)
  return min(max(float(f"{value:.4g}"), low), high)


def _space(section: Config, label: str, experiment: Experiment) -> Space:
  """Return what is tuned: the learning rate, and what config.sweep.space names for this label."""
  space: dict[str, Bounds] = {RATE: _range("config.sweep.learning_rate", section.learning_rate, float)}
  for bound in space[RATE]:
    check_all(PositiveFloat, bound, "config.sweep.learning_rate")
  where = f"config.sweep.space['{label}']"
  own = _section(where, section.space.get(label, {}))
  optimizer = _section(f"{where}.optimizer", own.pop("optimizer", {}))
  space |= _searched(where, own, "algorithm", experiment.algorithm.name)
  return space | _searched(f"{where}.optimizer", optimizer, "optimizer", experiment.optimizer.name)


def _section(where: str, value: Any) -> dict[str, Any]:
  if not isinstance(value, Mapping | ConfigDict):
    raise OptionError(where, "a dictionary of keys and bounds, such as {'period': (1, 16)}", repr(value))
  return {**value}


def _searched(where: str, section: Mapping[str, Any], kind: str, name: str) -> dict[str, Bounds]:
  """Return the keys of one section, with the bounds or choices of each."""
  parameters, out = keywords(factory(kind, name)), dict[str, Bounds]()
  for key, bounds in section.items():
    if key not in parameters:
      taken = f"takes {', '.join(parameters)}" if parameters else "takes no settings"
      raise OptionError(f"{where}.{key}", f"left out with {kind} '{name}', which {taken}")
    read = _choices if isinstance(bounds, list) else _range
    out[f"{kind}.{key}"] = read(f"{where}.{key}", bounds, parameters[key].annotation)
  return out


def _range(where: str, bounds: Any, annotation: Any) -> tuple[float, float]:
  """Return the pair low < high as numbers of the key's type. OptionError for anything else."""
  if annotation not in (int, float):
    raise OptionError(where, "a list of choices, such as ['a', 'b'], as it is no number", repr(bounds))
  if not isinstance(bounds, tuple) or len(bounds) != 2:
    raise OptionError(where, f"(low, high) of type {annotation.__name__}, or a list of choices", repr(bounds))
  low, high = (as_type(bound, annotation, where) for bound in bounds)
  if not (low < high and math.isfinite(high - low)):
    raise OptionError(where, "finite bounds, the first below the second", (low, high))
  return low, high


def _choices(where: str, values: list[Any], annotation: Any) -> list[Any]:
  """Return at least two different values of the key's type. OptionError for anything else."""
  out = [as_type(value, annotation, where) for value in values]
  if len(set(map(repr, out))) < max(2, len(out)) or not all(isinstance(v, bool | int | float | str) for v in out):
    raise OptionError(where, "two or more different numbers, texts or truth values", repr(values))
  return out
