"""Comparisons: an immutable experiment for each compared algorithm and grid point, with equal numbers of examples.

A label is the name of a compared algorithm: a key of `config.compare.algorithms`, whose value changes the config.
"""

import copy
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import product
from typing import Any, NamedTuple

import numpy as np
from ml_collections import ConfigDict

from ddl.config import tuned as tuned_settings
from ddl.config.base import base, renamed
from ddl.config.catalog import REGISTRIES, Config, as_type, named, unknown_key
from ddl.config.experiment import Experiment, flat, jsonable
from ddl.config.unread_keys import VIRTUAL, reads
from ddl.errors import OptionError, nearest
from ddl.names import Place, comparable, quoted, short_name, slug, text, words
from ddl.ranges import Seed, check_fields

LABELS, GRID = "config.compare.algorithms", "config.compare.grid"
CHOICES = "[choices]"  # marks a list in a record, as JSON does not distinguish lists from tuples
COUNTED = (  # numbers of steps, scaled with `steps`
  "eval_every",
  *(f"{schedule}.{key}" for schedule in ("schedule", "outer_schedule") for key in ("warmup", "every", "at")),
)
AXES = 3  # maximum number of keys with several values that the report can plot
REFUSED = {  # sections and keys that a grid cannot vary, and why
  "model": "All algorithms of a comparison have the same model.",
  "data": "All algorithms of a comparison have the same data set.",
  "seed": "Set seeds in config.compare.seeds.",
  "compare": "This section applies to the whole comparison.",
  "sweep": "This section applies to the whole sweep.",
}


def variants(config: Config) -> dict[str, Config]:
  """Return each algorithm label's config: the common config with the label's changes.

  Without labels, a grid varies the config itself, and the label is the algorithm's name.

  Raises ValueError if there are neither labels nor a grid, if a label is empty or two labels have the same folder name,
  and for an unknown name or key or a value of the wrong type.

  config: its `compare.algorithms` maps labels to nested changes such as {"algorithm": {"name": "dasgd", "delay": 2}}.
  """
  labels = in_order(config.compare.algorithms)
  if not labels and config.compare.grid:
    labels = {short_name(config.algorithm.name): {}}
  if not labels:
    advice = "See configs/digits_compare.py."
    raise OptionError(LABELS, "a nonempty dictionary of labels and config changes", "{}", advice)
  check_labels(labels)
  out = {}
  for label, changes in labels.items():
    if isinstance(changes, Mapping):  # {"algorithm": "easgd"} for {"algorithm": {"name": "easgd"}}
      changes = {k: {"name": v} if isinstance(v, str) and k in REGISTRIES else v for k, v in changes.items()}
    with naming(label):
      out[label] = renamed(config, changes)
    apply(out[label], base(), changes, f"{LABELS}['{label}']")
  return out


def experiment_of(label: str, config: Config) -> Experiment:
  """Create the experiment for an algorithm label. Errors from `Experiment.from_config` also name the label."""
  with naming(label):
    return Experiment.from_config(config)


@contextmanager
def naming(label: str) -> Iterator[None]:
  """Within this context, add the algorithm label to the message of a ValueError."""
  try:
    yield
  except ValueError as error:
    raise ValueError(f"label '{label}': {error}") from error


def in_order(section: Config) -> dict[str, Any]:
  """Return a section as a dictionary in insertion order; iterating over a ConfigDict would sort the keys."""
  values = section.to_dict()
  return {key: values[key] for key in json.loads(section.to_json_best_effort())}


def recorded(config: Config) -> dict[str, Any]:
  """Convert a config to JSON, with labels in insertion order and lists of choices marked. `restored` is the inverse."""
  values = jsonable(config.to_dict())
  values["compare"]["algorithms"] = jsonable(in_order(config.compare.algorithms))
  values["sweep"]["space"] = jsonable(_marked(config.sweep.space.to_dict()))
  return values


def restored(value: Any) -> Any:
  """Undo `recorded`: convert marked lists to lists, and all other JSON lists to tuples."""
  if isinstance(value, dict) and value.keys() == {CHOICES}:
    return list(value[CHOICES])
  if isinstance(value, dict):
    return {key: restored(item) for key, item in value.items()}
  return tuple(map(restored, value)) if isinstance(value, list) else value


