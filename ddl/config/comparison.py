"""A comparison: a label's config, the points of a grid, and a frozen experiment for each on one budget of examples."""

import copy
import difflib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import product
from typing import Any, NamedTuple

import numpy as np
from ml_collections import ConfigDict

from ddl import files
from ddl.config.base import base, renamed
from ddl.config.experiment import Experiment
from ddl.config.parts import jsonable
from ddl.config.registry import REGISTRIES, Config, as_type, named, unknown_key
from ddl.config.unread_keys import reads
from ddl.files import read_json
from ddl.names import Place, comparable, quoted, short_name, slug, text, words
from ddl.ranges import Seed, check_fields

CHOICES = "[choices]"  # how a record marks a list, which JSON does not tell from a tuple


def variants(config: Config, tuned: str = "") -> dict[str, Config]:
  """A config for each label: the common one, what the label changes in it, and what a sweep found.

  Without labels a grid is of the config itself, whose label is the algorithm's name.

  Args:
    config: with `compare.algorithms`: label -> nested changes, e.g. {"algorithm": {"name": "dasgd", "delay": 2}}.
    tuned: path of a sweep's tuned.json, or "".

  Raises:
    ValueError: for no or an unknown label, labels that cannot name folders, an unknown key, a value of the wrong type,
      or a file that is no sweep's result.
  """
  labels = in_order(config.compare.algorithms)
  if not labels and config.compare.grid:
    labels = {short_name(config.algorithm.name): {}}
  if not labels:
    raise ValueError("config.compare.algorithms is empty; it maps labels to changes, as in configs/digits_compare.py")
  check_labels(labels)
  best = {label: entry["best"] for label, entry in _read(tuned).items()}
  for label in best:
    named("label in config.compare.algorithms", labels, label)
  out = {}
  for label, changes in labels.items():
    if isinstance(changes, Mapping):  # {"algorithm": "easgd"} for {"algorithm": {"name": "easgd"}}
      changes = {k: {"name": v} if isinstance(v, str) and k in REGISTRIES else v for k, v in changes.items()}
    with told(label):
      out[label] = renamed(config, changes)
    apply(out[label], base(), changes, f"config.compare.algorithms['{label}']")
    apply(out[label], base(), best.get(label, {}), f"{tuned}, '{label}'")
  return out


def of_label(label: str, config: Config) -> Experiment:
  """The experiment of a label. Raises as `Experiment.from_config` does, in a line that names the label."""
  with told(label):
    return Experiment.from_config(config)


@contextmanager
def told(label: str) -> Iterator[None]:
  """Names the label in a ValueError."""
  try:
    yield
  except ValueError as error:
    raise ValueError(f"label '{label}': {error}") from error


def trials(tuned: str) -> dict[str, dict[str, Any]]:
  """The keys that a sweep's tuned.json sets for each label, and its number of trials (0: unknown); {} for ""."""
  return {
    label: {
      "keys": [f"{section}.{key}" for section, keys in entry["best"].items() for key in keys],
      "trials": len(entry.get("trials", [])),
    }
    for label, entry in _read(tuned).items()
  }


def only(chosen: Mapping[str, Config], labels: Sequence[str], groups: Mapping[str, str] | None = None) -> list[str]:
  """The labels that these names pick: labels, algorithms or, of a grid, labels without the point; all for no names.

  Raises:
    ValueError: for an unknown name.
  """
  groups = groups or {}
  known = {
    label: {label, name := variant.algorithm.name, short_name(name), groups.get(label, label)}
    for label, variant in chosen.items()
  }
  every = set().union(*known.values())
  for label in labels:
    if label not in every:
      named("label in config.compare.algorithms", dict.fromkeys([*groups.values()] or chosen), label)
  return [label for label, names in known.items() if not labels or names & {*labels}]


def in_order(section: Config) -> dict[str, Any]:
  """The section in the order of its file: all that a ConfigDict iterates over is sorted by key, its JSON is not."""
  values = section.to_dict()
  return {key: values[key] for key in json.loads(section.to_json_best_effort())}


def recorded(config: Config) -> dict[str, Any]:
  """The config as JSON, from which `restored` makes it again: in the order of its file, choices told from bounds."""
  values = jsonable(config.to_dict())
  values["compare"]["algorithms"] = jsonable(in_order(config.compare.algorithms))
  values["sweep"]["space"] = jsonable(_marked(config.sweep.space.to_dict()))
  return values


