"""The rendezvous of all processes before `jax.distributed`: addresses, and one line of JSON from each to process 0.

The meeting of all processes before `jax.distributed`, which waits for minutes and dies with a page of C++ log.
Process 0 listens at the coordinator's address; each other one comes with a line of JSON and waits for one as answer.
When all are there, each is told so; where one is missing or wrong, each is told that instead.
"""

import errno
import ipaddress
import json
import selectors
import socket
import threading
import time
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

T = TypeVar("T")
PAUSE = 0.2  # seconds between two attempts


def host_port(host: str, port: int) -> str:
  """Return HOST:PORT, with an IPv6 address in brackets."""
  return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def retry(attempt: Callable[[float], T], until: float, failed: Callable[[str], str]) -> T:
  """Return what the attempt, which is told the seconds left, returns once it raises no OSError.

  Raises:
    ValueError: at the time `until`, with the words that `failed` has for the last reason.
  """
  while True:
    try:
      return attempt(max(until - time.monotonic(), 0.1))
    except OSError as error:
      why = _reason(error)
    if time.monotonic() + PAUSE > until:
      raise ValueError(failed(why))
    time.sleep(PAUSE)


def _reason(error: OSError) -> str:
  if isinstance(error, socket.gaierror):
    return "unknown host"
  if isinstance(error, TimeoutError):
    return "no answer"
  return (error.strerror or str(error)).lower()


def resolved(host: str, port: int, seconds: float) -> list[tuple[int, Any]]:
  """Return families and addresses of a host, IPv4 first. Raises OSError, after `seconds` if no name server answers."""
  found: list[Any] = [TimeoutError()]

  def look_up() -> None:
    try:
      found[0] = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
      found[0] = error if isinstance(error, OSError) else socket.gaierror()

  thread = threading.Thread(target=look_up, daemon=True)
  thread.start()
  thread.join(seconds)
  if isinstance(found[0], OSError):
    raise found[0]
  # All hosts take the same address first, even where one has no IPv6: process 0 listens at one alone.
  return sorted(((family, address) for family, _, _, _, address in found[0]), key=lambda at: at[0] != socket.AF_INET)


def is_loopback(host: str) -> bool:
  """Return whether this name or address is this machine's alone."""
  try:
    return host == "localhost" or ipaddress.ip_address(host).is_loopback
  except ValueError:
    return False


LIMIT = 4096  # bytes of a line: strangers may send anything


class Met(NamedTuple):
  """What a process knows of the network once all have met."""

  coordinator: str  # HOST:PORT by which all reach process 0, HOST a number
  address: str  # by which this process is reached


def ask(asked: socket.socket, rank: int, count: int, seconds: float) -> dict[str, Any]:
  """Say who is there, and return the answer: "coordinator", or "error". Raises OSError if none comes in `seconds`."""
  asked.sendall(json.dumps({"rank": rank, "count": count, "seconds": seconds}).encode() + b"\n")
  asked.settimeout(max(seconds, 0.1) + 1.0)  # process 0 answers when the time is up
  heard = b""
  while b"\n" not in heard and len(heard) <= LIMIT:
    data = asked.recv(LIMIT)
    if not data:
      raise OSError("it has ended" if not heard else "something else answers there")
    heard += data
  said = parsed(heard.partition(b"\n")[0])
  if not {"error", "coordinator"} & said.keys():
    raise OSError("something else answers there")
  return said


def parsed(line: bytes) -> dict[str, Any]:
  """Return what a process said; {} if that is none of ours."""
  types = {"rank": int, "count": int, "seconds": (int, float), "error": str, "coordinator": str}
  try:
    said = json.loads(line)
  except (ValueError, RecursionError):
    return {}
  if not isinstance(said, dict) or any(
    type(said[key]) is bool or not isinstance(said[key], kind) for key, kind in types.items() if key in said
  ):
    return {}
  return said if "rank" not in said or types.keys() >= said.keys() >= {"count", "seconds"} else {}


