"""The folder that a command works in: checked before any data is loaded."""

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

HERE = (  # flags that say where, or what one resume may do, and not what is run
  "resume", "allow_changed_inputs", "trust_code", "workdir", "coordinator", "num_processes", "process_id",
  "compilation_cache", "hooks",
)  # fmt: skip
SWITCHES = HERE[:3]  # which have no value


def workdir(what: str, options: RunOptions) -> Path:
  """Return the folder of the options, or a new one under runs/.

  Raises ValueError for a resume without an existing folder, or a path where no folder can be created.
  """
  if options.resume and not options.workdir:
    raise OptionError("workdir", "the folder to resume, such as runs/a")
  path = files.local(options.workdir or f"runs/{slug(what)}-{time.strftime('%Y%m%d-%H%M%S')}")
  if options.resume and not path.exists():
    raise ValueError(f"{path} holds nothing to resume: it does not exist; without resume a new one is created")
  return writable(path)


def writable(path: Path, option: str = "workdir") -> Path:
  """Return a folder that exists or can be created. OptionError for another path."""
  nearest = next(p for p in [path, *path.absolute().parents] if p.exists())
  if not nearest.is_dir():
    raise OptionError(option, "a folder", f"{path} ({nearest} is a file)")
  try:
    with tempfile.TemporaryDirectory(dir=nearest):
      pass  # permissions alone miss a full disk, or a file system like /proc
  except OSError as error:
    reason = f"nothing can be written in {nearest}: {(error.strerror or str(error)).lower()}"
    raise OptionError(option, "a folder that can be written", f"{path} ({reason})") from error
  return path


def check_folder(path: Path, experiment: Experiment, options: RunOptions, alone: bool = True) -> None:
  """Raise ValueError if the folder holds a run, or cannot be resumed. alone: whether it is not one of several runs."""
  folder = RunFolder(path)
  if not options.resume:
    (folder.check_unused if alone else folder.check_new)()
  elif alone or folder.begun:
    folder.reopen(experiment)


def resume_command(command: str, folder: Path | str, words: Sequence[str] = ()) -> str:
  """Return the command that resumes the work in a folder. words: of this command, with its place in a group."""
  rest = f"--resume --workdir={shlex.quote(str(folder))}"
  if any(word.lstrip("-").startswith("coordinator") for word in words):
    me = hosts.member()
    rest += f" --coordinator={me.coordinator} --num_processes={me.count} --process_id={me.rank}"
  return f"python run.py {command} {rest}"


def without(words: Sequence[str], names: Sequence[str] = HERE) -> list[str]:
  """Return the words of a command line without these flags and their values."""
  out, left = [], iter(words)
  for word in left:
    name, equals, _ = word.lstrip("-").partition("=")
    if not word.startswith("-") or name not in names:
      out.append(word)
    elif name not in SWITCHES and not equals:
      next(left, None)
  return out
