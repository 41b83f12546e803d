"""The meeting of all processes before `jax.distributed`, which waits for minutes and dies with a page of C++ log.

Process 0 listens at the coordinator's address; each other one comes with a line of JSON and waits for one as answer.
When all are there, each is told so; where one is missing or wrong, each is told that instead.
"""

import socket
import time

from ddl.runtime.hosts.addresses import host_port, is_loopback, resolved, retry
from ddl.runtime.hosts.gathering import Gathering
from ddl.runtime.hosts.greetings import Met, ask

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
