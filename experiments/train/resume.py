"""The command that a folder's about.json records, so that --resume --workdir=... is enough to go on."""

import json
import re
import shlex
from collections.abc import Sequence
from pathlib import Path

from experiments.train.run_dir import ABOUT

HERE = ("resume", "workdir")  # flags that say where, not what


def short(command: str, folder: Path | str) -> str:
  """The command that goes on with a folder."""
  return f"python run.py {command} --resume --workdir={shlex.quote(str(folder)) if folder != '...' else folder}"


def arguments(command: str) -> list[str]:
  """The arguments, but --resume and --workdir, that the folder of --workdir records; says which config they name.

  Raises:
    ValueError: for a folder that is not there, records no command, or that of another one.
  """
  from experiments.train import build  # other commands than those that can resume need none of it

  folder = build.workdir(command)
  try:
    words = shlex.split(json.loads((folder / ABOUT).read_text(encoding="utf-8"))["command"])
    made_by, found = words[2], without(words[3:], HERE)
  except (OSError, ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
    what = "is missing" if isinstance(error, FileNotFoundError) else "is damaged"
    raise ValueError(
      f"{folder / ABOUT}, which records the command, {what}; give the whole command: --config=FILE ... --resume "
      f"--workdir={folder}"
    ) from error
  if made_by != command:
    raise ValueError(f"{folder} is of a `{made_by}`, not of a `{command}`; {made_by} --resume goes on with its folder")
  file = re.search(r"(?:^|\s)--?config[=\s](\S+)", " ".join(found))
  print(
    f"{folder}: going on with {file[1] if file else 'the config'} and the flags that its {ABOUT} records", flush=True
  )
  return found


def without(words: Sequence[str], names: Sequence[str]) -> list[str]:
  """The words of a command line but these flags, whether their values follow = or a blank."""
  out, left = [], iter(words)
  for word in left:
    name, equals, _ = word.lstrip("-").partition("=")
    if not word.startswith("-") or name not in names:
      out.append(word)
    elif name == "workdir" and not equals:
      next(left, None)
  return out
