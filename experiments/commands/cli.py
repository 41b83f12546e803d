"""Flags, config file and errors of every command: what a user did wrong comes out as one line and exit code 2."""

import difflib
import importlib
import importlib.util
import re
import signal
import sys
import traceback
import warnings
from pathlib import Path
from typing import Any

import jax
import ml_collections
from absl import flags, logging
from ml_collections import config_flags

from ddl.runtime import hosts
from experiments.commands import error_messages
from experiments.config import experiment as configs
from experiments.config import unread_keys
from experiments.config.factories import Config, check_keys
from experiments.train import resume

WITH_CONFIG = ("train", "compare", "sweep", "plan")
OPTIONAL_CONFIG = ("plan",)  # a layer table can take its place
RESUMABLE = ("train", "compare", "sweep")
EXHAUSTED = "RESOURCE_EXHAUSTED"  # XLA's word for no memory left on a device


class _Terminated(BaseException):
  """SIGTERM where no run is at its steps, which would save itself."""


def _terminate(_number: int, _frame: Any) -> None:
  raise _Terminated


def run(command: str, arguments: list[str]) -> int:
  """Runs a command; returns the exit code."""
  logging.set_verbosity(logging.FATAL)  # what libraries log as errors comes as exceptions too
  form = warnings.formatwarning
  warnings.formatwarning = lambda message, *_, **__: f"{command}: warning: {' '.join(str(message).split())}\n"
  before = signal.signal(signal.SIGTERM, _terminate)
  try:
    return _run(command, arguments)
  except _Terminated:
    again = f"; {resume.short(command, '...')} goes on" if command in RESUMABLE else ""
    print(f"{command}: stopped by SIGTERM; what was saved is kept{again}", file=sys.stderr)
    hosts.leave(143)
    return 143
  finally:
    signal.signal(signal.SIGTERM, before)
    warnings.formatwarning = form


def _run(command: str, arguments: list[str]) -> int:
  try:
    if wrong := next((a for a in arguments if any("\ud800" <= c <= "\udfff" for c in a)), ""):
      raise ValueError(f"{wrong!a}: invalid: must be text, without undecodable bytes")
    module = importlib.import_module(f"experiments.commands.{command}")
    if any(a in ("--help", "-h", "-help", "--helpshort") for a in arguments):
      print(_help(command))
      return 0
    ours, stored = _flags(command, arguments), None
    if command in RESUMABLE and flags.FLAGS.resume and not any(a.startswith("--config=") for a in ours):
      stored = resume.restore(command, arguments)
    needed = command in WITH_CONFIG and (ours or command not in OPTIONAL_CONFIG)
    config = _config(command, ours, stored) if needed else None
    _check_json()
    return module.main(config) if command in WITH_CONFIG else module.main()
  except (ValueError, OSError, flags.Error) as error:
    print(f"{command}: {' '.join(error_messages.plain(error).split())}", file=sys.stderr)
    hosts.leave(2)
    return 2
  except KeyboardInterrupt:
    print(f"{command}: interrupted", file=sys.stderr)
    hosts.leave(130)
    return 130
  except Exception as error:
    if isinstance(error, MemoryError) or (isinstance(error, jax.errors.JaxRuntimeError) and EXHAUSTED in str(error)):
      told = str(error).strip().partition("\n")[0] or "out of memory"
      print(f"{command}: too large for this machine: {told}", file=sys.stderr)
      hosts.leave(2)
      return 2
    if hosts.processes() == 1:
      raise
    traceback.print_exc()
    hosts.leave(1)
    raise


def _flags(command: str, arguments: list[str]) -> list[str]:
  """Sets all flags but those of the config, and returns these. ValueError for what is no flag."""
  ours, rest = _parted(arguments) if command in WITH_CONFIG else ([], arguments)
  left = flags.FLAGS([f"run.py {command}", *rest])[1:]
  if left:
    raise ValueError(f"unknown argument '{left[0]}'; flags begin with --")
  return ours


def _check_json() -> None:
  """A file that cannot be written is found before what takes minutes."""
  name = flags.FLAGS["json"].value if "json" in flags.FLAGS else None
  if name and (Path(name).is_dir() or not Path(name).absolute().parent.is_dir()):
    wrong = "is a folder" if Path(name).is_dir() else f"there is no folder {Path(name).absolute().parent}"
    raise ValueError(f"--json={name}: {wrong}; give a file in a folder that exists")


def _parted(arguments: list[str]) -> tuple[list[str], list[str]]:
  """(those of the config as --config=FILE and --config.key=value, the others); one dash and a space for = are absl's.

  Raises:
    ValueError: for --config at the end.
  """
  ours, rest, left = [], [], iter(arguments)
  for argument in left:
    if not re.match(r"--?config(=|\.|$)", argument):
      rest.append(argument)
    elif argument.lstrip("-") == "config":
      file = next(left, "")
      if not file or file.startswith("-"):
        raise ValueError("--config has no file; write --config=FILE, e.g. --config=configs/digits_compare.py")
      ours.append(f"--config={file}")
    else:
      ours.append("--" + argument.lstrip("-"))
  return ours, rest


