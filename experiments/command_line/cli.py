"""From the words of a command line to the call of a command; what a user did wrong is one line and exit code 2."""

import contextlib
import importlib
import tempfile
from pathlib import Path

from absl import flags, logging

from ddl.runtime import hosts
from experiments.command_line import config_flag, error_messages, resume
from experiments.command_line.config_flag import CommandLine
from experiments.train.exit_codes import exit_code

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
  return exit_code(command, lambda: _run(command, arguments), words=error_messages.plain)


def _run(command: str, arguments: list[str]) -> int:
  if wrong := next((a for a in arguments if any("\ud800" <= c <= "\udfff" for c in a)), ""):
    raise ValueError(f"{wrong!a}; invalid: must be text, without undecodable bytes")
  module = importlib.import_module(f"experiments.commands.{command}")
  if any(a in ("--help", "-h", "-help", "--helpshort") for a in arguments):
    print(_help(command))
    return 0
  try:
    config_args = _flags(command, arguments)
  except flags.UnrecognizedFlagError as error:
    hint = config_flag.as_keys(error.flagname, arguments) if command in WITH_CONFIG else ""
    raise ValueError(hint or error_messages.plain(error)) from error
  except flags.Error as error:
    raise ValueError(error_messages.plain(error)) from error
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


def _flags(command: str, arguments: list[str]) -> list[str]:
  """Sets all flags but those of the config, and returns these. ValueError for what is no flag."""
  config_args, rest = config_flag.split_config_flags(arguments) if command in WITH_CONFIG else ([], arguments)
  left = flags.FLAGS([f"run.py {command}", *rest])[1:]
  if left:
    raise ValueError(f"unknown argument '{left[0]}'; flags begin with --")
  return config_args


def _check_json() -> None:
  """Refuse a file that cannot be written, before anything slow."""
  name = flags.FLAGS["json"].value if "json" in flags.FLAGS else None
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