def _marked(space: Any) -> Any:
  if isinstance(space, Mapping):
    return {key: _marked(item) for key, item in space.items()}
  return {CHOICES: space} if isinstance(space, list) else space


def check_labels(labels: Iterable[str]) -> None:
  """Raise OptionError for an empty algorithm label, or for two labels with the same folder name."""
  folders: dict[str, str] = {}
  for label in labels:
    if not label:
      raise OptionError(f"labels of {LABELS}", "nonempty (they name folders)", "''")
    other = folders.setdefault(slug(label), label)
    if other != label:
      shared = f"'{other}' and '{label}', both with the folder {slug(label)}"
      raise OptionError(f"labels of {LABELS}", "distinct as folder names", shared, "Rename one of them.")


def apply(config: Config, base: Config, changes: Any, where: str) -> None:
  """Apply nested changes to a config in place; only keys that are None in `base` can be set to None.

  Raises OptionError for an unknown key or a value of the wrong type.
  """
  if not isinstance(changes, Mapping):
    example = {"name": config.name} if "name" in config else {"algorithm": {"name": "local_sgd", "period": 10}}
    raise OptionError(where, f"a dictionary of settings (for example, {example})", repr(changes))
  for key, value in changes.items():
    if key not in config:
      raise unknown_key(key, where, where.rpartition(".")[2], config)
    if isinstance(config[key], ConfigDict):
      apply(config[key], base.get(key, {}), value, f"{where}.{key}")
      continue
    if value is None and base.get(key) is not None:
      raise OptionError(f"{where}.{key}", "set to a value", "None")
    with config.ignore_type():
      config[key] = value if value is None else as_type(value, config.get_type(key), f"{where}.{key}")


class Variant(NamedTuple):
  """The config of an algorithm label at a grid point, and its position in the grid."""

  config: Config
  place: Place


def expanded(config: Config, labels: Mapping[str, Config]) -> dict[str, Variant]:
  """Return the variants of all algorithm labels at all grid points, ordered by label and then by point.

  A point's values override those of the label. If a label's algorithm (or optimizer, ...) does not take a key, the key
  is omitted from the label's points, and points that become equal are merged. Unless the grid varies `steps`, `steps`
  is set so that all variants of a label train on the same number of examples, workers x batch x steps, up to rounding
  to whole steps; eval_every and the steps of the schedules are scaled by the same factor.

  Raises OptionError for an unknown key, a key that no label uses, a value of the wrong type, or a repeated value.
  """
  grid = values(config)
  if not grid:
    return {label: Variant(variant, Place(label, {})) for label, variant in labels.items()}
  defaults = base()
  for key in grid:
    _check_key(key, labels.values())
  several = [key for key in grid if len(grid[key]) > 1]
  out: dict[str, Variant] = {}
  for group, variant in labels.items():
    for point in product(*grid.values()):
      changed, read = _variant_at(variant, dict(zip(grid, point, strict=True)), defaults)
      label = ", ".join([group, *(f"{words(key, several)} {text(read[key])}" for key in several if key in read)])
      if out.setdefault(label, Variant(changed, Place(group, read))).place != (group, read):
        raise OptionError(f"labels of {LABELS}", f"distinct at all points of {GRID}", f"'{label}' twice")
  for key, grid_values in grid.items():
    read = {repr(variant.place.point[key]) for variant in out.values() if key in variant.place.point}
    if not read:
      raise OptionError(f"keys of {GRID}", f"used by a compared algorithm ({', '.join(map(quoted, labels))})", key)
    if len(read) < len(grid_values):
      raise OptionError(f"values of {GRID}['{key}']", "distinct", ", ".join(map(str, grid_values)))
  check_labels(out)
  return out


def only(points: Mapping[str, Variant], names: Sequence[str]) -> dict[str, Variant]:
  """Return the variants that match one of `names`, or all variants if `names` is empty.

  A name is a label with or without grid values, or an algorithm. Raises OptionError for an unknown name.
  """
  known = {
    label: {label, name := config.algorithm.name, short_name(name), place.group}
    for label, (config, place) in points.items()
  }
  for name in names:
    if not any(name in aliases for aliases in known.values()):
      named("only", dict.fromkeys(place.group for _, place in points.values()), name)
  return {label: points[label] for label, aliases in known.items() if not names or aliases & {*names}}


