"""A shard's side of its sockets: one thread for each worker that is connected."""

import threading
from contextlib import suppress
from typing import Any

import numpy as np

from ddl.runtime.ray_ps import transport as wire


def admit(listener: Any, shard: Any, token: bytes) -> None:
  """Talks to all who come, for ever. shard: a `master.Shard`."""
  while True:
    connection, _ = listener.accept()
    threading.Thread(target=_talk, args=(connection, shard, token), daemon=True).start()


def _talk(connection: Any, shard: Any, token: bytes) -> None:
  """Serves one worker until it is gone: what it has not sent to the end was never sent."""
  header, answer = np.zeros(1, wire.REQUEST), np.zeros(1, wire.REPLY)
  losses = np.zeros(shard.algorithm.period, np.float32)
  extra = wire.buffers(shard.state.extra)
  with connection, suppress(OSError):
    if not wire.admit(connection, token):
      return
    while True:
      wire.receive(connection, [header])
      asked, reply = header[0], []
      if asked["what"] == wire.ASK:
        answer["status"] = wire.OLD if shard.wait_for_round(int(asked["worker"])) else wire.GO
      elif asked["what"] == wire.READ:
        reply = shard.told(asked)
      else:
        message = wire.buffers(shard.state.like.message)  # new ones: JAX may go on with their memory
        wire.receive(connection, [losses, *extra, *message] if shard.index == 0 else [losses, *message])
        arrival = shard.record.now()
        with shard.changed:
          reply = shard.visited(asked, arrival, losses, extra, message, answer)
      wire.send(connection, [answer, *reply])
