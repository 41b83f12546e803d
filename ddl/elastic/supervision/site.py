"""What a supervisor has whether it leads or follows: its training process, its memory, the socket where it listens."""

import contextlib
import select
import signal
import socket
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

from ddl.elastic.supervision.leader import Member
from ddl.elastic.supervision.memory import Memory
from ddl.elastic.supervision.messages import Line, Order, free_port, listen
from ddl.elastic.supervision.training_process import TrainingProcess
from ddl.hosts.process_info import ProcessInfo

TICK = 0.1  # seconds


class SupervisedJob(NamedTuple):
  """What is supervised."""

  run: Callable[[Order, Memory], int]  # in a fork: train as an order says; the exit code
  same: str  # what all processes must have in common, as text
  differs: Callable[[str, str, int, int], str]  # (what one has, what another has, its rank, the one's) -> words
  check: Callable[[], None]  # raises ValueError if a job cannot begin in its folder
  begun: Callable[[], bool]  # whether its folder has something to go on with
  file: Path  # where the supervisors note their addresses
  say: Callable[[str], None]  # tells the user
  join_timeout: float  # seconds in which all have to come
  silence: float  # seconds after which one counts as lost


class Site:
  """One process's."""

  def __init__(self, me: ProcessInfo, job: SupervisedJob):
    """Of this process."""
    self.me, self.job = me, job
    self.memory = Memory()
    self.training = TrainingProcess(self.memory)
    self.order: Order | None = None  # of the generation that it is in
    self.strangers: list[Line] = []  # connections of those that have not said who they are
    self._server: socket.socket | None = None  # at a port that no other process has had: where it is gone, so is this
    self._meeting: socket.socket | None = None  # of process 0

  def listen(self, host: str) -> None:
    """Listen at this host, unless it does at some already."""
    self._server = self._server or listen(host)

  def listen_at(self, host: str, port: int) -> None:
    """Listen also where all look for it at first, unless it does. OSError if it cannot."""
    self._meeting = self._meeting or listen(host, port)
    self.listen(str(self._meeting.getsockname()[0]))

  def hello(self, line: Line) -> dict[str, Any]:
    """Return what it says of itself over a new connection, to whose address others come."""
    self.listen(line.host)
    me = self.member()
    return {
      "rank": self.me.rank, "count": self.me.count, "same": self.job.same, "address": me.address, "free": me.free,
      "held": sorted(me.held), "generation": self.order.generation if self.order else -1,
    }  # fmt: skip

  def member(self) -> Member:
    """Return it as a member."""
    assert self._server
    host, port = self._server.getsockname()[:2]
    return Member((str(host), int(port)), free_port(str(host)), self.memory.held())

  def wait(self, lines: Iterable[Line]) -> None:
    """Wait a moment for anything to be heard, and accept who comes."""
    sockets = [each.socket for each in (*self.strangers, *lines) if each.open]
    servers = [each for each in (self._server, self._meeting) if each]
    ready, _, _ = select.select([*sockets, *servers], [], [], TICK)
    for server in servers:
      if server in ready:
        with contextlib.suppress(OSError):
          self.strangers.append(Line(server.accept()[0]))

  def start(self, order: Order, lines: Iterable[Line]) -> None:
    """Train as an order says. lines: that are not the training process's."""
    self.training.kill()
    if self.me.rank in order.stay:
      self.memory.forget_after(order.step)
    else:
      self.memory.clear()
    self.order = order

    def run() -> int:
      for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_DFL)
      self.close(lines)  # so that the supervisor's end is seen by the others
      return self.job.run(order, self.memory)

    self.training.start(run)

  def ended(self) -> int | None:
    """Return the exit code of a training process that has ended, once, or that is silent, which ends it."""
    if self.training.runs and self.memory.silence() > self.job.silence:
      self.training.kill()
      return -signal.SIGKILL
    return self.training.ended()

  def close(self, lines: Iterable[Line] = ()) -> None:
    """Close all connections."""
    for each in (*self.strangers, *lines):
      each.close()
    for server in (self._server, self._meeting):
      if server:
        server.close()
