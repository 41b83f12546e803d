"""Processes on this machine, started and watched by this one."""

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

from ddl.runtime.hosts.membership import JOINED, LAUNCHER, Membership, member

HELD = 0.5  # seconds that the newest line of a process waits for its end


def launch(count: int, command: Sequence[str]) -> int:
  """Run `command` as `count` processes on this machine, joined on a loopback port. Return the exit code.

  Where this process is one of several itself, its place goes to a single child.

  The first process to fail ends the others. SIGTERM and Ctrl-C are passed on, and the code is then that of this signal
  where a process failed. The first process here has the terminal; another one's lines on stderr come with its rank
  before them, `[1] ...`.
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
  first = None
  try:
    for place in places:
      first_here = place is places[0]
      child = subprocess.Popen(
        command,
        env=os.environ | {JOINED: str(place), LAUNCHER: str(os.getpid())},
        stdout=None if first_here else subprocess.DEVNULL,
        stderr=None if first_here else subprocess.PIPE,
        start_new_session=True,  # else a terminal's Ctrl-C reaches them twice, and the second kills
      )
      children.append(child)
      if child.stderr:
        lines.append(_Lines(place.rank, child.stderr))
    while any(child.poll() is None for child in children):
      failed = [rank for rank, child in enumerate(children) if child.poll()]
      if failed:
        first = failed[0] if first is None else first
        time.sleep(1)  # a common stop reaches all within a step; without one the others wait for the dead process
        kill(signal.SIGKILL)
      time.sleep(0.02)
  finally:
    for number, handler in before.items():
      signal.signal(number, handler)
  codes = [child.wait() for child in children]
  for each, code in zip(lines, codes[1:], strict=True):
    each.end(alike=code == codes[0] and code > 1)
  first = next((rank for rank, code in enumerate(codes) if code), 0) if first is None else first
  code = codes[first]
  if code < 0:
    place, others = places[first], ", so the others were stopped" * (len(places) > 1)
    name = f"process {place.rank} of {place.count}" if place.count > 1 else "the process"
    sys.stderr.write(f"{name} was killed by {signal.Signals(-code).name}{others}\n")
  if asked and code not in (0, 2):
    return 128 + asked[-1]
  return code if code >= 0 else 128 - code


def _places(count: int) -> list[Membership]:
  """Return the place of each process to be started."""
  if member().count > 1:
    return [member()]
  with socket.socket() as free:
    free.bind(("127.0.0.1", 0))
    return [Membership(rank, count, f"127.0.0.1:{free.getsockname()[1]}") for rank in range(count)]


class _Lines:
  """The lines of a process on stderr, passed on as they come, but for the newest, which is held a little.

  What ends all alike, such as a user's mistake, each says in its last line, and rank 0 says it for all.
  """

  def __init__(self, rank: int, pipe: IO[bytes]):
    self._rank, self._pipe, self._held, self._lock = rank, pipe, b"", threading.Lock()
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
    told = "".join(f"[{self._rank}] {line}\n" for line in text.decode(errors="replace").splitlines() if line.strip())
    sys.stderr.write(told)
    sys.stderr.flush()


def command_line() -> list[str]:
  """Return the command line of this process, for `launch`."""
  return [sys.executable, *sys.orig_argv[1:]]
