"""Start processes on this machine, monitor them, and stop them when this process exits."""

import multiprocessing
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from typing import IO

from ddl.hosts.abort import print_error
from ddl.hosts.process_info import JOINED, ProcessInfo, member

LAUNCHER = "DDL_LAUNCHER"  # environment variable: the PID of the launcher with which this process must exit
SAVING = 15.0  # maximum seconds from SIGTERM to the end of the process, in which a run can be saved
POLL = 0.5  # seconds between checks of whether the launcher exists
FAILING = 3.0  # seconds in which the others can report errors after a process has failed, see `exit_process`


def follow_launcher() -> None:
  """Stop this process when its launcher exits, even if it is in a C call; do nothing without a launcher.

  Removes LAUNCHER from the environment, so that this process's children do not inherit it.
  """
  if launcher := os.environ.pop(LAUNCHER, ""):
    threading.Thread(target=_stop_after, args=[int(launcher)], daemon=True).start()


def _stop_after(launcher: int) -> None:
  while os.getppid() == launcher:
    time.sleep(POLL)
  signal.setitimer(signal.ITIMER_REAL, SAVING)  # SIGALRM ends the process even if no Python code runs
  os.kill(os.getpid(), signal.SIGTERM)
  time.sleep(0.8 * SAVING)
  for child in multiprocessing.active_children():  # prefetching processes do not notice this process's exit
    child.kill()
  os.kill(os.getpid(), signal.SIGKILL)


def launched() -> dict[str, str]:
  """Return an environment for child processes in which `follow_launcher` stops them when this process exits."""
  return os.environ | {LAUNCHER: str(os.getpid())}


def command_line() -> list[str]:
  """Return the command line that started this process, to run it again with `launch`."""
  return [sys.executable, *sys.orig_argv[1:]]


def launch(count: int, command: Sequence[str]) -> int:
  """Run `command` in `count` local processes that join on a loopback port; return the exit code.

  If this process is itself one of several, it starts a single child, which has the rank of this process.

  If a child fails, the others are stopped, and the exit code is that of the failed child. SIGTERM and Ctrl-C are
  forwarded to the children; if a child then fails, the exit code is 128 + the signal's number. Only the first child
  writes to stdout. The stderr of each other child is printed at the end, with its rank before each line (`[1] ...`).
  """
  infos, children, signals = _infos(count), list[subprocess.Popen[bytes]](), list[int]()
  outputs = [tempfile.TemporaryFile("w+", errors="replace") for _ in infos[1:]]  # noqa: SIM115 (closed below)

  def send(number: int) -> None:
    for child in children:
      if child.poll() is None:
        child.send_signal(number)

  def forward(number: int, _frame: object) -> None:
    signals.append(number)
    send(number)

  handlers = {number: signal.signal(number, forward) for number in (signal.SIGTERM, signal.SIGINT)}
  first, kill_at = 0, float("inf")
  try:
    for info in infos:
      child = subprocess.Popen(
        command,
        env=launched() | {JOINED: str(info)},
        stdout=None if info is infos[0] else subprocess.DEVNULL,
        stderr=None if info is infos[0] else outputs[len(children) - 1],
        start_new_session=True,  # otherwise children receive Ctrl-C twice, and the second kills
      )
      children.append(child)
    while any(child.poll() is None for child in children):
      failed = [index for index, child in enumerate(children) if child.poll()]
      if failed and kill_at == float("inf"):
        first = failed[0]
        killed = (children[first].poll() or 0) < 0  # the launcher reports this below
        kill_at = time.monotonic() + (0.0 if killed else FAILING)
      if time.monotonic() >= kill_at:
        send(signal.SIGKILL)
      time.sleep(0.02)
  finally:
    for number, handler in handlers.items():
      signal.signal(number, handler)
  codes = [child.wait() for child in children]
  for info, stderr, code in zip(infos[1:], outputs, codes[1:], strict=True):
    _print_lines(info.rank, stderr, repeated=code == codes[0] > 1)
    stderr.close()
  code = codes[first] or next(filter(None, codes), 0)
  if code < 0:
    name = f"process {infos[first].rank} of {infos[first].count}" if infos[first].count > 1 else "the process"
    others = ", so the others were stopped" * (len(infos) > 1)
    print_error(f"{name} was killed by {signal.Signals(-code).name}{others}")
  if signals and code not in (0, 2):
    return 128 + signals[-1]
  return code if code >= 0 else 128 - code


def _infos(count: int) -> list[ProcessInfo]:
  """Return the `ProcessInfo` of each process to start: its rank, the number of processes and the coordinator."""
  if member().count > 1:
    return [member()]
  with socket.socket() as free:
    free.bind(("127.0.0.1", 0))
    return [ProcessInfo(rank, count, f"127.0.0.1:{free.getsockname()[1]}") for rank in range(count)]


def _print_lines(rank: int, stderr: IO[str], repeated: bool) -> None:
  """Print what a process wrote to stderr, with its rank before each line.

  repeated: whether to omit the last line, because rank 0 has printed the same error, such as an invalid option.
  """
  stderr.seek(0)
  lines = [line for line in stderr.read().splitlines() if line.strip()]
  for line in lines[: len(lines) - repeated]:
    print_error(f"[{rank}] {line}")
