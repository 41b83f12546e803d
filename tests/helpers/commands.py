"""The command line as a real process, watched and never left behind; and what a run's folder holds."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from helpers.forks import ROOT, Fork, environment


class Done(NamedTuple):
  """How a command ended."""

  code: int
  out: str
  error: str


def last_of_each(arguments: Sequence[str]) -> list[str]:
  """The last of the flags of each name, so that a test can replace flags of a shared list; commands refuse two."""
  last = {argument.partition("=")[0]: place for place, argument in enumerate(arguments)}
  return [
    argument
    for place, argument in enumerate(arguments)
    if "=" not in argument or not argument.startswith("-") or last[argument.partition("=")[0]] == place
  ]


class Command:
  """`python FILE ARGUMENTS` in its own process group, as a terminal would start it; FILE is in the repository.

  `run.py` without variables of its own is a fork of a process that has imported the libraries.
  """

  def __init__(
    self, *arguments: str, file: str = "run.py", cwd: Path | str = ROOT, within: Sequence[str] = (), **variables: str
  ):
    """Starts it; within: words of a command that starts it; variables: of its environment."""
    arguments = tuple(last_of_each(arguments))
    if ROOT / file == ROOT / "run.py" and not variables and not within:
      self._printed = tempfile.TemporaryDirectory()  # removed with this object
      out, error = (Path(self._printed.name) / name for name in ("out", "error"))
      self.process: Fork | subprocess.Popen[str] = Fork(list(arguments), cwd, out, error)
    else:
      self.process = subprocess.Popen(
        [*within, sys.executable, ROOT / file, *arguments],
        cwd=cwd,
        env=environment() | variables,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        process_group=0,
      )

  def end(self, seconds: float = 240) -> Done:
    """Waits; a process that takes longer is killed with its children, and the test fails."""
    try:
      out, error = self.process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
      self.kill()
      raise
    return Done(self.process.returncode, out, error)

  def complaints(self) -> str:
    """What a fork has written to stderr so far."""
    return (Path(self._printed.name) / "error").read_text()

  def kill(self) -> None:
    """SIGKILL, to its children too."""
    pid = self.process.pid
    children = Path(f"/proc/{pid}/task/{pid}/children")
    result = [int(child) for child in children.read_text().split()] if children.exists() else []
    for each in (pid, *result):
      with contextlib.suppress(ProcessLookupError):
        os.kill(each, signal.SIGKILL)
    self.process.wait()

  def wait_for(self, condition: Callable[[], bool], seconds: float = 180) -> None:
    """Until something holds, while the command still runs."""
    until = time.monotonic() + seconds
    while not condition():
      if self.process.poll() is not None or time.monotonic() > until:
        self.kill()
        raise AssertionError(f"it ended or waited in vain: {self.process.communicate()}")
      time.sleep(0.01)


def metrics(folder: Path, timeless: bool = True) -> list[dict[str, float]]:
  """The lines of metrics.jsonl, without what is measured by the clock."""
  file = folder / "metrics.jsonl"
  lines = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
  return [{k: v for k, v in line.items() if k != "seconds" or not timeless} for line in lines]


def complaint(done: Done, code: int = 2) -> str:
  """The one line on stderr of a command that failed, by default as the user got it wrong."""
  assert done.code == code, done
  lines = [line for line in done.error.splitlines() if "Gloo" not in line]
  assert len(lines) == 1 and "Traceback" not in done.error, done.error
  return lines[0]
