"""Messages about flags in the words of `ddl.train`, `ddl.compare` and `ddl.sweep`, for who called one of them.

What raises does not know who asked, and speaks of `--workdir=X`; a call says `workdir="X"`.
"""

import ast
import re
import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields

from ddl.config.options import RunOptions
from ddl.run.exit_codes import Stopped

ARGUMENTS = {"workdir": "workdir", "config": "config", "tuned": "tuned", "trials": "trials"}
LISTS = {"only": "only", "cluster": "clusters"}  # arguments that take several
OPTIONS = {each.name: each.type for each in fields(RunOptions)}
VALUE = r"\([^)]*\)|[^\s;)]*[^\s;:,.)]|"  # the sentence's own comma or colon behind it is none of it
COMMAND = re.compile(rf"python run\.py (train|compare|sweep)((?: --[\w.]+(?:=(?:'[^']*'|{VALUE}))?)*)")
ARGUMENT = re.compile(r"--([\w.]+)(?:=(.*))?")
FLAG = re.compile(rf"--(config\.[\w.]*\w|\w+)(?:=((?:{VALUE})(?:\.\.\.)?))?")


@contextmanager
def in_calls() -> Iterator[None]:
  """Errors from within name what works in a call."""
  try:
    yield
  except ValueError as error:
    error.args = (words(str(error)), *error.args[1:])
    raise
  except Stopped as stopped:
    stopped.message = words(stopped.message)
    raise


def words(text: str) -> str:
  """The text with calls for commands and arguments for flags; a flag that no call has an argument for stays."""
  return FLAG.sub(_argument, COMMAND.sub(_call, text))


def _call(found: re.Match[str]) -> str:
  arguments = [ARGUMENT.sub(_argument, flag) for flag in shlex.split(found[2])]
  return f"ddl.{found[1]}({', '.join(['...', *arguments])})"


def _argument(found: re.Match[str]) -> str:
  name, value = found[1], found[2]
  if name.startswith("config."):
    *sections, key = name.removeprefix("config.").split(".")
    inner = f'"{key}": {_value(value)}' if sections else f"{key}={_value(value)}"
    for section in reversed(sections[1:]):
      inner = f'"{section}": {{{inner}}}'
    return f"{sections[0]}={{{inner}}}" if sections else inner
  if name in LISTS:
    return f"{LISTS[name]}={value.split(',') if value and not value.isupper() else _value(value)}"
  if name in ARGUMENTS:
    return f"{ARGUMENTS[name]}={_value(value)}"
  if name == "elastic":  # short for the config's
    return f"elastic={_value(value or 'True')}"
  if name not in OPTIONS:
    return found[0]
  if name == "overlap":
    value = str(value == "on")
  elif OPTIONS[name] is bool and value is None:
    value = "True"
  return f"options=ddl.RunOptions({name}={_value(value)})"


def _value(text: str | None) -> str:
  """A flag's value as Python has it; a word like FILE stands for any."""
  if not text or text.isupper():
    return text or "..."
  try:
    return repr(ast.literal_eval(text))
  except (ValueError, SyntaxError):
    return repr(text)