def values(config: Config) -> dict[str, tuple[Any, ...]]:
  """Return the grid of a config as key -> values. Raises OptionError if the grid is malformed."""
  pairs = config.compare.grid
  if not all(isinstance(pair, tuple) and len(pair) == 2 and isinstance(pair[0], str) for pair in pairs):
    raise OptionError(GRID, "a dictionary of keys and their values (for example, {'workers': (1, 2, 4)})", repr(pairs))
  grid = {key: tuple(choices) if isinstance(choices, tuple | list) else (choices,) for key, choices in pairs}
  if empty := [key for key, choices in grid.items() if not choices]:
    raise OptionError(f"{GRID}['{empty[0]}']", "one or more values (for example, (1, 2, 4))", "()")
  if len(several := [key for key, choices in grid.items() if len(choices) > 1]) > AXES:
    raise OptionError(GRID, f"limited to {AXES} keys with several values", f"{len(several)} ({', '.join(several)})")
  return grid


def _check_key(key: str, variants: Iterable[Config]) -> None:
  if reason := REFUSED.get(key.partition(".")[0]):
    raise OptionError(f"keys of {GRID}", "settings that may differ between compared algorithms", f"'{key}'", reason)
  known: dict[str, None] = {}
  for config in variants:
    for name, section in config.items():
      if name not in REFUSED:
        known |= dict.fromkeys([f"{name}.{inner}" for inner in section] if isinstance(section, ConfigDict) else [name])
  if key not in known:
    condition = "config keys (for example, workers, batch or algorithm.period)"
    raise OptionError(f"keys of {GRID}", condition, f"'{key}'", nearest(key, known))


def _variant_at(variant: Config, point: dict[str, Any], defaults: Config) -> tuple[Config, dict[str, Any]]:
  """Apply a grid point to a copy of `variant`; return the copy and the settings of the point that it uses."""
  out, read = copy.deepcopy(variant), dict[str, Any]()
  # Names come first, because they decide which keys are used; keys of virtual time come last, because the algorithm's
  # settings decide which of them are used.
  for key in sorted(point, key=lambda key: (not key.endswith(".name"), key.partition(".")[0] in VIRTUAL)):
    section, _, name = key.rpartition(".")
    if reads(out, key):
      changes = {section: {name: point[key]}} if section else {name: point[key]}
      out = renamed(out, changes) if name == "name" else out
      apply(out, defaults, changes, GRID)
      read[key] = out[section][name] if section else out[name]
  if "steps" not in point:
    _keep_budget(out, variant, read)
  return out, {key: read[key] for key in point if key in read}


def _keep_budget(config: Config, before: Config, point: Mapping[str, Any]) -> None:
  """Set `steps` to train on as many examples as `before`; scale the settings in COUNTED by the same factor."""
  examples, step = before.workers * before.batch * before.steps, config.workers * config.batch
  if step == before.workers * before.batch or step < 1:  # a number below 1 is reported later
    return
  config.steps = max(1, round(examples / step))
  for key in COUNTED:
    section, _, name = key.rpartition(".")
    part = config[section] if section else config
    count = part.get(name)
    if key in point or not count:
      continue
    scaled = tuple(max(1, round(steps * config.steps / before.steps)) for steps in np.atleast_1d(count))
    part[name] = scaled if isinstance(count, tuple) else scaled[0]


