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
from experiments import config as configs
from experiments.parts import Config

WITH_CONFIG = ("train", "compare", "sweep", "plan")
OPTIONAL_CONFIG = ("plan",)  # a layer table can take its place
UNREAD = {  # command: what it does not read of the config, and why
  "train": {"compare": "it makes one run", "sweep": "it tunes nothing"},
  "compare": {"sweep": "it tunes nothing", "seed": "its seeds are config.compare.seeds, e.g. =0,1,2"},
  "plan": {"compare": "it makes no runs", "sweep": "it tunes nothing"},
  "sweep": {f"compare.{key}": "it compares nothing" for key in ("title", "seeds", "target", "expected")},
}
EXHAUSTED = "RESOURCE_EXHAUSTED"  # XLA's word for no memory left on a device


class _Terminated(BaseException):
  """SIGTERM where no run is at its steps, which would save itself."""


def _terminate(_number: int, _frame: Any) -> None:
  raise _Terminated


def run(command: str, arguments: list[str]) -> int:
  """Runs a command; returns the exit code."""
  logging.set_verbosity(logging.ERROR)
  form = warnings.formatwarning
  warnings.formatwarning = lambda message, *_, **__: f"{command}: warning: {' '.join(str(message).split())}\n"
  before = signal.signal(signal.SIGTERM, _terminate)
  try:
    return _run(command, arguments)
  except _Terminated:
    print(
      f"{command}: stopped by SIGTERM; what was saved is kept; the same command goes on with --resume --workdir=...",
      file=sys.stderr,
    )
    hosts.leave(143)
    return 143
  finally:
    signal.signal(signal.SIGTERM, before)
    warnings.formatwarning = form


def _run(command: str, arguments: list[str]) -> int:
  try:
    module = importlib.import_module({"list": "experiments.listing"}.get(command, f"experiments.{command}"))
    if any(a in ("--help", "-h", "-help", "--helpshort") for a in arguments):
      print(_help(command))
      return 0
    ours, rest = _parted(arguments) if command in WITH_CONFIG else ([], arguments)
    needed = command in WITH_CONFIG and (ours or command not in OPTIONAL_CONFIG)
    config = _config(command, ours) if needed else None
    left = flags.FLAGS([f"run.py {command}", *rest])[1:]
    if left:
      raise ValueError(f"unknown argument '{left[0]}'; flags begin with --")
    return module.main(config) if command in WITH_CONFIG else module.main()
  except (ValueError, OSError, flags.Error) as error:
    print(f"{command}: {' '.join(str(error).split())}", file=sys.stderr)
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


def _config(command: str, arguments: list[str]) -> Config:
  """The config file's, with the --config.key=value flags over it.

  Raises:
    ValueError: for a missing or broken file, a key that does not exist or is not read, or a value of the wrong type.
  """
  files = [a.partition("=")[2] for a in arguments if a.startswith("--config=")]
  if not files or not files[-1]:
    raise ValueError("--config=FILE is missing, e.g. --config=configs/digits_compare.py")
  config = _load(Path(files[-1]))
  overrides = [a for a in arguments if a.startswith("--config.")]
  for override in overrides:
    path, equals, _ = override.removeprefix("--config.").partition("=")
    if not equals:
      raise ValueError(f"{override} has no value; write --config.{path}=VALUE")
    _check(config, path)
    _check_read(command, config, path)
    if override.endswith("=None"):
      _unset(config, path)
  return _overridden(config, [o for o in overrides if not o.endswith("=None")])


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
  sys.argv = ["run.py", *overrides]
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
  except Exception as error:  # the file is the user's, and so is what goes wrong in it
    raise ValueError(f"{file}{_where(file, error)}") from error
  if not isinstance(config, ml_collections.ConfigDict):
    raise ValueError(f"{file}: get_config() has to return the ConfigDict of experiments.config.base()")
  return config


def _where(file: Path, error: Exception) -> str:
  """ ", line 3: KeyError: ...", without the whole config that ml_collections adds."""
  lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(file)]
  line = error.lineno if isinstance(error, SyntaxError) else lines[-1] if lines else None
  text = error.msg if isinstance(error, SyntaxError) else str(error)
  while error.args and isinstance(error.args[0], Exception):
    error = error.args[0]
  if isinstance(error, KeyError):
    text = str(error.args[0])
  text = re.sub(r' Other fields present: ".*"(?=\n|$)', "", text, flags=re.DOTALL)
  return f"{f', line {line}' if line else ''}: {type(error).__name__}: {text}"


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


def _check_read(command: str, config: Config, path: str) -> None:
  """A flag that the command would not read is a mistake. A file may set more, as several commands share it."""
  for key, why in UNREAD.get(command, {}).items():
    if path == key or path.startswith(f"{key}."):
      raise ValueError(f"{command} does not read config.{path}: {why}")
  names = [changes.get("algorithm", {}).get("name") for changes in config.compare.algorithms.values()]
  if command not in ("train", "plan") and path == "algorithm.name" and names and all(names):
    raise ValueError("every label of config.compare.algorithms names its own algorithm; --only=LABELS picks some")


def _help(command: str) -> str:
  lines = [f"python run.py {command}" + (" --config=FILE [--config.key=value ...]" if command in WITH_CONFIG else "")]
  ours = [f for name, fs in flags.FLAGS.flags_by_module_dict().items() if name.startswith("experiments") for f in fs]
  for flag in sorted({f.name: f for f in ours}.values(), key=lambda f: f.name):
    lines.append(f"  --{flag.name}={flag.default}\n      {flag.help}")
  return "\n".join(lines)