def restored(value: Any) -> Any:
  """Lists, as JSON has them, as the tuples of a config; choices as the lists that they were."""
  if isinstance(value, dict) and value.keys() == {CHOICES}:
    return list(value[CHOICES])
  if isinstance(value, dict):
    return {key: restored(each) for key, each in value.items()}
  return tuple(map(restored, value)) if isinstance(value, list) else value


def _marked(space: Any) -> Any:
  if isinstance(space, Mapping):
    return {key: _marked(each) for key, each in space.items()}
  return {CHOICES: space} if isinstance(space, list) else space


def check_labels(labels: Mapping[str, Any]) -> None:
  """Raises ValueError unless each label has a folder of its own."""
  folders: dict[str, str] = {}
  for label in labels:
    if not label:
      raise ValueError("config.compare.algorithms has the label ''; a label names a folder, so it cannot be empty")
    if slug(label) in folders:
      other = folders[slug(label)]
      raise ValueError(
        f"config.compare.algorithms: labels '{other}' and '{label}' would share the folder {slug(label)}; change one"
      )
    folders[slug(label)] = label


def apply(config: Config, base: Config, changes: Any, where: str) -> None:
  """Sets the changes in the config; a key whose default in `base` is None may be unset again.

  Raises:
    ValueError: for a key that does not exist or a value of the wrong type; the line names `where` it stands.
  """
  if not isinstance(changes, Mapping):
    raise ValueError(f"{where} is {changes!r}; a section maps keys to values, such as {_example(config)}")
  for key, value in changes.items():
    if key not in config:
      raise ValueError(unknown_key(key, where, where.rpartition(".")[2], config))
    if isinstance(config[key], ConfigDict):
      apply(config[key], base.get(key, {}), value, f"{where}.{key}")
    elif value is not None:
      try:
        value = as_type(value, config.get_type(key))
      except TypeError as error:
        raise ValueError(f"{where}.{key} is {value!r}; it takes {error}") from error
      with config.ignore_type():
        config[key] = value
    elif base.get(key) is None:
      with config.ignore_type():
        config[key] = None
    else:
      raise ValueError(f"{where}.{key} is None, but it has no default of a factory to fall back to; give it a value")


def _example(config: Config) -> str:
  return "{'name': '" + config.name + "'}" if "name" in config else "{'algorithm': {'name': 'local_sgd', 'period': 10}}"


def _read(path: str) -> dict[str, Any]:
  """Label -> what a sweep found, with its "best" setting; {} for ""."""
  if not path:
    return {}
  advice = "give the tuned.json that `python run.py sweep` wrote"
  try:
    found = read_json(files.local(path), "").get("algorithms")
  except (OSError, ValueError) as error:
    raise ValueError(f"--tuned={path}: {error}; {advice}") from error
  if not isinstance(found, dict) or not found or not all(map(_is_entry, found.values())):
    raise ValueError(f"--tuned={path} is no result of a sweep; {advice}")
  return found


def _is_entry(found: Any) -> bool:
  return isinstance(found, dict) and "best" in found and isinstance(found.get("trials", []), list)


WHERE = "config.compare.grid"
COUNTED = ("eval_every", "schedule.warmup", "schedule.every", "schedule.at")  # in steps, scaled as these are
AXES = 3  # keys with several values that a page has pictures for
REFUSED = {  # sections and keys that no grid can have, and why
  "model": "a comparison is of algorithms on one model",
  "data": "a comparison is of algorithms on one data set",
  "seed": "the seeds are config.compare.seeds",
  "compare": "it is what is compared, not how it is run",
  "sweep": "a comparison tunes nothing",
}


class Variant(NamedTuple):
  """A label at a point of the grid."""

  config: Config
  place: Place


