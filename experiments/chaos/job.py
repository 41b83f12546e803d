"""One `train` command as a job: its launcher, its processes, and the network namespace that they may have alone."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from ddl import hosts
from ddl.run.folder import RunFolder
from ddl.run.processes import ROOT

APART = ("unshare", "--net", "sh", "-c", 'ip link set lo up && exec "$@"', "sh")
RESTARTS = (": restart ", ": it is started again")  # of what a launcher says of each
SAVED = 60.0  # seconds in which processes end that are asked to


class ChaosJob:
  """A run in a folder, started as often as it takes. Its output is appended to a file beside the folder."""

  def __init__(self, words: Sequence[str], folder: Path, apart: bool):
    """words: flags of `train`; apart: whether its loopback is its own, so that it can be cut."""
    self.folder, self.log, self._words, self._apart = folder, folder.with_suffix(".log"), words, apart
    self.launcher: subprocess.Popen[bytes] | None = None
    self.damaged: Path | None = None  # the file of a checkpoint that was cut short last

  def start(self) -> None:
    """Start it, or go on with what its folder holds."""
    words = [sys.executable, str(ROOT / "run.py"), "train", *self._words, f"--workdir={self.folder}"]
    if RunFolder(self.folder).has_begun():
      words.append("--resume")
    inside = (*APART, *words) if self._apart else words
    with self.log.open("ab") as log:
      self.launcher = subprocess.Popen(
        inside, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True, env=hosts.launched()
      )

  def ended(self) -> int | None:
    """Return the exit code, or None while it runs."""
    return self.launcher.poll() if self.launcher else None

  def processes(self) -> list[int]:
    """Return the pids of the processes that train."""
    if self.launcher is None or self.launcher.poll() is not None:
      return []
    try:
      return [
        int(pid) for pid in Path(f"/proc/{self.launcher.pid}/task/{self.launcher.pid}/children").read_text().split()
      ]
    except FileNotFoundError:
      return []

  def send(self, pid: int, number: int) -> None:
    """Send a signal to one of the processes, which may have ended."""
    with contextlib.suppress(ProcessLookupError):
      os.kill(pid, number)

  def end(self, number: int) -> None:
    """Send a signal to the launcher, and wait until it and its processes have ended. TimeoutError if they don't."""
    assert self.launcher
    found = self.processes()
    self.send(self.launcher.pid, number)
    for pid in found:
      self.send(pid, signal.SIGCONT)  # of one that is stopped
    self.launcher.wait(SAVED)
    wait(lambda: not any(_runs(pid) for pid in found), SAVED, "processes go on after their launcher has ended")

  def network(self, state: str) -> None:
    """Set its loopback "down" or "up"."""
    if self.launcher and self.launcher.poll() is None:
      inside = ("nsenter", f"--target={self.launcher.pid}", "--net", "ip", "link", "set", "lo", state)
      subprocess.run(inside, capture_output=True, check=False)

  def restarts(self) -> int:
    """Return how often its launcher has started the processes anew."""
    said = self.log.read_text(errors="replace")
    return sum(map(said.count, RESTARTS))

  def last_line(self) -> str:
    """Return what it said last."""
    lines = [line for line in self.log.read_text(errors="replace").splitlines() if line.strip()]
    return lines[-1] if lines else "nothing"

  def kill(self) -> None:
    """Leave nothing of it behind."""
    if self.launcher:
      self.send(self.launcher.pid, signal.SIGSTOP)  # it starts no more of them
      for pid in [self.launcher.pid, *self.processes()]:
        self.send(pid, signal.SIGKILL)
      self.launcher.wait()


def wait(condition: Callable[[], bool], seconds: float, otherwise: str) -> None:
  """Wait until a condition holds. Raises TimeoutError with the words if it does not."""
  until = time.monotonic() + seconds
  while not condition():
    if time.monotonic() > until:
      raise TimeoutError(f"{otherwise} ({seconds:g} s)")
    time.sleep(0.02)


def _runs(pid: int) -> bool:
  """Return whether a process is there and no zombie."""
  try:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
  except FileNotFoundError:
    return False
