"""What a folder records of the call or the command that made it, so that a resume needs no config again."""

import contextlib
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, NamedTuple

from ddl import files
from ddl.config.comparison import restored
from ddl.config.options import RunOptions
from ddl.run import folder as run_dir
from ddl.run import inputs
from ddl.run.workdir import HERE, resume_command, workdir

COPIES = {"tuned": run_dir.TUNED, "replay": run_dir.EVENTS}  # options that name a file, and the folder's copy of it


NOT_RECORDED = (*HERE, "print_table", "command", "recorded")  # options of one call


class Recorded(NamedTuple):
  """Of `run_dir.EXPERIMENT`."""

  folder: Path
  config: Mapping[str, Any]  # sections and keys, as changes of the defaults
  options: Mapping[str, Any]  # by the names of the command line's flags

  @property
  def only(self) -> list[str]:
    """The labels that were asked for."""
    return [str(label) for label in self.options.get("only") or ()]

  @property
  def clusters(self) -> list[str]:
    """Those that the seconds are predicted for."""
    return [str(name) for name in self.options.get("cluster") or ()]


def recorded(
  command: str, config: Any, changes: Mapping[str, Any], folder: str | Path, options: RunOptions | None
) -> Recorded | None:
  """The record of the folder that a call without config and changes resumes; None for any other call.

  Raises:
    ValueError: for a folder that is not there, records nothing, or is of another command.
  """
  if config is not None or changes or not isinstance(options, RunOptions) or not options.resume:
    return None
  path = workdir(command, replace(options, workdir=str(folder or options.workdir)))
  file = path / run_dir.EXPERIMENT
  advice = "; give the config, and the changes that the run was started with"
  if not file.exists():
    raise ValueError(f"{file}, which records the experiment, is missing{advice}")
  found = files.read_json(file, advice)
  made_by, config, flags = (found.get(key) for key in ("command", "config", "options"))
  if made_by in ("train", "compare", "sweep") and made_by != command:
    raise ValueError(f"{path} is of a `{made_by}`, not of a `{command}`; `ddl.{made_by}` goes on with its folder")
  if not isinstance(config, dict) or not isinstance(flags, dict):
    raise ValueError(f"{file} is damaged (it lacks the config or the options){advice}")
  return Recorded(path, restored(config), {key: _file(path, key, value) for key, value in flags.items()})


def allowed_code(record: Recorded | None, options: RunOptions | None) -> contextlib.AbstractContextManager[None]:
  """Within it only such user-defined code is imported as the record's folder may name."""
  if not record or not options:
    return contextlib.nullcontext()
  return inputs.allowed_code(record.folder, options.trust_code, options.allow_changed_inputs)


def _file(folder: Path, key: str, value: Any) -> Any:
  return str(folder / COPIES[key]) if key in COPIES and value else value


def with_recorded(options: RunOptions | None, found: Recorded | None) -> RunOptions | None:
  """The options, with those recorded in place of defaults."""
  if found is None or options is None:
    return options
  given, default = asdict(options), asdict(RunOptions())
  there = {
    key: value
    for key, value in found.options.items()
    if key in default and key not in NOT_RECORDED and given[key] == default[key]
  }
  if "overlap" in there:
    there["overlap"] = there["overlap"] in ("on", True)
  return replace(options, **there)


def unfinished(path: Path) -> str:
  """What goes on with a comparison or a sweep that was stopped before its result; "" for a folder of neither."""
  made_by = ""
  if (path / run_dir.EXPERIMENT).exists():
    made_by = str(files.read_json(path / run_dir.EXPERIMENT).get("command"))
  complete = sorted(each.parent for each in path.glob(f"*/seed-*/{run_dir.RESULT}"))
  if made_by not in ("compare", "sweep"):
    made_by = "sweep" if (path / run_dir.STUDY).exists() else "compare" * bool(complete)
  if not made_by:
    return ""
  what, result = ("a sweep", run_dir.TUNED) if made_by == "sweep" else ("a comparison", run_dir.COMPARISON)
  told = f"{path} holds {what} that is not finished: it has no {result} yet; `{resume_command(made_by, path)}` goes on"
  call = f"ddl.{made_by}(workdir={str(path)!r}, options=ddl.RunOptions(resume=True))"
  told += f" with it, and so does {call}"
  if complete:
    told += f"; it has complete runs, such as {complete[0]}, to load by themselves"
  return told
