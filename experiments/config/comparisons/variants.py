"""The labels of a comparison: a config for each, made from `config.compare.algorithms`; and what a sweep found."""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from ml_collections import ConfigDict

from ddl import files
from ddl.files import read_json
from experiments.config.base import base, renamed
from experiments.config.experiment import Experiment
from experiments.config.parts.catalog import REGISTRIES, unknown_key
from experiments.config.parts.factories import Config, as_type, named
from experiments.config.parts.part import jsonable
from experiments.short_name import short_name, slug

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
