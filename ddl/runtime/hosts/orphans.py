"""The end of a process whose launcher has ended: SIGTERM, to save and stop, and SIGKILL where that takes too long."""

import multiprocessing
import os
import signal
import threading
import time

from ddl.runtime.hosts.membership import LAUNCHER

SAVING = 15.0  # seconds from SIGTERM to the end
POLL = 0.5  # seconds

_launcher: list[int] = []  # its pid: at most one
_released = threading.Event()
_threads: list[threading.Thread] = []


def follow_launcher() -> None:
  """Stop this process once the process that started it has ended, wherever it waits; nothing without a launcher.

  A launcher sets LAUNCHER in the environment of what it starts. It is removed, as this process's children have another
  parent.
  """
  if LAUNCHER in os.environ:
    _launcher[:] = [int(os.environ.pop(LAUNCHER))]
    _threads[:] = [threading.Thread(target=_wait, daemon=True)]
    _threads[0].start()


def release() -> None:
  """End the thread of `follow_launcher`, for a process that forks and asks `launcher_ended` itself."""
  _released.set()
  for thread in _threads:
    thread.join()


def launcher_ended() -> bool:
  """Return whether the launcher of this process has ended."""
  return bool(_launcher) and os.getppid() != _launcher[0]


def kill_later() -> None:
  """Have the system end this process after SAVING seconds, also where no Python runs any more."""
  signal.setitimer(signal.ITIMER_REAL, SAVING)  # of SIGALRM, which nothing here handles


def kill_children() -> None:
  """End the processes that read ahead for this one, which do not notice its end."""
  for child in multiprocessing.active_children():
    child.kill()


def _wait() -> None:
  while not launcher_ended():
    if _released.wait(POLL):
      return
  kill_later()
  os.kill(os.getpid(), signal.SIGTERM)
  time.sleep(0.8 * SAVING)
  kill_children()
  os.kill(os.getpid(), signal.SIGKILL)