class Gathering:
  """One meeting."""

  def __init__(self, count: int, host: str, port: int, seconds: float):
    """host, port: of process 0, as all were told; seconds: that it waits."""
    self._count, self._where, self._port = count, host_port(host, port), port
    self._seconds = seconds  # the fewest that any process gave, for the words
    self._name = host
    self._present: dict[int, socket.socket] = {}
    self._heard: dict[socket.socket, bytes] = {}
    self._select = selectors.DefaultSelector()

  def meet(self, until: float) -> Met:
    """Listen, and answer all at once."""
    with self._select, self.listen(until) as server:
      server.setblocking(False)
      self._select.register(server, selectors.EVENT_READ)
      try:
        while len(self._present) < self._count - 1:
          left = until - time.monotonic()
          if left <= 0:
            raise ValueError(self._missing())
          for key, _ in self._select.select(left):
            if key.fileobj is server:
              self._accept(server)
            else:
              until = min(until, self._hear(key.fileobj))  # type: ignore[arg-type]
        return self._all_there()
      except ValueError as error:
        self._answer({"error": str(error)})
        raise
      finally:
        for each in self._heard:
          each.close()

  def listen(self, until: float) -> socket.socket:
    """Return process 0's socket at the coordinator's address. ValueError if it cannot have that."""
    addresses = retry(lambda left: resolved(self._name, self._port, left), until, self._unreached)
    if not is_loopback(self._name) and all(is_loopback(str(at[0])) for _, at in addresses):
      # A host that has its own name at loopback cannot know at which of its addresses others look for it.
      addresses = [(socket.AF_INET, ("0.0.0.0", self._port))]
    wrong: OSError | None = None
    for family, address in addresses:
      server = socket.socket(family, socket.SOCK_STREAM)
      try:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # though a run has just ended here
        server.bind(address)
        server.listen(128)
        return server
      except OSError as error:
        server.close()
        wrong = error
        if error.errno == errno.EADDRINUSE:
          self._second(family, address)
    if wrong and wrong.errno == errno.EADDRNOTAVAIL:
      raise ValueError(
        f"{self._name} is not an address of this host; coordinator={self._where} must name the host of process 0"
      )
    raise ValueError(f"process 0 cannot listen at {self._where}: {str(wrong and wrong.strerror).lower()}")

  def _second(self, family: int, address: Any) -> None:
    """Raise what the owner of the port says, if that is a process 0 too; else that the port is in use."""
    told = f"port {self._port} is in use at {self._where}; choose another one in coordinator"
    try:
      with socket.socket(family, socket.SOCK_STREAM) as asked:
        asked.settimeout(1.0)
        asked.connect(address)
        said = ask(asked, 0, self._count, 1.0)
    except (OSError, ValueError):
      said = {}
    raise ValueError(said.get("error") or told)

  def _accept(self, server: socket.socket) -> None:
    try:
      new, _ = server.accept()
    except OSError:
      return
    new.setblocking(False)
    self._heard[new] = b""
    self._select.register(new, selectors.EVENT_READ)

  def _hear(self, who: socket.socket) -> float:
    """Read what is there, and return when its sender's time is up. ValueError for one that contradicts the others."""
    try:
      data = who.recv(LIMIT)
    except OSError:
      data = b""
    if who in self._present.values() and data:  # it has said all
      return float("inf")
    self._heard[who] += data
    line, newline, _ = self._heard[who].partition(b"\n")
    hello = parsed(line) if newline else {}
    if not data or len(self._heard[who]) > LIMIT or (newline and "rank" not in hello):  # it has ended, or is a stranger
      self._present = {rank: each for rank, each in self._present.items() if each is not who}
      self._select.unregister(who)
      del self._heard[who]
      who.close()
      return float("inf")
    if not newline:
      return float("inf")
    rank, count, seconds = hello["rank"], hello["count"], hello["seconds"]
    if count != self._count:
      raise ValueError(f"process {rank} has num_processes={count}, and process 0 has num_processes={self._count}")
    if rank in self._present or not 0 < rank < count:
      raise ValueError(f"two processes have process_id={rank}; each needs its own, from 0 to {count - 1}")
    self._present[rank] = who
    self._seconds = min(self._seconds, seconds)
    return time.monotonic() + seconds

  def _all_there(self) -> Met:
    own = [str(each.getsockname()[0]) for each in self._present.values()]
    reached = next((each for each in own if not is_loopback(each)), own[0])
    # At a port of its own: that of an earlier run may be there for some seconds (`join._Service`).
    with socket.create_server((reached, 0), family=socket.AF_INET6 if ":" in reached else socket.AF_INET) as free:
      coordinator = host_port(reached, free.getsockname()[1])
    self._answer({"coordinator": coordinator})
    return Met(coordinator, reached)

  def _answer(self, told: dict[str, Any]) -> None:
    for each in self._heard:
      try:
        each.sendall(json.dumps(told).encode() + b"\n")
      except OSError:
        continue  # it has ended

  def _missing(self) -> str:
    missing = [rank for rank in range(1, self._count) if rank not in self._present]
    shown = ", ".join(map(str, missing[:8])) + f" and {len(missing) - 8} more" * (len(missing) > 8)
    what = f"process {shown} of {self._count} has" if len(missing) == 1 else f"processes {shown} of {self._count} have"
    return f"{what} not come to {self._where} within {self._seconds:.0f} s; start all, or wait longer with join_timeout"

  def _unreached(self, why: str) -> str:
    return f"process 0 cannot listen at {self._where}: {why}; coordinator must name its own host"


CONNECT = 5.0  # seconds of one attempt


def meet(rank: int, count: int, host: str, port: int, seconds: float) -> Met:
  """Wait until all processes of the group are there.

  Raises:
    ValueError: in all that came, with one line: who is missing after `seconds` (the fewest that any process gave), or
      which of them contradict each other; or why process 0 cannot listen, or was not reached.
  """
  until = time.monotonic() + seconds
  return Gathering(count, host, port, seconds).meet(until) if rank == 0 else _come(rank, count, host, port, seconds)


def _come(rank: int, count: int, host: str, port: int, seconds: float) -> Met:
  until = time.monotonic() + seconds

  def attempt(left: float) -> Met:
    failed = OSError("it has no address")
    for family, address in resolved(host, port, left):
      try:
        with socket.socket(family, socket.SOCK_STREAM) as asked:
          asked.settimeout(min(left, CONNECT))
          asked.connect(address)
          said = ask(asked, rank, count, until - time.monotonic())
          mine = str(asked.getsockname()[0])
      except OSError as error:
        failed = error
        continue
      if "error" in said:
        raise ValueError(said["error"])
      public = said["coordinator"].rpartition(":")[0].strip("[]")
      # On the host of process 0 it may have come by loopback, where processes of other hosts do not find it.
      return Met(said["coordinator"], public if is_loopback(mine) else mine)
    raise failed

  where = f"process 0 was not reached at {host_port(host, port)} within {seconds:g} s"
  return retry(attempt, until, lambda why: f"{where}: {why}; is it running there?")
