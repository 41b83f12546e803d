"""Create the default config, load config files, and replace the factories that config sections name."""

import contextlib
import copy
import difflib
import re
import traceback
from collections.abc import Callable, Mapping
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Any

from ml_collections import ConfigDict, FrozenConfigDict, config_dict

from ddl import files
from ddl.config import user_code
from ddl.config.catalog import (
  NO_WRAPPER,
  REGISTRIES,
  Config,
  as_type,
  check_keys,
  entry,
  factory,
  keywords,
  section,
  takes,
  with_keys,
)  # fmt: skip
from ddl.config.experiment import SETTINGS, Experiment, Network
from ddl.config.user_code import is_address
from ddl.errors import OptionError
from ddl.names import short_name

SECTIONS = (*REGISTRIES, "network", "compare", "sweep")
DEFAULTS = {  # section -> name of its default factory
  "algorithm": "sync_sgd",
  "wrapper": NO_WRAPPER,  # no compression of messages
  "model": "mlp",
  "data": "digits",
  "partition": "iid",
  "optimizer": "sgd",
  "schedule": "constant",
  "outer_schedule": "constant",
  "period_schedule": "constant",
  "times": "lognormal",  # step times in virtual time
  "barrier": "asp",  # of server algorithms
}


class Pairs(config_dict.FieldReference):
  """A config field that stores {key: value} as ((key, value), ...), because ConfigDict keys cannot contain dots."""

  def set(self, value: Any, type_safe: bool = True) -> None:
    """Convert a mapping to pairs, check the type of the value and set it."""
    super().set(tuple(value.items()) if isinstance(value, Mapping) else value, type_safe)


def base() -> Config:
  """Return the default config, which has all keys; None means that the section's factory uses its default."""
  config: Config = ConfigDict()
  for kind, name in DEFAULTS.items():
    config[kind] = section(name, [factory(kind, factory_name) for factory_name in REGISTRIES[kind]])
  config.optimizer.learning_rate = 0.1
  config.network = ConfigDict(
    {f.name: config_dict.placeholder(float) if f.default is None else f.default for f in fields(Network)}
  )
  config.update(SETTINGS)
  config.compare = ConfigDict(
    {
      "title": "",
      "seeds": (0, 1, 2),
      "metric": "",  # such as "accuracy", "loss" or "perplexity"; "": the accuracy if the model has one, else the loss
      "mode": "",  # "max" or "min": whether higher or lower values are better; may be "" for metrics that ddl knows
      "target": 0.95,  # test metric to reach: at least this accuracy, or at most this loss or perplexity
      "stop_at_target": False,  # end a run when an evaluation meets the target; final metrics are not compared
      "expected": (),  # pairs of labels (A, B) where A reaches the target sooner than B according to a paper
      "algorithms": ConfigDict(),  # label -> changes of the config, e.g. {"algorithm": {"name": "dasgd"}}
      "grid": Pairs((), tuple),  # key -> values to run all labels with, e.g. {"algorithm.period": (1, 4)}
    }
  )
  config.sweep = ConfigDict(
    {
      "trials": 9,  # number of trials per algorithm and grid point
      "seeds": (),  # seeds over which a trial's score is averaged; (): config.seed
      "sampler": "halton",  # "halton": evenly spread points; "tpe": points that depend on the results of earlier trials
      "pruning": False,  # stop trials that are not in the best third after 1/9 or 1/3 of the steps
      "validation": 0.2,  # share of the training examples used for validation, if the data section sets none
      "learning_rate": (0.01, 1.0),  # bounds (low, high); the scale is logarithmic if high / low >= 10, else linear
      "space": ConfigDict(),  # label -> {key of config.algorithm: (low, high) or [choices], "optimizer": {key: ...}}
    }
  )
  return config.lock()


def with_user_keys(config: Config, sections: Any = None) -> Config:
  """Add keys for the arguments of the user-defined functions named in `sections` (default: in the config itself).

  The config is changed in place and returned. Raises OptionError if such a function cannot be imported.
  """
  for kind in REGISTRIES:
    values, new = config.get(kind), (config if sections is None else sections).get(kind)
    if isinstance(new, Mapping | ConfigDict) and is_address(new.get("name")):
      settings = {key: value for key, value in values.items() if value is not None} | {"name": new["name"]}
      config[kind] = with_keys(kind, settings, base()[kind])
  return config


