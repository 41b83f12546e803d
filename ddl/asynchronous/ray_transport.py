"""Send arrays of fixed sizes between workers and shards over sockets, without pickling or copying."""

import hmac
import io
import itertools
import socket
import threading
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import jax
import numpy as np

from ddl.api import ServerAlgorithm, Tree
from ddl.asynchronous.flat_params import leading_axes, visit_trees
from ddl.errors import OptionError

# Requests to a shard. VISIT: serve a message; ASK: reply once the next round may start; READ: read the center.
VISIT, ASK, READ = range(3)
# Status in a shard's reply. GO: start a round; STOP: run no further round; DIVERGED: a message, a reply or the
# center is not finite; OLD: start a round, but the last reply is outdated.
GO, STOP, DIVERGED, OLD = range(4)
REQUEST = np.dtype(
  [("what", "<i4"), ("worker", "<i4"), ("round", "<i4"), ("peer", "<i4"), ("start", "<f8"), ("released", "<f8")]
)  # start, released: seconds since the epoch on the worker's clock
SECONDS = 10.0  # connection timeout


def cut(size: int, shards: int) -> list[slice]:
  """Split a vector of `size` elements into one slice per shard; the slices' sizes differ by at most one.

  Raises OptionError unless 1 <= shards <= size.
  """
  if not 1 <= shards <= size:
    raise OptionError("shards", f"from 1 to {size} (the number of parameters)", shards)
  ends = [size * k // shards for k in range(shards + 1)]
  return [slice(a, b) for a, b in itertools.pairwise(ends)]


class ShardConnections:
  """A worker's connections to the shards."""

  def __init__(self, algorithm: ServerAlgorithm, size: int, dtype: Any, addresses: list[tuple[str, int]], token: bytes):
    """Connect to the shards. size: number of parameters; token: authenticates the worker."""
    leads = leading_axes(algorithm, size, dtype)
    self._is_cut, self._is_cut_reply = (
      [lead == 0 for lead in jax.tree.leaves(x)] for x in (leads.message, leads.reply)
    )
    self._reply, self._status = visit_trees(algorithm, size, dtype).reply, np.zeros(1, "<i4")
    self._shards = list[tuple[io.BufferedRWPair, slice]]()
    for address, part in zip(addresses, cut(size, len(addresses)), strict=True):
      connection = socket.create_connection(address, timeout=SECONDS)
      connection.sendall(token)
      connection.settimeout(None)
      self._shards.append((_stream(connection), part))

  def visit(self, header: np.ndarray, losses: np.ndarray, extra: list[Any], message: list[Any]) -> tuple[int, Tree]:
    """Send each shard its slice of a message; return (status, reply) once all shards have served it.

    All shards receive the header and the losses; only the first one receives the worker's non-trained state `extra`.
    """
    extra, leaves = [np.asarray(x) for x in extra], [np.asarray(x) for x in message]
    for k, (stream, part) in enumerate(self._shards):
      parts = [x[part] if is_cut else x for x, is_cut in zip(leaves, self._is_cut, strict=True)]
      _send(stream, [header, losses, *(extra if k == 0 else ()), *parts])
    return self._replies()

  def ask(self, header: np.ndarray) -> bool:
    """Wait until the first shard admits the worker's next round; return whether the last reply may be outdated."""
    stream, _ = self._shards[0]
    _send(stream, [header])
    _receive(stream, [self._status])
    return len(self._shards) > 1 or int(self._status[0]) == OLD  # a shard only knows its own visits

  def read(self, header: np.ndarray) -> Tree:
    """Return the reply to the worker's last visit, updated by all shards."""
    for stream, _ in self._shards:
      _send(stream, [header])
    return self._replies()[1]

  def _replies(self) -> tuple[int, Tree]:
    statuses, whole = [], _buffers(self._reply)  # new buffers, as JAX may alias them
    for stream, part in self._shards:
      _receive(stream, [self._status, *(x[part] if c else x for x, c in zip(whole, self._is_cut_reply, strict=True))])
      statuses.append(int(self._status[0]))
    status = DIVERGED if DIVERGED in statuses else statuses[0]
    return status, jax.tree.unflatten(jax.tree.structure(self._reply), whole)


def listen(host: str, shard: Any, token: bytes) -> tuple[str, int]:
  """Start serving the workers that connect, in one thread each; return the address to connect to.

  shard: a `ray_master.Shard`; token: workers must send it first.
  """
  listener = socket.create_server((host, 0), backlog=128)

  def accept() -> None:
    while True:
      connection, _ = listener.accept()
      threading.Thread(target=_serve, args=(connection, shard, token), daemon=True).start()

  threading.Thread(target=accept, daemon=True).start()
  return listener.getsockname()


def _serve(connection: socket.socket, shard: Any, token: bytes) -> None:
  """Serve one worker until it closes the connection; ignore incomplete messages and clients without the token."""
  header, status = np.zeros(1, REQUEST), np.zeros(1, "<i4")
  losses, shown = np.zeros(shard.algorithm.period, np.float32), np.empty(len(token), np.uint8)
  connection.settimeout(SECONDS)
  with connection, suppress(OSError):
    stream, extra = _stream(connection), _buffers(shard.state.extra)
    _receive(stream, [shown])
    if not hmac.compare_digest(shown.tobytes(), token):
      return
    connection.settimeout(None)
    while True:
      _receive(stream, [header])
      request, reply = header[0], []
      if request["what"] == ASK:
        status[:] = OLD if shard.wait_for_round(int(request["worker"])) else GO
      elif request["what"] == READ:
        reply = shard.read(request)
      else:
        message = _buffers(shard.state.like.message)  # new buffers, as JAX may alias them
        _receive(stream, [losses, *extra, *message] if shard.index == 0 else [losses, *message])
        arrival = shard.record.now()
        with shard.changed:
          status[:], reply = shard.visited(request, arrival, losses, extra, message)
      _send(stream, [status, *reply])


def _stream(connection: socket.socket) -> io.BufferedRWPair:
  """Return a buffered stream over a connection; large reads and writes bypass its buffer."""
  connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
  connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)  # detects a host that lost power
  return connection.makefile("rwb")


def _buffers(like: Tree) -> list[np.ndarray]:
  return [np.empty(x.shape, x.dtype) for x in jax.tree.leaves(like)]


def _send(stream: io.BufferedRWPair, arrays: Sequence[np.ndarray]) -> None:
  """Write all bytes of contiguous arrays, in order."""
  for x in arrays:
    stream.write(x.reshape(-1).view(np.uint8).data)
  stream.flush()


def _receive(stream: Any, arrays: Sequence[np.ndarray]) -> None:
  """Read into contiguous arrays, in order. Raises ConnectionError if the connection is closed."""
  for x in arrays:
    if stream.readinto(x.reshape(-1).view(np.uint8).data) < x.nbytes:
      raise ConnectionError("the connection is closed")