def expanded(config: Config, labels: Mapping[str, Config]) -> dict[str, Variant]:
  """Each label at each point: by label, then in the order of the grid; at one where there is none.

  A key that a label's algorithm (or optimizer, ...) does not read is left out of its points, which then coincide. The
  value of a point replaces what the label sets. Where the grid does not have `steps`, they follow so that workers x
  batch x steps stays as it is, rounded to whole steps; evaluations and the schedule's steps are scaled alike.

  Raises:
    ValueError: for a key that does not exist or that no label reads, and for a value of the wrong type or a repeated
      one; the line names config.compare.grid.
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
    for chosen in product(*grid.values()):
      made, point = _at(variant, dict(zip(grid, chosen, strict=True)), defaults)
      label = ", ".join([group, *(f"{words(key, several)} {text(point[key])}" for key in several if key in point)])
      if out.setdefault(label, Variant(made, Place(group, point))).place != (group, point):
        raise ValueError(f"{WHERE}: two labels would be called '{label}'; change one of config.compare.algorithms")
  for key, given in grid.items():
    found = {repr(each.place.point[key]) for each in out.values() if key in each.place.point}
    if not found:
      raise ValueError(f"{WHERE} has {key}, which no label reads: {', '.join(map(quoted, labels))}")
    if len(found) < len(given):
      raise ValueError(f"{WHERE} has a value of {key} twice: {', '.join(map(str, given))}")
  check_labels(out)
  return out


def values(config: Config) -> dict[str, tuple[Any, ...]]:
  """Key -> its values, in the order of the config. ValueError for anything else than keys with values."""
  given = config.compare.grid
  if not all(isinstance(each, tuple) and len(each) == 2 and isinstance(each[0], str) for each in given):
    raise ValueError(f"{WHERE} is {given!r}; it maps keys to values, such as {{'workers': (1, 2, 4)}}")
  grid = {key: each if isinstance(each, tuple) else tuple(each) if isinstance(each, list) else (each,)
          for key, each in given}  # fmt: skip
  if empty := [key for key, each in grid.items() if not each]:
    raise ValueError(f"{WHERE} has no values for {empty[0]}; give one or more, such as (1, 2, 4)")
  if len(several := [key for key, each in grid.items() if len(each) > 1]) > AXES:
    raise ValueError(f"{WHERE} has {len(several)} keys with several values ({', '.join(several)}); at most {AXES} fit")
  return grid


def _check_key(key: str, variants: Iterable[Config]) -> None:
  if why := REFUSED.get(key.partition(".")[0]):
    raise ValueError(f"{WHERE} has {key}: {why}")
  known: dict[str, None] = {}
  for config in variants:
    for name, section in config.items():
      if name not in REFUSED:
        known |= dict.fromkeys([f"{name}.{each}" for each in section] if isinstance(section, ConfigDict) else [name])
  if key not in known:
    near = difflib.get_close_matches(key, known, n=1, cutoff=0.5)
    hint = f"did you mean '{near[0]}'?" if near else "keys are such as workers, batch or algorithm.period"
    raise ValueError(f"{WHERE} has no key '{key}' of the config: {hint}")


def _at(variant: Config, point: dict[str, Any], defaults: Config) -> tuple[Config, dict[str, Any]]:
  """The label's config at a point, and those keys of the point that it reads, with the values as they are read."""
  made, found = copy.deepcopy(variant), dict[str, Any]()
  for key in sorted(point, key=lambda key: not key.endswith(".name")):  # a name decides which keys are read
    section, _, name = key.rpartition(".")
    if reads(made, key):
      changes = {section: {name: point[key]}} if section else {name: point[key]}
      made = renamed(made, changes)
      apply(made, defaults, changes, WHERE)
      found[key] = made[section][name] if section else made[name]
  if "steps" not in point:
    _keep_budget(made, variant, found)
  return made, {key: found[key] for key in point if key in found}


def _keep_budget(made: Config, before: Config, point: Mapping[str, Any]) -> None:
  """Sets the steps that make as many examples as before, and all that is counted in steps alike."""
  examples, each = before.workers * before.batch * before.steps, made.workers * made.batch
  if each == before.workers * before.batch or each < 1:  # a number that is none is refused later, in its own words
    return
  made.steps = max(1, round(examples / each))
  for key in COUNTED:
    section, _, name = key.rpartition(".")
    part = made[section] if section else made
    count = part.get(name)
    if key in point or not count:
      continue
    scaled = tuple(max(1, round(each * made.steps / before.steps)) for each in np.atleast_1d(count))
    part[name] = scaled if isinstance(count, tuple) else scaled[0]


