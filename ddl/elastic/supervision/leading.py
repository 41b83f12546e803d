"""A supervisor that leads: it hears the others, and carries out what `Leader` decides."""

import socket
import time
from typing import Any

from ddl.elastic.supervision import meeting
from ddl.elastic.supervision.leader import Decision, End, Halt, Leader, Member, Stop
from ddl.elastic.supervision.messages import Line, Order
from ddl.elastic.supervision.site import Site
from ddl.hosts.process_info import whence

SETTLED = 1.0  # seconds in which all that are asked to end together have said so
LEFT = 2.0  # seconds in which the others have read that the job is over
ALIVE = 3.0  # seconds of silence of a process whose number another one cannot have


class Leading:
  """The role."""

  def __init__(self, site: Site, leader: Leader, seconds: float):
    """seconds: in which those that the leader expects have to come."""
    self._site, self._leader, self._until = site, leader, time.monotonic() + seconds
    self._lines: dict[int, Line] = {}
    self._asked = 0.0  # when one was asked to leave
    self._stopped = 0.0  # when the first has stopped; 0: none, or all
    leader.come(site.me.rank, site.member())

  @property
  def lines(self) -> list[Line]:
    """The connections to the others."""
    return [*self._lines.values()]

  def ended(self, code: int) -> None:
    """Of this process's training."""
    assert self._site.order
    self._leader.ended(self._site.me.rank, self._site.order.generation, code)

  def leave(self, number: int) -> None:
    """Of a signal to this process."""
    self._leader.leave(self._site.me.rank, number)
    self._asked = time.monotonic()

  def turn(self, paused: bool) -> "int | meeting.Deposed | None":
    """Look after everything once; return the exit code at the end. paused: whether this process was stopped lately.

    Raises ValueError, with one line, if not all come to a new job.
    """
    for rank, line in [*self._lines.items()]:
      line.show()
      for said in line.hear():
        self._hear(rank, said)
      quiet = time.monotonic() - line.heard
      if line.open and quiet <= self._site.job.silence:
        continue
      if paused:  # the others have gone on without this one
        return meeting.DEPOSED
      line.close()
      del self._lines[rank]
      self._leader.gone(rank, self._words(quiet), quiet > self._site.job.silence / 2)
    self._welcome()
    if self._leader.expected and time.monotonic() > self._until:
      self._missing()
    held, order = self._site.memory.held(), self._leader.order
    progressed = bool(order and held and held[-1] > order.step)
    whole = self._leader.whole
    now = time.monotonic()
    self._stopped = (self._stopped or now) if self._leader.partly_stopped else 0.0
    overdue = self._stopped > 0 and now - self._stopped > self._site.job.silence
    decisions = self._leader.decide(now - self._asked > SETTLED, progressed, overdue)
    if self._leader.whole and not whole:
      self._until = time.monotonic() + self._site.job.join_timeout
    for decision in decisions:
      code = self._carry_out(decision)
      if code is not None:
        return code
    return None

  def _hear(self, rank: int, said: dict[str, Any]) -> None:
    if "halted" in said:
      self._leader.halted(rank, said["halted"], said["held"], said["free"])
    if "ended" in said:
      self._leader.ended(rank, said["generation"], said["ended"])
    if "leave" in said:
      self._leader.leave(rank, said["leave"])
      self._asked = time.monotonic()

  def _words(self, quiet: float) -> str:
    silence = self._site.job.silence
    return f"has not been heard of for {silence:g} s" if quiet > silence else "has ended"

  def _welcome(self) -> None:
    """Hear who has come."""
    left: list[Line] = []
    for line in self._site.strangers:
      hello = next((said for said in line.hear() if {"rank", "same", "address", "generation"} <= said.keys()), None)
      if hello:
        self._greeted(line, hello)
      elif line.open:
        left.append(line)
    self._site.strangers = left

  def _greeted(self, line: Line, hello: dict[str, Any]) -> None:
    before = self._leader.order
    try:
      rank, (host, port), free = int(hello["rank"]), hello["address"], int(hello["free"])
      address, held = (str(host), int(port)), [int(step) for step in hello["held"]]
    except (KeyError, TypeError, ValueError):  # a stranger
      line.close()
      return
    if why := self._refused(rank, hello):
      line.say(refused=why)
      line.close()
      return
    if rank in self._lines:  # its host was lost, and it is there again
      self._lines.pop(rank).close()
      self._leader.gone(rank, "has ended", silent=False)
    known = before is not None and hello["generation"] == before.generation
    if not known and before is not None and rank in self._leader.expected and not self._leader.whole:
      self._leader.gone(rank, "has ended", silent=False)
    self._leader.come(rank, Member(address, free, held if known else ()))
    self._lines[rank] = line
    line.say(welcome=self._site.me.rank)

  def _refused(self, rank: int, hello: dict[str, Any]) -> str:
    count, same = self._site.me.count, self._site.job.same
    if hello.get("count") != count:
      return f"process {rank} has num_processes={hello.get('count')}, and process {self._site.me.rank} has {count}"
    there = self._lines.get(rank)
    if rank == self._site.me.rank or not 0 <= rank < count or (there and time.monotonic() - there.heard < ALIVE):
      return f"two processes have process_id={rank}; each needs its own, from 0 to {count - 1}"
    return self._site.job.differs(same, hello["same"], rank, self._site.me.rank) if hello["same"] != same else ""

  def _missing(self) -> None:
    """Of those that were expected and have not come in time."""
    who, job, order = sorted(self._leader.expected), self._site.job, self._leader.order
    if self._leader.whole or order is None:
      several = len(who) > 1
      text = (
        f"process{'es' * several} {', '.join(map(str, who))} of {self._site.me.count} ha{'ve' if several else 's'} not "
        f"come to {self._site.me.coordinator} within {job.join_timeout:g} s; start all, or wait longer with "
        f"join_timeout{whence(self._site.me)}"
      )
      self._tell(end=2, text=text)
      self._part()
      raise ValueError(text)
    for rank in who:
      ended = meeting.is_there(order.addresses[rank]) is False
      self._leader.gone(rank, "has ended" if ended else self._words(2 * job.silence), silent=not ended)

  def _carry_out(self, decision: Decision) -> int | None:
    site, leader, mine = self._site, self._leader, self._site.me.rank
    if isinstance(decision, Halt):
      assert leader.order
      self._tell(halt=leader.order.generation)
      site.training.kill()
      leader.halted(mine, leader.order.generation, site.memory.held(), site.member().free)
    elif isinstance(decision, Order):
      self._tell(order=decision._asdict())
      meeting.note(site.job.file, decision.addresses)
      if decision.generation:
        site.job.say(f"{leader.news() or 'training has failed'}; {_going_on(decision, site.me.count)}")
      site.start(decision, self.lines)
    elif isinstance(decision, Stop):
      self._tell(stop=int(decision.number))
      site.training.send(decision.number)
    else:
      return self._end(decision)
    return None

  def _end(self, decision: End) -> int | None:
    site = self._site
    for rank in decision.ranks:
      if rank in self._lines:
        self._lines[rank].say(end=decision.code, text=decision.text)
        if rank not in self._leader.members:
          self._lines.pop(rank)  # it ends the connection
    if site.me.rank not in decision.ranks:
      return None
    if decision.text:
      site.job.say(decision.text)
    self._part()
    return decision.code

  def _tell(self, **what: Any) -> None:
    for line in self._lines.values():
      line.say(**what)

  def _part(self) -> None:
    """Wait until the others have read that it is over, and closed their connections."""
    until = time.monotonic() + LEFT
    for line in self.lines:
      if line.open:
        try:
          line.socket.shutdown(socket.SHUT_WR)
        except OSError:
          continue
      while line.open and time.monotonic() < until:
        line.wait(until - time.monotonic())


def _going_on(order: Order, count: int) -> str:
  """Return who goes on from where, in words."""
  ranks, several = ", ".join(map(str, order.ranks)), len(order.ranks) > 1
  who = f"all {count} processes" if len(order.ranks) == count else f"process{'es' * several} {ranks} of {count}"
  where = f"from step {order.step}" if order.stay else "from the last checkpoint" if order.resume else "from the start"
  return f"{who} {'go' if several else 'goes'} on {where}"
