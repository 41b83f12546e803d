"""Choose a command's folder and check that it can be used, before any data is loaded."""

import shlex
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from ddl import files, hosts
from ddl.config.experiment import Experiment
from ddl.config.options import RunOptions
from ddl.errors import OptionError
from ddl.names import slug
from ddl.run.folder import RunFolder

UNRECORDED = (  # flags that a folder does not record, because they do not change results
  "resume", "allow_changed_inputs", "trust_code", "workdir", "coordinator", "num_processes", "process_id",
  "compilation_cache", "hooks",
)  # fmt: skip
SWITCHES = UNRECORDED[:3]  # flags without a value


def workdir(what: str, options: RunOptions) -> Path:
  """Return options.workdir, or a new folder under runs/ named after `what`.

  Raises ValueError if the folder to resume is not set or does not exist, or if a folder cannot be created.
  """
  if options.resume and not options.workdir:
    raise OptionError("workdir", "set with resume (to the folder to resume, such as runs/a)")
  path = files.local(options.workdir or f"runs/{slug(what)}-{time.strftime('%Y%m%d-%H%M%S')}")
  if options.resume and not path.exists():
    raise ValueError(f"workdir must be an existing folder with resume, got {path}. Omit resume to start a new run.")
  return writable(path)


def writable(path: Path, option: str = "workdir") -> Path:
  """Return the path if a folder exists or can be created there; raise OptionError otherwise."""
  nearest = next(p for p in [path, *path.absolute().parents] if p.exists())
  if not nearest.is_dir():
    raise OptionError(option, "a folder", f"{path} ({nearest} is a file)")
  try:
    with tempfile.TemporaryDirectory(dir=nearest):
      pass  # checking permissions would miss a full disk or a file system like /proc
  except OSError as error:
    reason = f"{nearest} is not writable: {(error.strerror or str(error)).lower()}"
    raise OptionError(option, "a writable folder", f"{path} ({reason})") from error
  return path


def check_folder(path: Path, experiment: Experiment, options: RunOptions, single: bool = True) -> None:
  """Raise ValueError if a new run's folder is already used, or a resumed run's folder has no run of this experiment.

  single: False for a run of a comparison, which need not have started before a resume.
  """
  folder = RunFolder(path)
  if not options.resume:
    (folder.check_unused if single else folder.check_new)()
  elif single or folder.begun:
    folder.reopen(experiment)


def resume_command(command: str, folder: Path | str, words: Sequence[str] = ()) -> str:
  """Return the shell command that resumes the run or runs in a folder.

  words: the current command line; if it sets the coordinator, so does the returned command.
  """
  rest = f"--resume --workdir={shlex.quote(str(folder))}"
  if any(word.lstrip("-").startswith("coordinator") for word in words):
    me = hosts.member()
    rest += f" --coordinator={me.coordinator} --num_processes={me.count} --process_id={me.rank}"
  return f"python run.py {command} {rest}"


def without(words: Sequence[str], names: Sequence[str] = UNRECORDED) -> list[str]:
  """Return the words of a command line without the flags `names` and their values."""
  out, left = [], iter(words)
  for word in left:
    name, equals, _ = word.lstrip("-").partition("=")
    if not word.startswith("-") or name not in names:
      out.append(word)
    elif name not in SWITCHES and not equals:
      next(left, None)
  return out
