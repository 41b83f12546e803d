"""A sweep as a frozen value: an experiment per label, the space that is searched for each, and its points."""

import copy
import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ml_collections import ConfigDict
from scipy.stats import qmc

from ddl import memory
from experiments.config.experiment import Experiment
from experiments.config.factories import Config, as_type, keywords, named
from experiments.config.variants import only, variants

Space = Mapping[str, tuple[float, float]]  # learning_rate or a key of the algorithm -> (low, high)


@dataclass(frozen=True)
class Sweep:
  """Each label is tried `trials` times; the data of all has a validation split."""

  experiments: Mapping[str, Experiment]
  spaces: Mapping[str, Space]
  trials: int = 9

  def __post_init__(self) -> None:
    """Raises ValueError where nothing can be tried or judged."""
    if self.trials < 1:
      raise ValueError(f"config.sweep.trials is {self.trials}: invalid: must be at least 1")
    if not all(each.data.get("validation") for each in self.experiments.values()):
      raise ValueError("a sweep needs a validation split; set config.sweep.validation, e.g. to 0.2")

  @property
  def first(self) -> Experiment:
    """The first label's: model and data are those of all."""
    return next(iter(self.experiments.values()))

  @classmethod
  def from_config(cls, config: Config, only_labels: Sequence[str] = (), trials: int = 0) -> "Sweep":
    """From `config.sweep`. trials: 0 for the config's. Raises as `variants` and `Experiment.from_config` do."""
    config = copy.deepcopy(config)
    if config.data.validation is None:
      config.data.validation = config.sweep.validation
    every = variants(config)
    for label in config.sweep.space:
      named("label (which config.sweep.space names) in config.compare.algorithms", every, label)
    chosen = only(every, list(only_labels))
    experiments = {label: Experiment.from_config(variant) for label, variant in chosen.items()}
    spaces = {label: _space(config.sweep, label, each) for label, each in experiments.items()}
    return cls(experiments, spaces, trials or config.sweep.trials)


def points(space: Space, trials: int) -> list[dict[str, float]]:
  """The first points of a Halton sequence: evenly spread for any number, the same for every algorithm.

  Log scale where the bounds span a decade, else linear; integers where both bounds are, else four digits.
  """
  memory.require(trials * (8 * len(space) + sys.getsizeof({})), f"{trials} trials")
  sequence = qmc.Halton(len(space), scramble=False)
  sequence.fast_forward(1)  # the first point is the corner of the box
  out = []
  for row in sequence.random(trials):
    point = {}
    for u, (key, (low, high)) in zip(row, space.items(), strict=True):
      value = low * (high / low) ** u if low > 0 and high / low >= 10 else low + (high - low) * u
      whole = isinstance(low, int) and isinstance(high, int)
      point[key] = round(value) if whole else float(f"{value:.4g}")
    out.append(point)
  return out


def by_section(point: Mapping[str, float]) -> dict[str, dict[str, float]]:
  """A point as `Experiment.changed` and a config take it."""
  rest = {k: v for k, v in point.items() if k != "learning_rate"}
  return {"optimizer": {"learning_rate": point["learning_rate"]}, **({"algorithm": rest} if rest else {})}


def _space(section: Config, label: str, experiment: Experiment) -> Space:
  """The bounds of what is tuned: the learning rate, and what config.sweep.space names for this label."""
  taken = keywords(experiment.spec.factory)
  space = {"learning_rate": _bounds("config.sweep.learning_rate", section.learning_rate, float)}
  if space["learning_rate"][0] <= 0:
    raise ValueError(f"config.sweep.learning_rate is {space['learning_rate']}; invalid: bounds must be > 0")
  own = section.space.get(label, {})
  if not isinstance(own, Mapping | ConfigDict):
    raise ValueError(f"config.sweep.space['{label}'] is {own!r}; it maps keys to bounds, such as {{'period': (1, 16)}}")
  for key, bounds in own.items():
    where = f"config.sweep.space['{label}'].{key}"
    if key not in taken:
      known = f"it takes {', '.join(taken)}" if taken else "it takes no settings"
      raise ValueError(f"{where}: algorithm '{experiment.algorithm.name}' does not read it; {known}")
    space[key] = _bounds(where, bounds, taken[key].annotation)
  return space


def _bounds(where: str, bounds: Any, annotation: Any) -> tuple[float, float]:
  """The pair low < high as numbers of the key's type. ValueError for anything else."""
  if annotation not in (int, float):
    raise ValueError(f"{where} is tuned between two numbers, but it is no number: set it for the label instead")
  try:
    low, high = (as_type(bound, annotation) for bound in bounds)
  except (TypeError, ValueError) as error:
    raise ValueError(f"{where} is {bounds!r}; give two of type {annotation.__name__}, (low, high)") from error
  if not (low < high and math.isfinite(high - low)):
    raise ValueError(f"{where} is {(low, high)}; invalid: bounds must be finite, the first below the second")
  return low, high
