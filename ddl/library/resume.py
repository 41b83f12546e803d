"""Record the config and options of a command or Python call, so that users need not repeat them to resume it."""

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from ddl import files
from ddl.config.catalog import Config
from ddl.config.comparison import recorded, restored
from ddl.config.options import ALL, FLAGS, RunOptions
from ddl.config.resolve import resolve
from ddl.config.trusted_code import Untrusted
from ddl.config.user_code import Unavailable
from ddl.perf import cluster_file
from ddl.run import folder as run_dir
from ddl.run import inputs
from ddl.run.workdir import UNRECORDED, resume_command, without, workdir

ADVICE = "; pass the original config and options"


class ResumeRecord(NamedTuple):
  """The recorded config and options of a command or Python call, read from `run_dir.EXPERIMENT`."""

  folder: Path
  config: Mapping[str, Any]  # the recorded config, as changes of the default config
  options: Mapping[str, Any]  # options that differ from the default `RunOptions`, and only, cluster and tuned
  arguments: Sequence[str]  # the arguments on the command line


def record(
  command: str, config: Config, options: RunOptions, arguments: Sequence[str] = (), *,
  only: Sequence[str] = (), cluster: Sequence[str] = (), tuned: str | Path = "",
) -> dict[str, Any]:  # fmt: skip
  """Return the record of a command or call as a JSON object; its `tuned` and `replay` name the copies in the folder."""
  values = {name: value for name, value in options.changed().items() if name not in UNRECORDED}
  if options.init_from:
    values["init_from"] = str(files.local(options.init_from).absolute())
  if options.replay:
    values["replay"] = run_dir.PRESENCE if options.replay.endswith(".json") else run_dir.EVENTS
  more = {"only": list(only), "cluster": cluster_file.absolute(cluster), "tuned": run_dir.TUNED if tuned else ""}
  values |= {name: value for name, value in more.items() if value}
  return {"command": command, "arguments": without(arguments), "options": values, "config": recorded(config)}


def read(command: str, options: RunOptions) -> ResumeRecord:
  """Read the record of the folder that a command resumes.

  Raises ValueError if the folder does not exist or was written by another command, or if its record is missing or
  damaged.
  """
  folder = workdir(command, options)
  file = folder / run_dir.EXPERIMENT
  if not file.exists():
    raise ValueError(f"{file}, the record of the experiment, is missing{ADVICE}")
  content = files.read_json(file, ADVICE)
  written_by, config, values = (content.get(key) for key in ("command", "config", "options"))
  if written_by in ALL and written_by != command:
    raise ValueError(
      f"{folder} was written by {written_by} and cannot be resumed by {command}. Resume it with {written_by}."
    )
  arguments = content.get("arguments", [])
  if not isinstance(config, dict) or not isinstance(values, dict) or not isinstance(arguments, list):
    raise _damaged(file, "its config, options or arguments are missing or malformed")
  values = {name: value for name, value in values.items() if name not in UNRECORDED}
  values |= {name: str(folder / values[name]) for name in ("tuned", "replay") if values.get(name)}
  try:
    RunOptions(**{name: value for name, value in values.items() if name not in ("only", "cluster", "tuned")})
  except (TypeError, ValueError) as error:  # TypeError: an unknown option
    raise _damaged(file, error) from error
  return ResumeRecord(folder, restored(config), values, [str(word) for word in arguments])


def _damaged(file: Path, why: object) -> ValueError:
  return ValueError(f"{file} is damaged ({why}){ADVICE}")


def allowed_code(recorded: ResumeRecord | None, options: RunOptions) -> contextlib.AbstractContextManager[None]:
  """Return a context manager that restricts the user-defined code that a resumed run may import.

  See `ddl.run.inputs.allowed_code`.
  """
  if not recorded:
    return contextlib.nullcontext()
  return inputs.allowed_code(recorded.folder, options.trust_code, options.allow_changed_inputs)


def config_of(recorded: ResumeRecord) -> Config:
  """Return the config of a record. Raises ValueError if the record is damaged."""
  try:
    return resolve(None, recorded.config)
  except (Untrusted, Unavailable):  # the record itself is intact
    raise
  except ValueError as error:
    raise _damaged(recorded.folder / run_dir.EXPERIMENT, error) from error


def with_recorded(options: RunOptions, recorded: ResumeRecord) -> RunOptions:
  """Return the options after replacing default values by the recorded values."""
  values = {name: value for name, value in recorded.options.items() if name in FLAGS}
  return replace(options, **values | options.changed())


def unfinished(path: Path) -> str:
  """Describe how to resume an unfinished comparison or sweep; return "" if the folder contains neither."""
  command = ""
  if (path / run_dir.EXPERIMENT).exists():
    command = str(files.read_json(path / run_dir.EXPERIMENT).get("command"))
  complete = sorted(file.parent for file in path.glob(f"*/seed-*/{run_dir.RESULT}"))
  if command not in ("compare", "sweep"):
    command = "sweep" if (path / run_dir.STUDY).exists() else "compare" * bool(complete)
  if not command:
    return ""
  what, result = ("a sweep", run_dir.TUNED) if command == "sweep" else ("a comparison", run_dir.COMPARISON)
  call = f"ddl.{command}(workdir={str(path)!r}, options=ddl.RunOptions(resume=True))"
  text = f"{path} contains {what} that is not finished (it has no {result}). "
  text += f"Resume it with `{resume_command(command, path)}` or {call}"
  return text + (f"; complete runs, such as {complete[0]}, can already be loaded." if complete else ".")