def _config(command: str, arguments: list[str], stored: Config | None) -> Config:
  """The stored one or the config file's, with the --config.key=value flags over it.

  Raises:
    ValueError: for a missing or broken file, a key that does not exist or is not read, or a value of the wrong type.
  """
  files = [a.partition("=")[2] for a in arguments if a.startswith("--config=")]
  if stored is None and not (files and files[-1]):
    raise ValueError("--config=FILE is missing, e.g. --config=configs/digits_compare.py")
  config = stored or _load(Path(files[-1]))
  overrides = [a for a in arguments if a.startswith("--config.")]
  for override in overrides:
    path, equals, _ = override.removeprefix("--config.").partition("=")
    if not equals:
      raise ValueError(f"{override} has no value; write --config.{path}=VALUE")
    _check(config, path)
    unread_keys.check(command, config, path)
    if override.endswith("=None"):
      _unset(config, path)
  config = _overridden(config, [o for o in overrides if not o.endswith("=None")])
  unread_keys.check_algorithms(command, config, [o.removeprefix("--config.").partition("=")[0] for o in overrides])
  return resume.absolute(config)


def _unset(config: Config, path: str) -> None:
  """Config.path = None, whatever its type: config_flags would read None as a value of that type."""
  *sections, key = path.split(".")
  base: Any = configs.base()
  for section in sections:
    config, base = config[section], base[section]
  if base.get(key) is not None:
    raise ValueError(f"config.{path} has no default of a factory to fall back to: give it a value, not None")
  with config.ignore_type():
    config[key] = None


def _overridden(config: Config, overrides: list[str]) -> Config:
  """Lets config_flags parse the values by the types of the keys; it reads them from sys.argv."""
  values, before = flags.FlagValues(), sys.argv
  # A tuple that is given twice would be the two together; with a key's last value alone, flags replace each other.
  last = {override.partition("=")[0]: override for override in overrides}
  sys.argv = ["run.py", *last.values()]
  try:
    holder = config_flags.DEFINE_config_dict("config", config, flag_values=values)
    values(sys.argv)
  except (flags.Error, TypeError, KeyError, AttributeError) as error:
    raise ValueError(str(error)) from error
  finally:
    sys.argv = before
  return holder.value


def _load(file: Path) -> Config:
  if not file.is_file() or file.suffix != ".py":
    here = sorted(str(p) for p in Path("configs").glob("*.py"))
    raise ValueError(f"{file} is not a config file (.py); there are {', '.join(here) or 'none in configs/'}")
  spec = importlib.util.spec_from_file_location(file.stem, file)
  assert spec and spec.loader
  module = importlib.util.module_from_spec(spec)
  try:
    spec.loader.exec_module(module)
    config = module.get_config()
  except (Exception, SystemExit) as error:  # the file is the user's, and so is what goes wrong in it
    raise ValueError(f"{file}{error_messages.where(file, error)}") from error
  if isinstance(config, ml_collections.FrozenConfigDict):
    config = config.as_configdict()
  if not isinstance(config, ml_collections.ConfigDict):
    raise ValueError(f"{file}: get_config() has to return the ConfigDict of experiments.config.experiment.base()")
  try:
    check_keys(config, configs.base())
  except ValueError as error:
    raise ValueError(f"{file}: {error}") from error
  return config


def _check(config: Any, path: str) -> None:
  node = config
  for i, key in enumerate(path.split(".")):
    if not isinstance(node, ml_collections.ConfigDict) or key not in node:
      where = ".".join(["config", *path.split(".")[:i]])
      known = list(node) if isinstance(node, ml_collections.ConfigDict) else []
      near = difflib.get_close_matches(key, known, n=1)
      hint = f"did you mean '{near[0]}'? " if near else ""
      raise ValueError(f"no key '{key}' in {where}: {hint}known are {', '.join(known) or 'none'}")
    node = node[key]
  if isinstance(node, ml_collections.ConfigDict) and path in configs.SECTIONS:
    raise ValueError(f"config.{path} is a section; set its keys, such as --config.{path}.{next(iter(node))}=VALUE")


def _help(command: str) -> str:
  lines = [f"python run.py {command}" + (" --config=FILE [--config.key=value ...]" if command in WITH_CONFIG else "")]
  ours = [f for name, fs in flags.FLAGS.flags_by_module_dict().items() if name.startswith("experiments") for f in fs]
  for flag in sorted({f.name: f for f in ours}.values(), key=lambda f: f.name):
    lines.append(f"  --{flag.name}={flag.default}\n      {flag.help}")
  return "\n".join(lines)
