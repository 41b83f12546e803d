"""experiment.json of a folder: its config and options as values, so that --resume --workdir=... is enough to go on."""

import contextlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import ml_collections
from absl import flags

from ddl import files, hosts
from ddl.config.base import base, with_own
from ddl.config.comparison import recorded, restored
from ddl.config.options import RunOptions
from ddl.config.registry import Config
from ddl.config.trusted_code import Untrusted
from ddl.config.user_code import Unavailable
from ddl.perf import cluster_file
from ddl.run import inputs
from ddl.run.folder import EVENTS, EXPERIMENT, PRESENCE, TUNED
from ddl.run.workdir import HERE, without, workdir
from experiments.command_line.config_flag import CommandLine

KEPT = {"tuned": TUNED, "replay": EVENTS}  # flags that name a file, and the folder's own copy of it


def record(line: CommandLine) -> dict[str, Any]:
  """As JSON, for `restore`: the config with all its keys, and the flags that were given."""
  options = {flag.name: flag.value for flag in _flags() if flag.present and flag.name not in HERE}
  if clusters := options.get("cluster"):
    options["cluster"] = cluster_file.absolute(clusters)
  kept = KEPT | {"replay": PRESENCE} if str(options.get("replay")).endswith(".json") else KEPT
  options |= {name: file for name, file in kept.items() if options.get(name)}
  return {
    "command": line.command,
    "arguments": without(line.arguments),
    "options": options,
    "config": recorded(line.config),
  }


def checked_code() -> contextlib.AbstractContextManager[None]:
  """Within it only such user-defined code is imported as the folder of --workdir may name."""
  if not flags.FLAGS.workdir:  # `restore` says so
    return contextlib.nullcontext()
  folder = files.local(flags.FLAGS.workdir)
  return inputs.allowed_code(folder, flags.FLAGS.trust_code, flags.FLAGS.allow_changed_inputs)


def restore(command: str, arguments: Sequence[str]) -> tuple[Config, list[str]]:
  """The config that the folder of --workdir records, and the arguments with those recorded before them.

  Sets the recorded options too, but those that `arguments` set.

  Raises:
    ValueError: for a folder that is not there, records nothing, or is of another command.
  """
  folder = workdir(command, RunOptions(resume=True, workdir=flags.FLAGS.workdir))
  made_by = command
  try:
    found = json.loads((folder / EXPERIMENT).read_text(encoding="utf-8"))
    made_by = str(found["command"])
    words = [str(word) for word in found["arguments"]]
    config = _filled(with_own(base(), found["config"]), found["config"])
    _set(found["options"], folder)
  except Untrusted:
    raise
  except Unavailable as error:  # which the folder is not to blame for
    raise ValueError(f"{folder / EXPERIMENT}: {error}") from error
  except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError, flags.Error) as error:
    _check_command(made_by, command, folder)  # of which another one does not know all flags
    what = "is missing" if isinstance(error, FileNotFoundError) else "is damaged"
    raise ValueError(
      f"{folder / EXPERIMENT}, which records the experiment, {what}; give the whole command: --config=FILE ... "
      f"--resume --workdir={folder}"
    ) from error
  _check_command(made_by, command, folder)
  if hosts.processes() == 1:
    print(f"{folder}: going on with the config and the flags that its {EXPERIMENT} records", flush=True)
  return config, [*words, *arguments]


def _check_command(made_by: str, command: str, folder: Path) -> None:
  if made_by != command and made_by in ("train", "compare", "sweep"):
    raise ValueError(f"{folder} is of a `{made_by}`, not of a `{command}`; {made_by} --resume goes on with its folder")


def _flags() -> list[flags.Flag[Any]]:
  """Flags of the commands, not of the libraries."""
  modules = flags.FLAGS.flags_by_module_dict()
  return [flag for name, each in modules.items() if name.startswith("experiments") for flag in each]


def _set(options: dict[str, Any], folder: Path) -> None:
  known = {flag.name: flag for flag in _flags()}
  for name, value in options.items():
    if name not in HERE and not known[name].present:
      known[name].parse(str(folder / value) if name in KEPT else value)


def _filled(config: Config, values: dict[str, Any]) -> Config:
  """Sets the values; a section without keys of its own, such as the labels of a comparison, takes all of them."""
  for key, value in values.items():
    if isinstance(config[key], ml_collections.ConfigDict) and len(config[key]):
      _filled(config[key], value)
    else:
      config[key] = restored(value)
  return config
