"""The Ray actor in which one process of an elastic job trains, for one membership."""

import os
import select
import signal
import socket
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from ddl import hosts
from ddl.elastic.keeper import ProcessGroup

HEARTBEAT = 0.5  # seconds between heartbeats of a process, and between reports of a keeper


class TrainingProcess:
  """A Ray actor that runs one process of an elastic job for one membership (see `ProcessGroup`)."""

  def __init__(self, run: Callable[[ProcessGroup], Any]):
    """Set the training function. Ray unpickles it, and so imports its modules, before the membership begins."""
    self._run = run

  def node(self) -> str:
    """Return the ID of this actor's node."""
    import ray

    return ray.get_runtime_context().get_node_id()

  def address(self) -> str:
    """Return a free address on this node for the coordinator of `jax.distributed`."""
    import ray

    with socket.socket() as server:
      server.bind(("", 0))
      return f"{ray.util.get_node_ip_address()}:{server.getsockname()[1]}"

  def train(self, membership: ProcessGroup) -> Any:
    """Run the training function and return its result.

    SIGTERM ends this process at once, unless the driver is stopping the whole job.
    """
    import ray

    (signals, wakeup), (printed, stdout) = os.pipe(), os.pipe()
    for pipe in (signals, wakeup, printed):
      os.set_blocking(pipe, False)
    signal.set_wakeup_fd(wakeup)  # receives each signal, independently of its handler
    first, stopping, lock = membership.ranks[0] == membership.rank, threading.Event(), threading.Lock()
    if first:
      os.dup2(stdout, 1)
      sys.stdout = os.fdopen(os.dup(1), "w", buffering=1)

    def heartbeat() -> None:
      with lock:
        text = _read(printed).decode(errors="replace")
        number: Any = ray.get(membership.keeper.heartbeat.remote(membership.number, membership.rank, os.getpid(), text))
      if number and not stopping.is_set():
        stopping.set()
        os.kill(os.getpid(), number)

    def repeat() -> None:
      with suppress(Exception):  # the keeper failed; the state of this process is lost
        while signal.SIGTERM not in _read(signals) or stopping.is_set():
          heartbeat()
          select.select([signals], [], [], HEARTBEAT)
      os._exit(1)

    threading.Thread(target=repeat, daemon=True).start()
    try:
      if len(membership.ranks) > 1:
        hosts.declare(membership.coordinator, len(membership.ranks), membership.ranks.index(membership.rank))
      return self._run(membership)
    except KeyboardInterrupt as error:
      raise RuntimeError("stopped before the first step") from error
    finally:
      sys.stdout.flush()
      heartbeat()


def _read(pipe: int) -> bytes:
  try:
    return os.read(pipe, 2**16)
  except BlockingIOError:
    return b""
