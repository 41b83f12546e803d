"""Detection of a lost process: each process of a group hears within seconds that another has ended, and ends too.

A collective waits without end for a process that was stopped or cut off, until JAX kills its own process with a page of
C++ log. So a thread of each process keeps a connection to process 0, over which both show every second that they are
there; process 0 tells the others of one that is lost.
"""

import atexit
import contextlib
import hmac
import json
import os
import secrets
import selectors
import socket
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from jax._src import distributed  # its key-value store has no public name

from ddl.hosts.process_info import check_seconds


def tell(text: str) -> None:
  """Print a line on stderr, after what stdout has; not where the launcher that read them was killed."""
  with contextlib.suppress(OSError):
    sys.stdout.flush()
  with contextlib.suppress(OSError):
    print(text, file=sys.stderr, flush=True)


PEER_TIMEOUT = 30.0  # seconds of silence after which a process counts as lost
GRACE = 3.0  # seconds between the failure of a collective and the news of its cause, either of which may come first
KEY = "ddl/watch"

_lost = threading.Event()
_ending = threading.Lock()
_said: list[str] = []
_words: list[Callable[[str], str]] = [str]


def start(address: str, seconds: float) -> None:
  """Watch the other processes of a group that has joined. address: by which they reach this one, if it is process 0."""
  group = distributed.global_state
  count, rank, store = int(group.num_processes or 1), int(group.process_id or 0), group.client
  assert store
  if rank == 0:
    server, secret = listen(address), secrets.token_hex(16)
    store.key_value_set(KEY, f"{server.getsockname()[1]} {secret}")
    made = serve(server, count, secret, seconds, _hear)
  else:
    port, secret = store.blocking_key_value_get(KEY, int(1000 * seconds)).split()
    host = str(group.coordinator_address).rpartition(":")[0].strip("[]")
    made = join((host, int(port)), rank, count, secret, seconds, _hear)
  atexit.register(made.close)


def in_words(words: Callable[[str], str]) -> None:
  """Set what this process says of one that is lost, from its name."""
  _words[:] = [words]


def lost(seconds: float) -> bool:
  """Return whether another process is lost; that may be known some seconds after a collective has failed."""
  return _lost.wait(seconds)


def end() -> None:
  """Say which process is lost, as the last line, and end this one."""
  _ending.acquire()  # never released: one thread says it
  tell(_words[0](_said[0]))
  os._exit(1)


def _hear(text: str) -> None:
  _said.append(text)
  _lost.set()
  threading.Event().wait(GRACE)
  end()


EVERY = 1.0  # seconds between two signs of life
LIMIT = 4096  # bytes of a line
BYE = b'"bye"\n'  # before an orderly end

Lost = Callable[[str], None]  # is told who is lost, in this process's thread


class Watch:
  """The thread of one process."""

  def __init__(self, seconds: float, lost: Lost, run: Callable[["Watch"], str]):
    """seconds: of silence; run: watches until it returns who is lost, or "" at an orderly end."""
    self.seconds, self.ending = check_seconds("peer_timeout", seconds), threading.Event()
    self._lost, self._run = lost, run
    self._thread = threading.Thread(target=self._watch, name="watch", daemon=True)
    self._thread.start()

  def close(self) -> None:
    """End in order: the others are told that this process is done."""
    self.ending.set()
    self._thread.join(2 * EVERY)

  def _watch(self) -> None:
    if (text := self._run(self)) and not self.ending.is_set():
      self._lost(text)


def listen(address: str) -> socket.socket:
  """Return a socket of process 0, at a free port of this address."""
  return socket.create_server((address, 0), family=socket.AF_INET6 if ":" in address else socket.AF_INET)


def serve(server: socket.socket, count: int, secret: str, seconds: float, lost: Lost) -> Watch:
  """Watch the other processes from process 0. secret: what they show, so that a stranger is none of them."""
  return Watch(seconds, lost, lambda watch: _Server(server, count, secret, watch).run())


def join(address: tuple[str, int], rank: int, count: int, secret: str, seconds: float, lost: Lost) -> Watch:
  """Watch process 0 from another one, and through it the rest. Raises OSError if it cannot be reached."""
  connection = socket.create_connection(address, timeout=seconds)
  connection.sendall(_line({"rank": rank, "secret": secret}))
  return Watch(seconds, lost, lambda watch: _follow(connection, count, watch))


