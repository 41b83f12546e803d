"""The config of a command line: --config=FILE, with --config.key=value over it as config_flags parses them."""

import ast
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import ml_collections
from absl import flags
from ml_collections import config_flags

from ddl import hosts
from ddl.config import unread_keys
from ddl.config.base import SECTIONS, base, switched
from ddl.config.comparison import in_order
from ddl.config.config_file import absolute, load
from ddl.config.registry import REGISTRIES, Config, unknown_key


class CommandLine(NamedTuple):
  """Name, arguments and config of a command."""

  command: str
  arguments: Sequence[str] = ()
  config: Config = None
  paths: Sequence[str] = ()  # keys of the config that arguments set: "algorithm.name"

  @property
  def words(self) -> tuple[str, ...]:
    """As they are recorded."""
    return "python", "run.py", self.command, *self.arguments


def split_config_flags(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
  """(those of the config as --config=FILE and --config.key=value, the others); one dash and a space for = are absl's.

  Raises:
    ValueError: for --config at the end.
  """
  config_args, rest, left = [], [], iter(arguments)
  for argument in left:
    if not re.match(r"--?config(=|\.|$)", argument):
      rest.append(argument)
    elif argument.lstrip("-") == "config":
      file = next(left, "")
      if not file or file.startswith("-"):
        raise ValueError("--config has no file; write --config=FILE, e.g. --config=configs/digits_compare.py")
      config_args.append(f"--config={file}")
    else:
      config_args.append("--" + argument.lstrip("-"))
  return config_args, rest


def read(command: str, config_args: Sequence[str], stored: Config | None = None) -> tuple[Config, list[str]]:
  """(the stored config or the file's with the flags over it, the keys that these set).

  Raises:
    ValueError: for a missing or broken file, a key that does not exist or is not read, or a value of the wrong type.
  """
  files = [a.partition("=")[2] for a in config_args if a.startswith("--config=")]
  if stored is None and not (files and files[-1]):
    raise ValueError("--config=FILE is missing, e.g. --config=configs/digits_compare.py")
  config = stored or load(Path(files[-1]))
  overrides = [a for a in config_args if a.startswith("--config.")]
  names = {a: found for a in overrides if (found := re.fullmatch(r"--config\.(\w+)\.name=(.+)", a))}
  chosen = {found[1]: found[2] for found in names.values() if found[1] in REGISTRIES}
  before = config
  config, note = switched(before, chosen)
  if note and hosts.processes() == 1:
    print(note, flush=True)
  labels = in_order(config.compare.algorithms).values()
  for override in overrides:
    path, equals, _ = override.removeprefix("--config.").partition("=")
    if not equals:
      raise ValueError(f"{override} has no value; write --config.{path}=VALUE")
    if override.endswith("=None") and _has(before, path) and not _has(config, path):
      continue  # it was a key of the former name
    _check(config, path, chosen)
    unread_keys.check(command, path, labels)
    if override.endswith("=None"):
      _unset(config, path)
  config = _overridden(config, [_pairs(o) for o in overrides if o not in names and not o.endswith("=None")])
  return absolute(config), [o.removeprefix("--config.").partition("=")[0] for o in overrides]


def as_keys(name: str, arguments: Sequence[str]) -> str:
  """How the config sets what a flag that does not exist is named after; "" if it has no such key."""
  config: Any = base()
  places = [[""] * (name not in SECTIONS), REGISTRIES, SECTIONS]  # the first that has it
  found = [[f"{s}.{name}" if s else name for s in each if name in (config[s] if s else config)] for each in places]
  found = next(filter(None, found), []) if name != "name" else []
  words = {key: value for key, _, value in (argument.lstrip("-").partition("=") for argument in arguments)}
  keys = " or ".join(f"--config.{key}={words.get(name) or 'VALUE'}" for key in found)
  return f"there is no flag --{name}, but a key of the config: {keys}" if found else ""


def _has(config: Config, path: str) -> bool:
  section, _, key = path.rpartition(".")
  return key in (config.get(section, {}) if section else config)


def _pairs(override: str) -> str:
  """A grid that is given as {key: values} as the pairs that a tuple's parser reads."""
  path, _, value = override.partition("=")
  if path != "--config.compare.grid":
    return override
  try:
    found = ast.literal_eval(value)
  except (ValueError, SyntaxError) as error:
    example = "\"{'workers': (1, 2, 4)}\""
    raise ValueError(f"{override}; invalid: must map keys to values, such as {path}={example}") from error
  return f"{path}={tuple(found.items())}" if isinstance(found, dict) else override


def _unset(config: Config, path: str) -> None:
  """Config.path = None, whatever its type: config_flags would read None as a value of that type."""
  *sections, key = path.split(".")
  defaults: Any = base()
  for section in sections:
    config, defaults = config[section], defaults[section]
  if defaults.get(key) is not None:
    raise ValueError(f"config.{path} has no default of a factory to fall back to: give it a value, not None")
  with config.ignore_type():
    config[key] = None


def _overridden(config: Config, overrides: list[str]) -> Config:
  """Lets config_flags parse the values by the types of the keys."""
  words = ["run.py", *dict.fromkeys(overrides)]  # a tuple that is given twice would be the two together
  values = flags.FlagValues()
  try:
    holder = config_flags.DEFINE_config_dict("config", config, flag_values=values, sys_argv=words)
    values(words)
  except (flags.Error, TypeError, KeyError, AttributeError) as error:
    raise ValueError(str(error)) from error
  return holder.value


def _check(config: Any, path: str, chosen: Mapping[str, str]) -> None:
  """chosen: section -> the name that a flag gives it."""
  node: Any = config
  for i, key in enumerate(path.split(".")):
    if not isinstance(node, ml_collections.ConfigDict) or key not in node:
      where = ".".join(["config", *path.split(".")[:i]])
      section = where.removeprefix("config.")
      keys = node if isinstance(node, ml_collections.ConfigDict) else {}
      raise ValueError(unknown_key(key, where, section, keys, chosen.get(section)))
    node = node[key]
  if isinstance(node, ml_collections.ConfigDict) and path in SECTIONS:
    raise ValueError(f"config.{path} is a section; set its keys, such as --config.{path}.{next(iter(node))}=VALUE")
