"""The file of a config: what its `get_config()` returns, checked and complete."""

import difflib
import re
import traceback
from pathlib import Path
from typing import Any

import ml_collections

from ddl import files
from ddl.config import registry, user_code
from ddl.config.base import base, with_own
from ddl.config.registry import Config, check_keys

NEEDED = "a config file defines it, and it returns what ddl.config.base() gives, with its changes"
NAMED = 12  # config files that a message names
PATHS = ("path", "data_dir")  # keys of a config that name files


def load(file: Path) -> Config:
  """The config that `get_config()` of a file returns. ValueError: one line, for a file that is missing or fails."""
  if not file.is_file() or file.suffix != ".py":
    raise ValueError(_no_file(file))
  there = file.resolve()
  user_code.begin()
  try:
    with user_code.importable_files(there):
      module = user_code.run(there)
      config = module.get_config() if (found := callable(getattr(module, "get_config", None))) else None
  except (Exception, SystemExit) as error:  # the file is the user's, and so are its errors
    raise ValueError(f"{file}{_where(there, error)}") from error
  if not found:
    raise ValueError(f"{file} has no get_config(): {NEEDED}")
  if isinstance(config, ml_collections.FrozenConfigDict):
    config = config.as_configdict()
  if not isinstance(config, ml_collections.ConfigDict):
    raise ValueError(f"{file}: get_config() must return the ConfigDict of ddl.config.base()")
  try:
    check_keys(with_own(config), with_own(base(), config))
  except ValueError as error:
    raise ValueError(f"{file}: {error}") from error
  return config


def _no_file(file: Path) -> str:
  """What is wrong with a path that is no config file, and what is there: the file of the nearest name, or several."""
  what = "is not a config file (.py)" if file.is_file() else "is a folder" if file.is_dir() else "does not exist"
  folder = file if file.is_dir() else file.parent
  beside = sorted(each for each in folder.glob("*.py") if each.is_file()) if folder.is_dir() else []
  if near := difflib.get_close_matches(f"{file.stem}.py", [each.name for each in beside], n=1):
    return f"{file} {what}; did you mean {folder / near[0]}?"
  here = sorted(Path("configs").glob("*.py")) or beside
  more = f" and {len(here) - NAMED} more" if len(here) > NAMED else ""
  return f"{file} {what}; there are {', '.join(map(str, here[:NAMED])) or 'none in configs/'}{more}"


def absolute(config: Config) -> Config:
  """The config with paths, and addresses of objects of one's own, that hold in any working directory."""
  for key, value in config.items():
    if isinstance(value, ml_collections.ConfigDict):
      absolute(value)
    elif key in PATHS and value and isinstance(value, str):
      config[key] = str(files.local(value).absolute())
    elif key in ("name", *registry.REGISTRIES):  # of a section, or in its place
      config[key] = _held(value)
    elif key == "grid":
      config[key] = tuple(map(_held_pair, value))
  return config


def _held(name: Any) -> Any:
  if isinstance(name, tuple | list):
    return type(name)(map(_held, name))
  return user_code.absolute(name) if user_code.is_address(name) else name


def _held_pair(pair: Any) -> Any:
  """A key of a grid and its values; what is no such pair is refused where the grid is read."""
  named = isinstance(pair, tuple) and len(pair) == 2 and str(pair[0]).endswith(".name")
  return (pair[0], _held(pair[1])) if named else pair


def _where(file: Path, error: BaseException) -> str:
  """ ", line 3: KeyError: ...", without the whole config that ml_collections adds."""
  lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(file)]
  line = error.lineno if isinstance(error, SyntaxError) else lines[-1] if lines else None
  text = error.msg if isinstance(error, SyntaxError) else str(error)
  while error.args and isinstance(error.args[0], Exception):
    error = error.args[0]
  if isinstance(error, KeyError):
    text = str(error.args[0])
  text = re.sub(r' Other fields present: ".*"(?=\n|$)', "", text, flags=re.DOTALL)
  if found := re.search(r"does not accept dots in field names .*, but the key (.*) contains one", text):
    return f"{f', line {line}' if line else ''}: the label {found[1]!r} has a dot; invalid: must be without"
  return f"{f', line {line}' if line else ''}: {type(error).__name__}: {text}"