class _Server:
  """Process 0's side."""

  def __init__(self, server: socket.socket, count: int, secret: str, watch: Watch):
    self._server, self._count, self._secret, self._watch = server, count, secret, watch
    self._ranks: dict[socket.socket, int] = {}
    self._heard: dict[socket.socket, bytes] = {}  # the line that has not ended yet
    self._at: dict[socket.socket, float] = {}  # when there was something
    self._select = selectors.DefaultSelector()

  def run(self) -> str:
    """Return who is lost; "" once this process ends."""
    with self._server, self._select:
      self._server.setblocking(False)
      self._select.register(self._server, selectors.EVENT_READ)
      try:
        while not self._watch.ending.is_set():
          if text := self._listen(time.monotonic() + EVERY) or self._silent():
            self._tell(_line({"lost": text}))
            return text
          self._tell(b"\n")
        self._tell(BYE)
        return ""
      finally:
        for each in self._heard:
          each.close()

  def _listen(self, until: float) -> str:
    """Read what comes for a second; return who has ended."""
    while (left := until - time.monotonic()) > 0:
      for key, _ in self._select.select(left):
        who: Any = key.fileobj
        if who is self._server:
          self._accept()
        elif text := self._read(who):
          return text
    return ""

  def _accept(self) -> None:
    try:
      who, _ = self._server.accept()
    except OSError:
      return
    who.settimeout(EVERY)
    self._heard[who], self._at[who] = b"", time.monotonic()
    self._select.register(who, selectors.EVENT_READ)

  def _read(self, who: socket.socket) -> str:
    try:
      data = who.recv(LIMIT)
    except OSError:
      data = b""
    *lines, rest = (self._heard[who] + data).split(b"\n")
    self._heard[who], self._at[who] = rest, time.monotonic()
    bye = BYE.strip() in lines
    for line in lines:
      said = said_in(line)
      if who not in self._ranks and hmac.compare_digest(str(said.get("secret", "")), self._secret):
        self._ranks[who] = int(said["rank"])
    if data and not bye and len(rest) <= LIMIT and (who in self._ranks or not lines):
      return ""
    self._select.unregister(who)
    rank = self._ranks.pop(who, None)
    del self._heard[who], self._at[who]
    who.close()
    return "" if bye or rank is None else f"process {rank} of {self._count} has ended"

  def _silent(self) -> str:
    last = time.monotonic() - self._watch.seconds
    silent = [rank for who, rank in self._ranks.items() if self._at[who] < last]
    return _silence(min(silent), self._count, self._watch.seconds) if silent else ""

  def _tell(self, line: bytes) -> None:
    for who in self._ranks:
      try:
        who.sendall(line)
      except OSError:
        continue  # its end, or its silence, is seen when it is read


def _follow(connection: socket.socket, count: int, watch: Watch) -> str:
  """Return who is lost; "" once this process or process 0 ends in order."""
  heard, rest = time.monotonic(), b""
  with connection:
    while not watch.ending.is_set():
      try:
        connection.settimeout(EVERY)
        connection.sendall(b"\n")
        data = connection.recv(LIMIT)
      except TimeoutError:
        if time.monotonic() - heard > watch.seconds:
          return _silence(0, count, watch.seconds)
        continue
      except OSError:
        data = b""
      if not data:
        return f"process 0 of {count} has ended"
      heard = time.monotonic()
      *lines, rest = (rest + data).split(b"\n")
      if BYE.strip() in lines:
        return ""
      for line in lines:
        if "lost" in (said := said_in(line)):
          return str(said["lost"])
      watch.ending.wait(EVERY / 2)
    try:
      connection.sendall(BYE)
    except OSError:
      return ""
    return ""


def _silence(rank: int, count: int, seconds: float) -> str:
  return f"process {rank} of {count} has not been heard of for {seconds:g} s"


def _line(said: dict[str, Any]) -> bytes:
  return json.dumps(said).encode() + b"\n"


def said_in(line: bytes) -> dict[str, Any]:
  """Return what a line says; {} for a sign of life, and for what is none of ours."""
  try:
    said = json.loads(line) if line else {}
  except (ValueError, RecursionError):
    return {}
  return said if isinstance(said, dict) else {}
