"""The process that trains, as a fork of its supervisor, which holds no device, no thread and no state of JAX."""

import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable

from ddl.elastic.supervision.memory import Memory
from ddl.hosts.launcher import kill_children

LOST = 75  # exit code: another process did not answer in a collective
BEAT = 0.5  # seconds


class TrainingProcess:
  """One at a time."""

  def __init__(self, memory: Memory):
    """memory: that it writes."""
    self._memory, self._pid = memory, 0

  @property
  def runs(self) -> bool:
    """Whether there is one."""
    return self._pid > 0

  def start(self, run: Callable[[], int]) -> None:
    """Fork, and call `run` there, which returns the exit code."""
    sys.stdout.flush()
    sys.stderr.flush()
    self._memory.beat()
    parent = os.getpid()
    self._pid = os.fork()
    if not self._pid:
      code = 1
      try:
        threading.Thread(target=_beat, args=(self._memory, parent), daemon=True).start()
        code = run()
      except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 1
      except BaseException:
        traceback.print_exc()
      finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)

  def ended(self) -> int | None:
    """Return the exit code of one that has ended, once; a signal's number is negative."""
    if not self._pid:
      return None
    pid, status = os.waitpid(self._pid, os.WNOHANG)
    if not pid:
      return None
    self._pid = 0
    return os.waitstatus_to_exitcode(status)

  def send(self, number: int) -> None:
    """Send it a signal."""
    if self._pid:
      os.kill(self._pid, number)

  def kill(self) -> None:
    """End it at once."""
    if self._pid:
      os.kill(self._pid, signal.SIGKILL)
      os.waitpid(self._pid, 0)
      self._pid = 0


def _beat(memory: Memory, parent: int) -> None:
  """Show that this process is alive, and end it with its supervisor."""
  while os.getppid() == parent:
    memory.beat()
    time.sleep(BEAT)
  kill_children()
  os._exit(LOST)
