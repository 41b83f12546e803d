"""From the words of a command line to the call of a command; a user's mistake is one line and exit code 2."""

import contextlib
import importlib
import itertools
import re
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from absl import flags, logging

from ddl import files, hosts
from ddl.ranges import Range, check
from ddl.run.exit_codes import exit_code
from experiments.command_line import config_flag, resume
from experiments.command_line.config_flag import CommandLine

PLAIN = {  # what absl and ml_collections say of a flag's value: ours
  r"invalid literal for int\(\).*": "is not an integer, such as 2",
  r"could not convert string to float.*": "is not a number, such as 0.5",
  r"\('Non-boolean argument to boolean flag.*": "is neither True nor False",
  r"Failed to parse .* as a ConfigDict.*": "is no dictionary, such as {'label': {'key': value}}",
}


def plain(error: Exception) -> str:
  """The error with the flag or the file that is at fault."""
  if isinstance(error, OSError) and error.filename and error.strerror:
    return f"{error.filename}: {error.strerror.lower()}; give another path"
  for theirs, ours in PLAIN.items():
    if found := re.fullmatch(f"flag (.*?): {theirs}", str(error), re.DOTALL):
      return f"{found[1]} {ours}"
  return str(error)


WITH_CONFIG = ("train", "compare", "sweep", "plan", "dryrun", "chaos", "list")
OPTIONAL_CONFIG = (
  "plan",
  "chaos",
  "list",
)  # a layer table can take its place; a job of its own; all there is is listed
RESUMABLE = ("train", "compare", "sweep")


def run(command: str, arguments: list[str]) -> int:
  """Runs a command; returns the exit code."""
  hosts.follow_launcher()
  logging.set_verbosity(logging.FATAL)  # what libraries log as errors comes as exceptions too
  return exit_code(command, lambda: _run(command, arguments), words=plain)


def _run(command: str, arguments: list[str]) -> int:
  if wrong := next((a for a in arguments if any("\ud800" <= c <= "\udfff" for c in a)), ""):
    raise ValueError(f"{wrong!a}; invalid: must be text, without undecodable bytes")
  module = importlib.import_module(f"experiments.commands.{command}")
  if any(a in ("--help", "-h", "-help", "--helpshort") for a in arguments):
    print(_help(command))
    return 0
  _check_repeated(arguments)
  try:
    config_args = _flags(command, arguments, getattr(module, "UNREAD", {}))
  except flags.UnrecognizedFlagError as error:
    hint = config_flag.as_keys(error.flagname, arguments) if command in WITH_CONFIG else ""
    raise ValueError(hint or plain(error)) from error
  except flags.Error as error:
    raise ValueError(plain(error)) from error
  if command in RESUMABLE:
    importlib.import_module("experiments.command_line.flags").declare_process()  # here: not all commands have its flags
  config, paths, stored = None, [], None
  from_folder = command in RESUMABLE and flags.FLAGS.resume and not any(a.startswith("--config=") for a in config_args)
  with resume.checked_code() if from_folder else contextlib.nullcontext():
    if from_folder:
      stored, arguments = resume.restore(command, arguments)
    if command in WITH_CONFIG and (config_args or stored or command not in OPTIONAL_CONFIG):
      config, paths = config_flag.read(command, config_args, stored)
    _check_json()
    return module.main(CommandLine(command, arguments, config, paths))


def _flags(command: str, arguments: list[str], unread: Mapping[str, str]) -> list[str]:
  """Set all flags but those of the config, and return these.

  Args:
    unread: flags that the command's modules define but the command does not read -> why.

  Raises:
    ValueError: for an argument that is no flag, a number that is not finite, or a flag that the command does not read.
  """
  config_args, rest = config_flag.split_config_flags(arguments) if command in WITH_CONFIG else ([], arguments)
  left = flags.FLAGS([f"run.py {command}", *rest])[1:]
  if left:
    raise ValueError(f"unknown argument '{left[0]}'; flags begin with --")
  for name in flags.FLAGS:
    if isinstance(value := flags.FLAGS[name].value, float):
      check(f"--{name}", value, Range())
    if name in unread and flags.FLAGS[name].present:
      raise ValueError(f"{command} does not read --{name}: {unread[name]}")
  return config_args


def _check_repeated(arguments: Sequence[str]) -> None:
  """Refuse a flag with two values: nobody knows which one was meant."""
  values: dict[str, str] = {}
  left = iter(arguments)
  for argument in itertools.takewhile(lambda word: word != "--", left):
    name, equals, value = argument.lstrip("-").partition("=")
    if not argument.startswith("-") or not name:
      continue
    known: Any = flags.FLAGS[name] if name in flags.FLAGS else None  # noqa: SIM401 (its get gives the value)
    if known is None and name.startswith("no") and name[2:] in flags.FLAGS and flags.FLAGS[name[2:]].boolean:
      name, value = name[2:], "False"
    elif known is not None and known.boolean:
      value = str(not equals or value.lower() in ("true", "t", "1"))
    elif not equals:
      value = next(left, "")
    if values.setdefault(name, value) != value:
      raise ValueError(f"--{name} must be given once, got {values[name]} and {value}.")


def _check_json() -> None:
  """Refuse a file that cannot be written, before anything slow."""
  name = flags.FLAGS["json"].value if "json" in flags.FLAGS else None
  if name and files.local(name).is_fifo():
    raise ValueError(f"--json={name}: it is a pipe; give another file")
  if name and (Path(name).is_dir() or not Path(name).absolute().parent.is_dir()):
    wrong = "is a folder" if Path(name).is_dir() else f"there is no folder {Path(name).absolute().parent}"
    raise ValueError(f"--json={name}: {wrong}; give a file in a folder that exists")
  if name:
    try:
      with tempfile.TemporaryDirectory(dir=Path(name).absolute().parent):
        pass
      if Path(name).exists():
        Path(name).open("a").close()
    except OSError as error:
      raise ValueError(f"--json={name}: it can't be written ({error.strerror or error}); give another file") from error


def _help(command: str) -> str:
  lines = [f"python run.py {command}" + (" --config=FILE [--config.key=value ...]" if command in WITH_CONFIG else "")]
  ours = [f for name, fs in flags.FLAGS.flags_by_module_dict().items() if name.startswith("experiments") for f in fs]
  for flag in sorted({f.name: f for f in ours}.values(), key=lambda f: f.name):
    lines.append(f"  --{flag.name}={flag.default}\n      {flag.help}")
  return "\n".join(lines)