def switched(config: Config, names: Mapping[str, str]) -> tuple[Config, str]:
  """Return (a copy of a config with other factories, a note on dropped settings or "").

  names: section -> name of the new factory.

  Settings that are valid only for the old factory are dropped from the section. They are also dropped from the changes
  and sweep spaces of compared algorithms that name no factory for this section, and from the grid if no compared
  algorithm names one. Raises ValueError for an unknown name.
  """
  out, notes = renamed(config, {kind: {"name": name} for kind, name in names.items()}), []
  labels = out.compare.algorithms
  for kind, name in names.items():
    old = config[kind].name
    if name == old:
      continue
    is_valid = partial(_is_valid, kind, old, name)

    def all_valid(key: str, values: Any, is_valid: Callable[[str, Any], bool] = is_valid) -> bool:
      return all(is_valid(key, value) for value in (values if isinstance(values, tuple | list) else [values]))

    dropped = [key for key, value in config[kind].items() if value is not None and out[kind].get(key) is None]
    followers = [label for label in labels if "name" not in _section(labels[label], kind)]
    settings: list[Any] = [(label, _section(labels[label], kind), is_valid) for label in followers]
    for label in followers:
      space = out.sweep.space.get(label, {})
      settings.append((label, space if kind == "algorithm" else _section(space, kind), all_valid))
    for label, keys, stays in settings:
      for key in [key for key in keys if _reads(kind, old, key) and not stays(key, keys[key])]:
        del keys[key]
        dropped.append(f"{key} of '{label}'")
    if len(followers) == len(labels):
      grid = [
        pair for pair in out.compare.grid if not _grid_key(pair, kind) or all_valid(_grid_key(pair, kind), pair[1])
      ]
      dropped += [f"{pair[0]} of the grid" for pair in out.compare.grid if pair not in grid]
      out.compare.grid = tuple(grid)
    if dropped:
      keys = ", ".join(dict.fromkeys(dropped))
      notes.append(f"config.{kind}.name={short_name(name)} drops settings of {short_name(old)}: {keys}")
  return out, "; ".join(notes)


def _section(changes: Any, kind: str) -> Any:
  """Return the changes of section `kind` in `changes`; a string means {"name": string}."""
  section = changes.get(kind, {}) if isinstance(changes, Mapping | ConfigDict) else {}
  return section if isinstance(section, Mapping | ConfigDict) else {"name": section}


def _grid_key(pair: Any, kind: str) -> str:
  """Return the key that a (key, values) pair of the grid sets in section `kind`, except `name`; "" if it sets none."""
  section, _, key = str(pair[0]).partition(".") if isinstance(pair, tuple) and pair else ("", "", "")
  return key if section == kind and key != "name" else ""


def _is_valid(kind: str, old: str, new: str, key: str, value: Any) -> bool:
  """Return whether a setting of factory `old` in section `kind` is also valid for factory `new`.

  For models, the declared types must be equal too: hidden=128 is not converted to a tuple for another model.
  """
  if not takes(kind, new, key):
    return False
  if value is None or (kind, key) == ("optimizer", "learning_rate") or not _reads(kind, old, key):
    return True
  before, after = (keywords(factory(kind, name))[key].annotation for name in (old, new))
  with contextlib.suppress(OptionError):
    as_type(value, after, key)
    return kind != "model" or before == after
  return False


def _reads(kind: str, old: str, key: str) -> bool:
  """Return whether factory `old` of section `kind` takes a key; False for an unknown factory."""
  with contextlib.suppress(ValueError):
    return takes(kind, old, key)
  return False


def renamed(config: Config, changes: Any) -> Config:
  """Return a copy of a config with the factories that `changes` names, and with the settings that are valid for them.

  Keys that neither the old nor the new factory takes are kept; a later check rejects them. Raises OptionError for an
  unknown factory.
  """
  out = copy.deepcopy(config)
  for kind in REGISTRIES:
    values = changes.get(kind) if isinstance(changes, Mapping) else None
    values = values if isinstance(values, Mapping | ConfigDict) else {}
    name, old = values.get("name"), config[kind].name
    if isinstance(name, str) and (name != old or is_address(name)):
      entry(kind, name, [_relative(old)] if is_address(old) else [])
      settings = {key: None for key in values if key in config[kind]}  # `values` may unset these
      for key, value in config[kind].items():
        if value is not None and (name == old or _is_valid(kind, old, name, key, value) or not _reads(kind, old, key)):
          settings[key] = value
      out[kind] = with_keys(kind, settings | {"name": name}, base()[kind])
  return out


