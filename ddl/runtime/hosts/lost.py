"""The end of a process because another one of its group is lost: one line, whatever it waits for."""

import atexit
import os
import secrets
import threading
from collections.abc import Callable

from jax._src import distributed  # its key-value store has no public name

from ddl.runtime.hosts import watch
from ddl.runtime.hosts.terminal import tell

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
    server, secret = watch.listen(address), secrets.token_hex(16)
    store.key_value_set(KEY, f"{server.getsockname()[1]} {secret}")
    made = watch.serve(server, count, secret, seconds, _hear)
  else:
    port, secret = store.blocking_key_value_get(KEY, int(1000 * seconds)).split()
    host = str(group.coordinator_address).rpartition(":")[0].strip("[]")
    made = watch.join((host, int(port)), rank, count, secret, seconds, _hear)
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
