"""Connections between supervisors: lines of JSON in both directions, and the orders that go over them."""

import json
import select
import socket
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

from ddl.hosts.rendezvous import resolved
from ddl.hosts.watch import EVERY, said_in

LIMIT = 2**22  # bytes of a line: a greeting has the whole config
Address = tuple[str, int]


class Order(NamedTuple):
  """What the training processes of a generation are to do."""

  generation: int
  ranks: tuple[int, ...]  # of those that are in it, rising
  stay: tuple[int, ...]  # of those that have the state of `step` in their memory
  step: int  # from which it goes on, without `stay` that of the run's folder
  resume: bool  # whether the folder has something to go on with; read without `stay` alone
  coordinator: Address  # at the first of `ranks`
  addresses: dict[int, Address]  # of the supervisors

  @classmethod
  def of(cls, said: dict[str, Any]) -> "Order":
    """Return the order that a line holds."""
    addresses = {int(rank): _address(at) for rank, at in said["addresses"].items()}
    ranks, stay = tuple(map(int, said["ranks"])), tuple(map(int, said["stay"]))
    coordinator = _address(said["coordinator"])
    return cls(int(said["generation"]), ranks, stay, int(said["step"]), bool(said["resume"]), coordinator, addresses)


class Line:
  """One connection."""

  def __init__(self, connection: socket.socket):
    """Of a socket that is connected."""
    connection.settimeout(EVERY)
    self.socket, self._rest = connection, b""
    self._unread: list[dict[str, Any]] = []
    self.heard = self._said = time.monotonic()
    self.open = True

  @property
  def host(self) -> str:
    """This end's address."""
    return str(self.socket.getsockname()[0])

  def say(self, **what: Any) -> None:
    """Send a line; one that does not go out closes the connection."""
    try:
      self.socket.sendall(json.dumps(what).encode() + b"\n" if what else b"\n")
      self._said = time.monotonic()
    except OSError:
      self.open = False

  def show(self) -> None:
    """Send a sign of life once a second."""
    if time.monotonic() - self._said >= EVERY:
      self.say()

  def hear(self) -> list[dict[str, Any]]:
    """Return what the other end has said, without waiting."""
    lines, before = list[bytes](), self._unread
    self._unread = []
    while self.open and select.select([self.socket], [], [], 0)[0]:
      try:
        data = self.socket.recv(2**16)
      except OSError:
        data = b""
      self.open = bool(data) and len(self._rest) <= LIMIT
      if data:
        self.heard = time.monotonic()
      *new, self._rest = (self._rest + data).split(b"\n")
      lines += new
    return before + [said for said in map(said_in, lines) if said]

  def wait(self, seconds: float) -> dict[str, Any] | None:
    """Return the next line, or None after so many seconds, or where the connection has ended."""
    until = time.monotonic() + seconds
    while True:
      if found := self.hear():
        self._unread = found[1:]
        return found[0]
      left = until - time.monotonic()
      if left <= 0 or not self.open:
        return None
      select.select([self.socket], [], [], left)

  def close(self) -> None:
    """End it."""
    self.open = False
    self.socket.close()


def connect(address: Address, seconds: float) -> Line:
  """Return a connection to a supervisor. OSError if nobody listens there, or nothing answers."""
  failed: OSError = OSError("it has no address")
  for family, at in resolved(*address, seconds):
    asked = socket.socket(family, socket.SOCK_STREAM)
    try:
      asked.settimeout(seconds)
      asked.connect(at)
      return Line(asked)
    except OSError as error:
      asked.close()
      failed = error
  raise failed


def listen(host: str, port: int = 0) -> socket.socket:
  """Return a socket at this address, by default at a free port. OSError if it cannot be had."""
  family, at = resolved(host, port, EVERY)[0]
  made = socket.socket(family, socket.SOCK_STREAM)
  try:
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    made.bind(at)
    made.listen(128)
    return made
  except OSError:
    made.close()
    raise


def free_port(host: str) -> int:
  """Return a port that is free at this address now."""
  with listen(host) as made:
    return int(made.getsockname()[1])


def _address(said: Sequence[Any]) -> Address:
  return str(said[0]), int(said[1])