@dataclass(frozen=True)
class Comparison:
  """Experiments by algorithm label, in the order of the report; each is run once per seed in `seeds`."""

  experiments: Mapping[str, Experiment]
  title: str = ""
  seeds: tuple[Seed, ...] = (0, 1, 2)
  target: float = 0.95  # value of the test metric to reach
  expected: tuple[tuple[str, str], ...] = ()  # pairs (faster, slower) of labels, see `config.compare.expected`
  clusters: tuple[str, ...] = ()  # names of the clusters for which seconds are predicted
  tuned: str = ""  # path of a sweep's tuned.json whose settings were applied, or ""
  tuned_labels: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # see `ddl.config.tuned.summary`
  grid: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)  # values by key; {}: no grid
  places: Mapping[str, Place] = field(default_factory=dict)  # position of each label in the grid
  metric: str = ""  # see `config.compare.metric`
  mode: str = ""  # see `config.compare.mode`
  stop_at_target: bool = False  # whether a run ends at the first evaluation that meets the target

  def __post_init__(self) -> None:
    """Raise OptionError for invalid seeds or expected pairs, or experiments that cannot be compared."""
    if not isinstance(self.expected, tuple) or not all(isinstance(p, tuple) and len(p) == 2 for p in self.expected):
      condition = "pairs of labels (for example, (('EASGD', 'local SGD'),))"
      raise OptionError("config.compare.expected", condition, repr(self.expected))
    check_fields(self, "config.compare.")
    if not self.seeds or len(set(self.seeds)) < len(self.seeds):
      advice = "Use two or more seeds to get a confidence interval." * (not self.seeds)
      raise OptionError("config.compare.seeds", "one or more distinct seeds", self.seeds, advice)
    for label, experiment in self.experiments.items():
      for part in ("model", "data"):
        if getattr(experiment, part) != getattr(self.first, part):
          raise OptionError(
            f"config.{part}", "the same for all compared algorithms", f"a different one for {quoted(label)}"
          )
    if "steps" not in self.grid:
      self._check_budget()

  def _check_budget(self) -> None:
    """Raise OptionError if the numbers of training examples differ by more than a grid's rounding to whole steps."""
    step = {label: experiment.workers * experiment.batch for label, experiment in self.experiments.items()}
    budgets = {label: step[label] * experiment.steps for label, experiment in self.experiments.items()}
    rounding = max(step.values()) if self.grid else 0
    if max(budgets.values()) - min(budgets.values()) > rounding:
      shown = ", ".join(f"{quoted(label)}: {budget}" for label, budget in budgets.items())
      advice = f"To compare different budgets, vary config.steps in {GRID}."
      raise OptionError("workers x batch x steps", "the same for all compared algorithms", shown, advice)

  @property
  def first(self) -> Experiment:
    """The first experiment; all experiments have the same model and data."""
    return next(iter(self.experiments.values()))

  @classmethod
  def from_config(
    cls, config: Config, only_labels: Sequence[str] = (), tuned: str = "", clusters: Sequence[str] = ()
  ) -> "Comparison":
    """Create a comparison from a config. tuned: path of a sweep's tuned.json, whose best settings are applied, or "".

    Raises as `variants`, `expanded`, `only`, `Experiment.from_config` and `ddl.config.tuned.matching` do.
    """
    labels, section = variants(config), config.compare
    points = only(expanded(config, labels), only_labels)
    places = {label: variant.place for label, variant in points.items()}
    experiments = {label: experiment_of(label, variant.config) for label, variant in points.items()}
    entries = tuned_settings.matching(tuned, labels, experiments, places)
    for label, entry in entries.items():
      apply(points[label].config, base(), entry["best"], f"{tuned}['{label}']")
      experiments[label] = experiment_of(label, points[label].config)
    out = cls(
      experiments, section.title, section.seeds, section.target, section.expected, tuple(clusters), tuned,
      tuned_settings.summary(entries), values(config), places, section.metric, section.mode,
      section.stop_at_target,
    )  # fmt: skip
    for label in [label for pair in out.expected for label in pair]:
      named("label in config.compare.expected", labels, label)
    return out

  def place(self, label: str) -> Place:
    """Return an algorithm label's position in the grid: the label without its grid values, and the grid values."""
    return self.places.get(label, Place(label, {}))

  @property
  def expected_labels(self) -> list[tuple[str, str]]:
    """The pairs of algorithm labels (faster, slower) in `expected`, at each point of the grid."""
    pairs = []
    for sooner, later in self.expected:
      at = [[label for label in self.experiments if self.place(label).group == group] for group in (sooner, later)]
      pairs += [pair for pair in product(*at) if comparable(*map(self.place, pair))] if all(at) else [(sooner, later)]
    return pairs

  def to_json(self) -> dict[str, Any]:
    """Return the comparison as JSON: settings common to all algorithms, and the other settings by label."""
    settings = {label: flat(experiment.to_json()) for label, experiment in self.experiments.items()}
    common = set.intersection(*[set(map(repr, values.items())) for values in settings.values()])
    differing = {
      label: {k: v for k, v in keys.items() if repr((k, v)) not in common} for label, keys in settings.items()
    }
    shared = {k: v for k, v in flat(self.first.to_json()).items() if repr((k, v)) in common}
    heads = {
      key: getattr(self, key) for key in ("title", "seeds", "metric", "mode", "target", "stop_at_target", "expected")
    }
    heads |= {"grid": self.grid} if self.grid else {}
    return jsonable({**heads, "common": shared, "algorithms": differing})
