"""How supervisors find each other: at the coordinator's address, or where the job's folder says that they are."""

import contextlib
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from ddl.elastic.supervision.messages import Address, Line, connect

ANSWER = 5.0  # seconds in which a supervisor that leads answers
CONNECT = 2.0  # seconds in which one that is there takes a connection
PAUSE = 0.2  # seconds between two attempts

Hello = Callable[[Line], dict[str, Any]]  # what a supervisor says of itself over a new connection


class Found(NamedTuple):
  """A connection to the one that leads."""

  line: Line
  rank: int  # its own


def note(file: Path, addresses: dict[int, Address]) -> None:
  """Write where the supervisors are, for those that come back."""
  with contextlib.suppress(OSError):  # a full disk: they are found at the coordinator's address alone
    file.parent.mkdir(parents=True, exist_ok=True)
    new = file.with_name(f".{file.name}-{os.getpid()}")
    new.write_text(json.dumps({str(rank): at for rank, at in addresses.items()}) + "\n")
    new.replace(file)


def noted(file: Path, me: int) -> list[Address]:
  """Return where the file says that others are; [] without one that can be read."""
  try:
    found: Any = json.loads(file.read_text())
    return [(str(host), int(port)) for rank, (host, port) in found.items() if int(rank) != me]
  except (OSError, ValueError, TypeError, AttributeError):
    return []


def greet(address: Address, hello: Hello, seconds: float = ANSWER) -> Found | None:
  """Return a connection to the one that leads, as the supervisor at this address says; None without an answer.

  Raises:
    ConnectionRefusedError: if nobody listens there.
    ValueError: if it refuses this one.
  """
  try:
    line = connect(address, min(CONNECT, seconds))
  except ConnectionRefusedError:
    raise
  except OSError:
    return None
  line.say(**hello(line))
  said = line.wait(seconds) or {}
  if "refused" in said:
    line.close()
    raise ValueError(str(said["refused"]))
  if "welcome" in said:
    return Found(line, int(said["welcome"]))
  line.close()
  if "leader" in said:
    with contextlib.suppress(ConnectionRefusedError):  # it has ended, which that one has yet to notice
      return greet((str(said["leader"][0]), int(said["leader"][1])), hello, seconds)
  return None


def greet_until(address: Address, hello: Hello, seconds: float) -> Found | None:
  """Do the same until there is an answer, for so many seconds at most. Raises the same."""
  until = time.monotonic() + seconds
  while (left := until - time.monotonic()) > 0:
    if found := greet(address, hello, left):
      return found
    time.sleep(PAUSE)
  return None


def is_there(address: Address) -> bool | None:
  """Return whether a supervisor listens at an address; None where nothing answers."""
  try:
    line = connect(address, CONNECT)
    line.wait(PAUSE)
    there = line.open  # else it was a socket that has outlived it, in a fork about to close it
    line.close()
    return there
  except ConnectionRefusedError:
    return False
  except OSError:
    return None


class Deposed:
  """That the others have gone on without this one, or one that has no part yet has lost the one that led."""


DEPOSED = Deposed()
