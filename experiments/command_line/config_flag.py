"""Parse --config=FILE and its overrides --config.key=value; ml_collections' config_flags converts their values."""

import ast
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from absl import flags
from ml_collections import ConfigDict, config_flags

from ddl import hosts
from ddl.config import unread_keys
from ddl.config.base import SECTIONS, absolute, base, load, switched
from ddl.config.catalog import REGISTRIES, TYPES, Config, unknown_key
from ddl.config.comparison import GRID, in_order
from ddl.errors import OptionError

FILE = "set by --config=FILE, such as --config=configs/digits_compare.py"


class CommandLine(NamedTuple):
  """The name, arguments and config of a command."""

  command: str
  arguments: Sequence[str] = ()
  config: Config = None
  paths: Sequence[str] = ()  # config keys that the arguments set, such as "algorithm.name"

  @property
  def words(self) -> tuple[str, ...]:
    """The full command line, as recorded in the run's folder."""
    return "python", "run.py", self.command, *self.arguments


def split_config_flags(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
  """Split arguments into the flags --config=FILE and --config.KEY=VALUE, and the rest.

  As in absl, a single dash is enough, and `--config FILE` means --config=FILE.

  Raises:
    OptionError: for --config without a value.
  """
  config_args, rest, words = [], [], iter(arguments)
  for argument in words:
    if not re.match(r"--?config(=|\.|$)", argument):
      rest.append(argument)
    elif argument.lstrip("-") == "config":
      file = next(words, "")
      if not file or file.startswith("-"):
        raise OptionError("config", FILE)
      config_args.append(f"--config={file}")
    else:
      config_args.append("--" + argument.lstrip("-"))
  return config_args, rest


def read(command: str, config_args: Sequence[str], stored: Config | None = None) -> tuple[Config, list[str]]:
  """Apply the overrides to `stored`, or else to the config of the file; return the config and the overridden keys.

  Raises:
    ValueError: for a missing or invalid file, a key that is unknown or that the command does not use, or a value of the
      wrong type.
  """
  files = [a.partition("=")[2] for a in config_args if a.startswith("--config=")]
  if stored is None and not (files and files[-1]):
    raise OptionError("config", FILE)
  before = stored or load(Path(files[-1]))
  overrides = [a.removeprefix("--config.").partition("=") for a in config_args if a.startswith("--config.")]
  sections = {path.removesuffix(".name"): text for path, _, text in overrides if path.endswith(".name") and text}
  names = {section: name for section, name in sections.items() if section in REGISTRIES}
  config, note = switched(before, names)
  if note and hosts.processes() == 1:
    print(note, flush=True)
  labels = in_order(config.compare.algorithms).values()
  for path, equals, text in overrides:
    if not equals:
      raise OptionError(f"config.{path}", f"set by --config.{path}=VALUE")
    if text == "None" and _has(before, path) and not _has(config, path):
      continue  # a key of the section's previous entry that the new entry does not have
    _check(config, path, names)
    unread_keys.check(command, path, labels)
    if text == "None":
      _unset(config, path)
    elif path.removesuffix(".name") not in names or path in names:
      config = _set(config, path, text)
  return absolute(config), [path for path, _, _ in overrides]


def as_keys(name: str, arguments: Sequence[str]) -> str:
  """Return a hint that names the config keys with the same name as an unknown flag, or "" if there are none."""
  config: Any = base()
  places = [[""] * (name not in SECTIONS), REGISTRIES, SECTIONS]  # by priority: the first group with a match counts
  known = [[f"{s}.{name}" if s else name for s in group if name in (config[s] if s else config)] for group in places]
  paths = next(filter(None, known), []) if name != "name" else []
  values = {key: value for key, _, value in (argument.lstrip("-").partition("=") for argument in arguments)}
  keys = " or ".join(f"--config.{path}={values.get(name) or 'VALUE'}" for path in paths)
  return f"unknown flag --{name}; did you mean the config key {keys}?" if paths else ""


def _has(config: Config, path: str) -> bool:
  section, _, key = path.rpartition(".")
  return key in (config.get(section, {}) if section else config)


def _unset(config: Config, path: str) -> None:
  """Set a key to None, whatever its type; config_flags would parse the text None as that type.

  Raises OptionError if the key has a default other than None.
  """
  section, _, key = path.rpartition(".")
  config, defaults = (config[section], base()[section]) if section else (config, base())
  if defaults.get(key) is not None:
    raise OptionError(f"config.{path}", "a value other than None")
  with config.ignore_type():
    config[key] = None


def _set(config: Config, path: str, text: str) -> Config:
  """Set a key to a flag's text, parsed by config_flags; return the config."""
  section, _, key = path.rpartition(".")
  kind = (config[section] if section else config).get_type(key)
  try:
    if path == GRID.removeprefix("config."):  # {key: values} as pairs, because config_flags parses tuples, not dicts
      value = ast.literal_eval(text)
      text = str(tuple(value.items())) if isinstance(value, dict) else text
    words, values = ["run.py", f"--config.{path}={text}"], flags.FlagValues()
    holder = config_flags.DEFINE_config_dict("config", config, flag_values=values, sys_argv=words)
    values(words)
  except (flags.Error, ValueError, SyntaxError, TypeError, KeyError, AttributeError) as error:
    dictionary = "a dictionary (for example {'workers': (1, 2, 4)})" if path == "compare.grid" else "a dictionary"
    expected = TYPES.get(kind, dictionary if kind is not tuple or path == "compare.grid" else "a tuple")
    raise OptionError(f"config.{path}", expected, text) from error
  return holder.value


def _check(config: Any, path: str, names: Mapping[str, str]) -> None:
  """Raise OptionError for an unknown config key or a whole section.

  names: entries that flags select, such as {"algorithm": "easgd"}.
  """
  node: Any = config
  for i, key in enumerate(path.split(".")):
    if not isinstance(node, ConfigDict) or key not in node:
      where = ".".join(["config", *path.split(".")[:i]])
      section = where.removeprefix("config.")
      raise unknown_key(key, where, section, node if isinstance(node, ConfigDict) else {}, names.get(section))
    node = node[key]
  if isinstance(node, ConfigDict) and path in SECTIONS:
    raise OptionError(f"config.{path}", f"set key by key, such as --config.{path}.{next(iter(node))}=VALUE")
