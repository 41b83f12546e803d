"""Processes on this machine, started and watched by this one, and their end when it ends."""

import multiprocessing
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from typing import IO

from ddl.hosts.process_info import JOINED, LAUNCHER, ProcessInfo, member

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


RESTARTED = "DDL_RESTARTED"  # in the environment of a process that is started again
OVER = 10.0  # seconds in which those that go on apart end, after the first that has come to the end of the job
HELD = 0.5  # seconds that the newest line of a process waits for its end


def launch(count: int, command: Sequence[str], apart: int | None = None) -> int:
  """Run `command` as `count` processes on this machine, joined on a loopback port. Return the exit code.

  Where this process is one of several itself, its place goes to a single child.

  The first process to fail ends the others, unless they go on apart: one that is killed is then started again,
  `apart` times in all, and the code is 0 if any ends well. SIGTERM and Ctrl-C are passed on, and the code is then
  that of this signal where a process failed. The first process here has the terminal; another one's lines on stderr
  come with its rank before them, `[1] ...`.
  """
  places = _places(count)
  children: list[subprocess.Popen[bytes]] = []
  lines: list[_Lines] = []
  asked: list[int] = []

  def forward(number: int, _frame: object) -> None:
    asked.append(number)
    kill(number)

  def kill(number: int) -> None:
    for child in children:
      if child.poll() is None:
        child.send_signal(number)

  before = {number: signal.signal(number, forward) for number in (signal.SIGTERM, signal.SIGINT)}
  first, over = None, 0.0

  def start(place: ProcessInfo, **more: str) -> subprocess.Popen[bytes]:
    here = place is places[0]
    child = subprocess.Popen(
      command,
      env=launched() | {JOINED: str(place)} | more,
      stdout=None if here or apart is not None else subprocess.DEVNULL,  # apart any of them may be the main one
      stderr=None if here else subprocess.PIPE,
      start_new_session=True,  # else a terminal's Ctrl-C reaches them twice, and the second kills
    )
    if child.stderr:
      lines.append(_Lines(place.rank, child.stderr))
    return child

  try:
    children += map(start, places)
    while any(child.poll() is None for child in children) or (apart and not asked and _may_go_on(children)):
      failed = [rank for rank, child in enumerate(children) if child.poll()]
      if apart is not None:
        over = over or (time.monotonic() + OVER if any(child.poll() == 0 for child in children) else 0.0)
        if over and time.monotonic() > over:  # of one that is stopped, which the others have gone on without
          kill(signal.SIGKILL)
        killed = [k for k in failed if (children[k].poll() or 0) < 0]
        if killed and apart and not asked and not over:
          apart, k = apart - 1, killed[0]
          sys.stderr.write(f"{_killed(places[k], children[k].wait())}: it is started again\n")
          children[k] = start(places[k], **{RESTARTED: "1"})
      elif failed:
        first = failed[0] if first is None else first
        time.sleep(1)  # a common stop reaches all within a step; without one the others wait for the dead process
        kill(signal.SIGKILL)
      time.sleep(0.02)
  finally:
    for number, handler in before.items():
      signal.signal(number, handler)
  codes = [child.wait() for child in children]
  for each in lines:
    code = codes[[place.rank for place in places].index(each.rank)]
    each.end(alike=code == codes[0] and code > 1)
  if apart is not None and 0 in codes:
    return 0
  first = next((rank for rank, code in enumerate(codes) if code), 0) if first is None else first
  code = codes[first]
  if code < 0:
    others = ", so the others were stopped" * (len(places) > 1 and apart is None)
    sys.stderr.write(f"{_killed(places[first], code)}{others}\n")
  if asked and code not in (0, 2):
    return 128 + asked[-1]
  return code if code >= 0 else 128 - code


def _may_go_on(children: Sequence[subprocess.Popen[bytes]]) -> bool:
  """Return whether all have ended, one of them killed, and none at the end of the job."""
  codes = [child.poll() or 0 for child in children]
  return 0 not in codes and any(code < 0 for code in codes)


def _killed(place: ProcessInfo, code: int) -> str:
  name = f"process {place.rank} of {place.count}" if place.count > 1 else "the process"
  return f"{name} was killed by {signal.Signals(-code).name}"


def _places(count: int) -> list[ProcessInfo]:
  """Return the place of each process to be started."""
  if member().count > 1:
    return [member()]
  with socket.socket() as free:
    free.bind(("127.0.0.1", 0))
    return [ProcessInfo(rank, count, f"127.0.0.1:{free.getsockname()[1]}") for rank in range(count)]


class _Lines:
  """The lines of a process on stderr, passed on as they come, but for the newest, which is held a little.

  What ends all alike, such as a user's mistake, each says in its last line, and rank 0 says it for all.
  """

  def __init__(self, rank: int, pipe: IO[bytes]):
    self.rank, self._pipe, self._held = rank, pipe, b""
    self._thread = threading.Thread(target=self._read, daemon=True)
    self._thread.start()

  def end(self, alike: bool) -> None:
    """Pass on the line that is held, unless the process ended as rank 0 did."""
    self._thread.join(1.0)  # longer only if a child of the process, which has ended, has the pipe
    if not alike:
      self._write(self._held)

  def _read(self) -> None:
    while True:
      if not select.select([self._pipe], [], [], HELD if self._held else None)[0]:
        self._write(self._held)
        self._held = b""
        continue
      new = os.read(self._pipe.fileno(), 2**16)
      if not new:
        return
      *done, self._held = (self._held + new).splitlines(keepends=True)
      self._write(b"".join(done))

  def _write(self, text: bytes) -> None:
    told = "".join(f"[{self.rank}] {line}\n" for line in text.decode(errors="replace").splitlines() if line.strip())
    sys.stderr.write(told)
    sys.stderr.flush()


def launched() -> dict[str, str]:
  """Return the environment of a process that this one starts, and that does not outlive it: `follow_launcher`."""
  return os.environ | {LAUNCHER: str(os.getpid())}


def command_line() -> list[str]:
  """Return the command line of this process, for `launch`."""
  return [sys.executable, *sys.orig_argv[1:]]
