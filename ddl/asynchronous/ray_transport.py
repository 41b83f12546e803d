"""Arrays on a socket between a worker and the master's shards: fixed sizes, no pickling, no copy on the way out."""

import hmac
import itertools
import socket
import threading
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import jax
import numpy as np

from ddl.api import Tree
from ddl.errors import OptionError

VISIT, ASK, READ = range(3)  # serve a message; wait for the next round; read the center
GO, STOP, DIVERGED, OLD = range(4)  # make another round; that was the last; not finite, nothing was served; go, but
# the last reply is old by now
REQUEST = np.dtype(
  [("what", "<i4"), ("worker", "<i4"), ("round", "<i4"), ("peer", "<i4"), ("start", "<f8"), ("released", "<f8")]
)  # start, released: seconds since the epoch, by the worker's clock
REPLY = np.dtype([("status", "<i4"), ("visit", "<i4")])
SECONDS = 10.0  # that a connection may take


def cut(size: int, shards: int) -> list[slice]:
  """`shards` runs of the flat vector, equal to one element. ValueError if there are more shards than elements."""
  if not 1 <= shards <= size:
    raise OptionError("shards", f"in [1, {size}], the number of parameters", shards)
  ends = [size * k // shards for k in range(shards + 1)]
  return [slice(a, b) for a, b in itertools.pairwise(ends)]


def buffers(like: Tree) -> list[np.ndarray]:
  """Room for the leaves."""
  return [np.empty(x.shape, x.dtype) for x in jax.tree.leaves(like)]


def send(connection: socket.socket, arrays: Sequence[np.ndarray]) -> None:
  """All bytes of contiguous arrays, in order, gathered by the kernel."""
  views = [_bytes(x) for x in arrays if x.nbytes]
  while views:
    sent = connection.sendmsg(views)
    while views and sent >= len(views[0]):
      sent -= len(views.pop(0))
    if sent:
      views[0] = views[0][sent:]


def receive(connection: socket.socket, arrays: Sequence[np.ndarray]) -> None:
  """Fills contiguous arrays, in order. ConnectionError where the other side is gone."""
  for x in arrays:
    view = _bytes(x) if x.nbytes else memoryview(b"")
    while view:
      count = connection.recv_into(view)
      if not count:
        raise ConnectionError("the other side is gone")
      view = view[count:]


def listen(host: str) -> socket.socket:
  """A listening socket at a free port of this address."""
  return socket.create_server((host, 0), backlog=128)


def connect(address: tuple[str, int], token: bytes) -> socket.socket:
  """A connection that has shown the token."""
  connection = socket.create_connection(address, timeout=SECONDS)
  connection.sendall(token)
  connection.settimeout(None)
  return _tune(connection)


def may_join(connection: socket.socket, token: bytes) -> bool:
  """Whether the other side shows the token in time."""
  shown = np.empty(len(token), np.uint8)
  connection.settimeout(SECONDS)
  try:
    receive(connection, [shown])
  except OSError:
    return False
  connection.settimeout(None)
  _tune(connection)
  return hmac.compare_digest(shown.tobytes(), token)


def _tune(connection: socket.socket) -> socket.socket:
  connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
  connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)  # a host that loses power says nothing
  return connection


def _bytes(array: np.ndarray) -> memoryview:
  return array.reshape(-1).view(np.uint8).data


def admit(listener: Any, shard: Any, token: bytes) -> None:
  """Talks to all who come, for ever. shard: a `master.Shard`."""
  while True:
    connection, _ = listener.accept()
    threading.Thread(target=_talk, args=(connection, shard, token), daemon=True).start()


def _talk(connection: Any, shard: Any, token: bytes) -> None:
  """Serves one worker until it is gone: what it has not sent to the end was never sent."""
  header, answer = np.zeros(1, REQUEST), np.zeros(1, REPLY)
  losses = np.zeros(shard.algorithm.period, np.float32)
  extra = buffers(shard.state.extra)
  with connection, suppress(OSError):
    if not may_join(connection, token):
      return
    while True:
      receive(connection, [header])
      asked, reply = header[0], []
      if asked["what"] == ASK:
        answer["status"] = OLD if shard.wait_for_round(int(asked["worker"])) else GO
      elif asked["what"] == READ:
        reply = shard.told(asked)
      else:
        message = buffers(shard.state.like.message)  # new ones: JAX may go on with their memory
        receive(connection, [losses, *extra, *message] if shard.index == 0 else [losses, *message])
        arrival = shard.record.now()
        with shard.changed:
          reply = shard.visited(asked, arrival, losses, extra, message, answer)
      send(connection, [answer, *reply])
