"""What processes that meet say: a line of JSON from each to process 0, and one from it to each."""

import json
import socket
from typing import Any, NamedTuple

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
