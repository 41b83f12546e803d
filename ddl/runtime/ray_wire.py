"""Arrays on a socket between a worker and the master's shards: fixed sizes, no pickling, no copy on the way out."""

import hmac
import itertools
import socket
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.flatten_util import ravel_pytree

from ddl.api import ServerAlgorithm, Tree

VISIT, ASK, READ = range(3)  # a message to serve; may my turn begin; what the center is by now
GO, STOP, DIVERGED, OLD = range(4)  # make another turn; that was your last; not finite, nothing was served; go, but
# what you were told is old by now
REQUEST = np.dtype(
  [("what", "<i4"), ("worker", "<i4"), ("turn", "<i4"), ("peer", "<i4"), ("start", "<f8"), ("released", "<f8")]
)  # start, released: seconds since the epoch, by the worker's clock
REPLY = np.dtype([("status", "<i4"), ("visit", "<i4")])
SECONDS = 10.0  # that a connection may take


class Traffic(NamedTuple):
  """What a visit sends and is told, as trees of shapes whose parameters are one flat vector [size]."""

  message: Tree
  reply: Tree
  server: Tree


def cut(size: int, shards: int) -> list[slice]:
  """`shards` runs of the flat vector, equal to one element. ValueError if there are more shards than elements."""
  if not 1 <= shards <= size:
    raise ValueError(f"shards is {shards}; a model of {size} parameters can be cut into 1 to {size}")
  ends = [size * k // shards for k in range(shards + 1)]
  return [slice(a, b) for a, b in itertools.pairwise(ends)]


def flatten(params: Tree) -> tuple[np.ndarray, Callable[[Any], Tree]]:
  """The parameters as one vector [size], and the inverse. ValueError if they are of several types."""
  kinds = sorted({str(x.dtype) for x in jax.tree.leaves(params)})
  if len(kinds) != 1:
    raise ValueError(f"a sharded master needs parameters of one type; these are {', '.join(kinds) or 'empty'}")
  flat, unravel = ravel_pytree(params)
  return np.asarray(flat), unravel


def traffic(algorithm: ServerAlgorithm, size: int, dtype: Any) -> Traffic:
  """The shapes for parameters that are one vector of this size."""
  flat = jax.ShapeDtypeStruct((size,), dtype)
  state, server, reply = jax.eval_shape(algorithm.init, flat)
  return Traffic(jax.eval_shape(algorithm.request, state, flat), reply, server)


def pack(tree: Tree, like: Tree, size: int) -> list[Any]:
  """The leaves of `like`: subtrees of `tree` that are like the parameters as vectors, other leaves as they are."""
  return jax.tree.leaves(
    jax.tree.map(lambda one, part: ravel_pytree(part)[0] if one.shape == (size,) else part, like, tree)
  )


def unpack(leaves: Sequence[Any], like: Tree, size: int, unravel: Callable[[Any], Tree]) -> Tree:
  """The inverse of `pack`."""
  parts = [unravel(x) if one.shape == (size,) else x for one, x in zip(jax.tree.leaves(like), leaves, strict=True)]
  return jax.tree.unflatten(jax.tree.structure(like), parts)


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


def admit(connection: socket.socket, token: bytes) -> bool:
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
