"""Parse a command line and run its command; user errors print one line and exit with code 2."""

import contextlib
import importlib
import itertools
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from absl import flags, logging

from ddl import files, hosts
from ddl.config.options import FLAGS
from ddl.errors import OptionError
from ddl.library import resume
from ddl.ranges import Range, check
from ddl.run.exit_codes import exit_code
from ddl.run.folder import EXPERIMENT
from experiments.command_line import config_flag, help, shared_flags
from experiments.command_line.config_flag import CommandLine

WITH_CONFIG = ("train", "compare", "sweep", "plan", "dryrun", "list")
OPTIONAL_CONFIG = ("plan", "list")  # without one, plan reads a layer table and list prints all names
RESUMABLE = ("train", "compare", "sweep")


def run(command: str, arguments: list[str]) -> int:
  """Run a command and return the exit code."""
  hosts.follow_launcher()
  logging.set_verbosity(logging.FATAL)  # the errors that libraries log are also raised
  return exit_code(command, lambda: _run(command, arguments))


def _run(command: str, arguments: list[str]) -> int:
  if undecodable := next((a for a in arguments if any("\ud800" <= c <= "\udfff" for c in a)), ""):
    raise OptionError("each command-line argument", "valid UTF-8", ascii(undecodable))
  module = importlib.import_module(f"experiments.commands.{command}")
  if any(a in ("--help", "-h", "-help", "--helpshort") for a in arguments):
    print(help.text(command, key_flags(command), command in WITH_CONFIG))
    return 0
  config_args = parse(command, arguments)
  if command in RESUMABLE:
    shared_flags.declare_process()
  config, paths, recorded = None, [], None
  if command in RESUMABLE and flags.FLAGS.resume and not any(a.startswith("--config=") for a in config_args):
    recorded = resume.read(command, shared_flags.run_options())
    shared_flags.restore(recorded.options)
    arguments = [*recorded.arguments, *arguments]
    if hosts.processes() == 1:
      print(f"{recorded.folder}: resuming with the config and options recorded in its {EXPERIMENT}", flush=True)
  with resume.allowed_code(recorded, shared_flags.run_options()) if recorded else contextlib.nullcontext():
    if command in WITH_CONFIG and (config_args or recorded or command not in OPTIONAL_CONFIG):
      config, paths = config_flag.read(command, config_args, resume.config_of(recorded) if recorded else None)
    _check_json()
    return module.main(CommandLine(command, arguments, config, paths))


def key_flags(command: str) -> list[flags.Flag[Any]]:
  """Return the flags that a command accepts, sorted by name."""
  return sorted(flags.FLAGS.get_key_flags_for_module(f"experiments.commands.{command}"), key=lambda flag: flag.name)


def parse(command: str, arguments: Sequence[str]) -> list[str]:
  """Parse and set all flags; return the arguments of --config and its overrides, which are not parsed.

  Raises:
    ValueError: for an argument that is not a flag, a flag that the command does not accept, a value of the wrong type,
      or a flag with two values.
  """
  _check(command, arguments)
  config_args, rest = config_flag.split_config_flags(arguments) if command in WITH_CONFIG else ([], arguments)
  try:
    positional = flags.FLAGS([f"run.py {command}", *rest])[1:]
  except flags.UnrecognizedFlagError as error:
    hint = config_flag.as_keys(error.flagname, arguments) if command in WITH_CONFIG else ""
    raise ValueError(hint or str(error)) from error
  except flags.Error as error:
    raise ValueError(str(error)) from error
  if positional:
    raise ValueError(f"unknown argument '{positional[0]}'; flags begin with --")
  return config_args


def _check(command: str, arguments: Sequence[str]) -> None:
  """Raise OptionError for a flag that the command does not accept, an invalid value, or a flag with two values."""
  readable = {flag.name for flag in key_flags(command)}
  modules = flags.FLAGS.flags_by_module_dict()  # includes libraries
  of_commands = {flag.name for name in modules if name.startswith("experiments") for flag in modules[name]} | {*FLAGS}
  values: dict[str, Any] = {}
  words = iter(arguments)
  for argument in itertools.takewhile(lambda word: word != "--", words):
    name, equals, value = argument.lstrip("-").partition("=")
    if not argument.startswith("-") or not name:
      continue
    negated = name.removeprefix("no")
    if name not in flags.FLAGS and negated in flags.FLAGS and flags.FLAGS[negated].boolean:
      name, equals, value = negated, "=", "false"
    if name in of_commands - readable:
      raise OptionError(name, f"unset for {command}, which does not use it")
    flag: Any = flags.FLAGS[name] if name in flags.FLAGS else None  # noqa: SIM401 (FLAGS.get returns a flag's value)
    if not equals:
      value = "true" if flag is not None and flag.boolean else next(words, "")
    if flag is not None:
      value = _parsed(flag, value)
    if values.setdefault(name, value) != value:
      raise OptionError(f"--{name}", "given once", f"{values[name]} and {value}")


def _parsed(flag: Any, text: str) -> Any:
  """Parse the text of a flag's value. Raises OptionError for a value of the wrong type."""
  try:
    value = flag.parser.parse(text)
  except (ValueError, TypeError) as error:
    choices = ", ".join(getattr(flag.parser, "enum_values", ()))
    condition = f"one of {choices}" if choices else flag.parser.syntactic_help or "True or False"
    raise OptionError(flag.name, condition, repr(text)) from error
  if isinstance(value, float):
    check(flag.name, value, Range())
  return value


def _check_json() -> None:
  """Raise OptionError before any slow work if the --json file cannot be written."""
  name = flags.FLAGS["json"].value if "json" in flags.FLAGS else None
  if not name:
    return
  path, folder = Path(name), Path(name).absolute().parent
  if files.local(name).is_fifo() or path.is_dir() or not folder.is_dir():
    raise OptionError("json", "a file in an existing folder", name)
  try:
    with tempfile.TemporaryDirectory(dir=folder):
      pass
    if path.exists():
      path.open("a").close()
  except OSError as error:
    raise OptionError("json", "a writable file", f"{name} ({error.strerror or error})") from error