@dataclass(frozen=True)
class Comparison:
  """`experiments`: by label, in the order of the report; the seed of each is replaced by `seeds` one by one."""

  experiments: Mapping[str, Experiment]
  title: str = ""
  seeds: tuple[Seed, ...] = (0, 1, 2)
  target: float = 0.95  # of the test metric
  expected: tuple[tuple[str, str], ...] = ()  # pairs of labels, the first sooner at the target, as a paper found
  clusters: tuple[str, ...] = ()  # that the seconds are predicted for
  tuned: str = ""  # tuned.json of the sweep that the settings are from
  grid: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)  # values by key; {}: there is none
  places: Mapping[str, Place] = field(default_factory=dict)  # of the labels in the grid
  metric: str = ""  # see `config.compare.metric`

  def __post_init__(self) -> None:
    """Raises ValueError for invalid seeds or expectations, or algorithms that cannot be compared."""
    if not isinstance(self.expected, tuple) or not all(isinstance(p, tuple) and len(p) == 2 for p in self.expected):
      raise ValueError(
        f"config.compare.expected is {self.expected}; give pairs of labels, such as (('EASGD', 'local SGD'),)"
      )
    check_fields(self, "config.compare.")
    if len(set(self.seeds)) < len(self.seeds):
      raise ValueError(f"config.compare.seeds must be different, got {self.seeds}.")
    if not self.seeds:
      raise ValueError("config.compare.seeds is empty; give at least one, and three for an interval")
    for label, experiment in self.experiments.items():
      for part in ("model", "data"):
        if getattr(experiment, part) != getattr(self.first, part):
          raise ValueError(f"{quoted(label)} changes the {part}; a comparison is of algorithms on one {part}")
    if "steps" not in self.grid:
      self._check_budget()

  def _check_budget(self) -> None:
    """Raises ValueError where labels have another number of examples, which a grid rounds to whole steps."""
    step = {label: each.workers * each.batch for label, each in self.experiments.items()}
    budgets = {label: step[label] * each.steps for label, each in self.experiments.items()}
    rounding = max(step.values()) if self.grid else 0
    if max(budgets.values()) - min(budgets.values()) > rounding:
      told = ", ".join(f"{quoted(label)}: {budget}" for label, budget in budgets.items())
      raise ValueError(
        f"workers x batch x steps differ ({told} examples); a comparison has one budget of examples, or steps among "
        "the keys of config.compare.grid"
      )

  @property
  def first(self) -> Experiment:
    """The first label's: model and data are those of all."""
    return next(iter(self.experiments.values()))

  @classmethod
  def from_config(
    cls, config: Config, only_labels: Sequence[str] = (), tuned: str = "", clusters: Sequence[str] = ()
  ) -> "Comparison":
    """From `config.compare`. Raises as `variants`, `only` and `Experiment.from_config` do."""
    labels = variants(config, tuned)
    every = expanded(config, labels)
    configs = {label: each.config for label, each in every.items()}
    groups = {label: each.place.group for label, each in every.items()}
    chosen = only(configs, only_labels, groups)
    section = config.compare
    out = cls(
      {label: of_label(label, configs[label]) for label in chosen},
      section.title, section.seeds, section.target, section.expected, tuple(clusters), tuned,
      values(config), {label: every[label].place for label in chosen}, section.metric,
    )  # fmt: skip
    for label in [label for pair in out.expected for label in pair]:
      named("label in config.compare.expected", labels, label)
    return out

  def place(self, label: str) -> Place:
    """Of a label in the grid."""
    return self.places.get(label, Place(label, {}))

  @property
  def expected_labels(self) -> list[tuple[str, str]]:
    """`expected`, at each point of the grid."""
    found = []
    for sooner, later in self.expected:
      at = [[label for label in self.experiments if self.place(label).group == group] for group in (sooner, later)]
      found += [pair for pair in product(*at) if comparable(*map(self.place, pair))] if all(at) else [(sooner, later)]
    return found

  def to_json(self) -> dict[str, Any]:
    """As a reader of the report needs it: what all experiments have in common, and what each label sets."""
    flat = {label: _flat(each.to_json()) for label, each in self.experiments.items()}
    every = [set(map(repr, each.items())) for each in flat.values()]
    common = set.intersection(*every)
    own = {label: {k: v for k, v in each.items() if repr((k, v)) not in common} for label, each in flat.items()}
    shared = {k: v for k, v in _flat(self.first.to_json()).items() if repr((k, v)) in common}
    heads = {"title": self.title, "seeds": self.seeds, "metric": self.metric, "target": self.target}
    heads |= {"expected": self.expected}
    heads |= {"grid": self.grid} if self.grid else {}
    return jsonable({**heads, "common": shared, "algorithms": own})


def _flat(values: Mapping[str, Any]) -> dict[str, Any]:
  """{"model": {"name": "mlp"}} -> {"model.name": "mlp"}."""
  out = {}
  for key, value in values.items():
    out |= {f"{key}.{inner}": v for inner, v in value.items()} if isinstance(value, Mapping) else {key: value}
  return out