def _relative(address: str) -> str:
  """Make the file in an import path relative to the working directory, if the file is inside it."""
  file, _, attribute = address.rpartition(":")
  is_below = Path(file).is_relative_to(Path.cwd())
  return f"{Path(file).relative_to(Path.cwd())}:{attribute}" if is_below else address


def default_experiment(**changes: Any) -> Experiment:
  """Return the experiment of `base()` with changes such as workers=4, model={"name": "lenet"}."""
  values = base().to_dict()
  for key, change in changes.items():
    values[key] = values[key] | change if isinstance(values[key], dict) else change
  experiment = Experiment.from_json(values)
  experiment.make_algorithm()
  return experiment


SHOWN = 12  # maximum number of config files that an error lists
PATHS = ("path", "data_dir")  # config keys whose values are paths


def load(file: Path) -> Config:
  """Load a config file, call its `get_config()` and check the result. Raises ValueError if one of these steps fails."""
  if not file.is_file() or file.suffix != ".py":
    raise _no_file(file)
  path = file.resolve()
  try:
    with user_code.importable(f"{path}:"):
      get_config = getattr(user_code.load(path), "get_config", None)
      config = copy.deepcopy(get_config()) if callable(get_config) else None
  except (Exception, SystemExit) as error:  # the user's file may raise anything
    raise ValueError(f"{file}{_cause(path, error)}") from error
  if isinstance(config, FrozenConfigDict):
    config = config.as_configdict()
  if not isinstance(config, ConfigDict):
    advice = "Start from ddl.config.base() and change it."
    raise OptionError(f"get_config in {file}", "a function that returns a ConfigDict", advice=advice)
  try:
    check_keys(with_user_keys(config), with_user_keys(base(), config))
  except ValueError as error:
    raise ValueError(f"{file}: {error}") from error
  return config


def _no_file(file: Path) -> OptionError:
  """Return the error for a path that is not a config file; it suggests similar or known files."""
  what = "does not end in .py" if file.is_file() else "is a folder" if file.is_dir() else "does not exist"
  folder = file if file.is_dir() else file.parent
  siblings = sorted(path for path in folder.glob("*.py") if path.is_file()) if folder.is_dir() else []
  if near := difflib.get_close_matches(f"{file.stem}.py", [path.name for path in siblings], n=1):
    return OptionError("config", "a config file", f"{file}, which {what}", f"Did you mean {folder / near[0]}?")
  known = sorted(Path("configs").glob("*.py")) or siblings
  more = f" and {len(known) - SHOWN} more" if len(known) > SHOWN else ""
  shown = f"Config files: {', '.join(map(str, known[:SHOWN])) or 'none in configs/'}{more}."
  return OptionError("config", "a config file", f"{file}, which {what}", shown)


def _cause(file: Path, error: BaseException) -> str:
  """Describe an error as ", line 3: KeyError: ...", without the dump of the config that ml_collections adds."""
  lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(file)]
  line = error.lineno if isinstance(error, SyntaxError) else lines[-1] if lines else None
  text = error.msg if isinstance(error, SyntaxError) else str(error)
  while error.args and isinstance(error.args[0], Exception):
    error = error.args[0]
  if isinstance(error, KeyError):
    text = str(error.args[0])
  text = re.sub(r' Other fields present: ".*"(?=\n|$)', "", text, flags=re.DOTALL)
  return f"{f', line {line}' if line else ''}: {type(error).__name__}: {text}"


def absolute(config: Config) -> Config:
  """Make the file paths and import paths in a config absolute, in place; return the config."""
  for key, value in config.items():
    if isinstance(value, ConfigDict):
      absolute(value)
    elif key in PATHS and value and isinstance(value, str):
      config[key] = str(files.local(value).absolute())
    elif key in ("name", *REGISTRIES):  # a section, or only its name
      config[key] = _absolute_name(value)
    elif key == "grid":
      config[key] = tuple(map(_absolute_pair, value))
  return config


def _absolute_name(name: Any) -> Any:
  if isinstance(name, tuple | list):
    return type(name)(map(_absolute_name, name))
  return user_code.absolute(name) if is_address(name) else name


def _absolute_pair(pair: Any) -> Any:
  """Make import paths in a (key, values) pair of a grid absolute; return invalid pairs unchanged."""
  of_name = isinstance(pair, tuple) and len(pair) == 2 and str(pair[0]).endswith(".name")
  return (pair[0], _absolute_name(pair[1])) if of_name else pair
