"""Start commands in processes, and read the metrics in a run's folder."""

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
  """The exit code and output of a command."""

  code: int
  out: str
  error: str


def last_of_each(arguments: Sequence[str]) -> list[str]:
  """Keep only the last flag of each name, so that a test can override a shared list; commands refuse duplicates."""
  last = {argument.partition("=")[0]: place for place, argument in enumerate(arguments)}
  return [
    argument
    for place, argument in enumerate(arguments)
    if "=" not in argument or not argument.startswith("-") or last[argument.partition("=")[0]] == place
  ]


class Command:
  """`python FILE ARGUMENTS` in its own process group, as in a terminal. FILE is in the repository.

  `run.py` without custom environment variables is a fork of a process that has imported the libraries.
  """

  def __init__(
    self, *arguments: str, file: str = "run.py", cwd: Path | str = ROOT, within: Sequence[str] = (), **variables: str
  ):
    """Start the command. within: a command that runs it, such as ["nice"]; variables: environment variables."""
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
    """Wait for the end; after `seconds`, kill the process and its children and raise TimeoutExpired."""
    try:
      out, error = self.process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
      self.kill()
      raise
    return Done(self.process.returncode, out, error)

  def complaints(self) -> str:
    """Return the stderr of a fork so far."""
    return (Path(self._printed.name) / "error").read_text()

  def kill(self) -> None:
    """Send SIGKILL to the process and its children."""
    pid = self.process.pid
    children = Path(f"/proc/{pid}/task/{pid}/children")
    pids = [pid, *map(int, children.read_text().split())] if children.exists() else [pid]
    for number in pids:
      with contextlib.suppress(ProcessLookupError):
        os.kill(number, signal.SIGKILL)
    self.process.wait()

  def wait_for(self, condition: Callable[[], bool], seconds: float = 180) -> None:
    """Wait until a condition holds; fail if the command ends before."""
    until = time.monotonic() + seconds
    while not condition():
      if self.process.poll() is not None or time.monotonic() > until:
        self.kill()
        raise AssertionError(f"the command ended or timed out: {self.process.communicate()}")
      time.sleep(0.01)


def metrics(folder: Path, timeless: bool = True) -> list[dict[str, float]]:
  """Return the lines of metrics.jsonl; timeless: without the measured seconds."""
  file = folder / "metrics.jsonl"
  lines = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
  return [{k: v for k, v in line.items() if k != "seconds" or not timeless} for line in lines]


def complaint(done: Done, code: int = 2) -> str:
  """Return the only line on stderr of a failed command. code: its exit code, by default that of a user error."""
  assert done.code == code, done
  lines = [line for line in done.error.splitlines() if "Gloo" not in line]
  assert len(lines) == 1 and "Traceback" not in done.error, done.error
  return lines[0]
