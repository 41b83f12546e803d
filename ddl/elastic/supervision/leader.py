"""The decisions of the supervisor that leads: who is in the next generation, and from which step it goes on."""

import signal
from collections.abc import Callable, Iterable
from typing import NamedTuple

from ddl.elastic.supervision.messages import Address, Order
from ddl.elastic.supervision.training_process import LOST

ATTEMPTS = 3  # generations that may end by themselves at the same step
ASKED = (128 + signal.SIGTERM, 128 + signal.SIGINT)  # exit codes of training that was saved and stopped


class Member:
  """A supervisor that is there."""

  def __init__(self, address: Address, free: int, held: Iterable[int] = ()):
    """address: where it listens; free: a port of its host; held: steps whose state it has, of the generation before."""
    self.address, self.free, self.held = address, free, {*held}
    self.code: int | None = None  # of its training process, if that has ended by itself
    self.halting = False  # whether it was told to end its training process, and has not said that it did


class Halt(NamedTuple):
  """All are to end their training processes, and to say what they hold."""


class End(NamedTuple):
  """The job is over, for all or for some ranks."""

  code: int
  text: str  # to be said by each; "" where its training process has said it
  ranks: tuple[int, ...]


class Stop(NamedTuple):
  """All are to have their training processes save, and end."""

  number: int  # signal


Decision = Halt | Order | End | Stop


class Leader:
  """The members of a job, what happens to them, and what is to be done about it."""

  def __init__(self, count: int, begun: Callable[[], bool], expected: Iterable[int], before: Order | None = None):
    """count: processes of the job; begun: whether the run's folder has something to go on with.

    expected: who is to come before anything is decided; before: the order of the generation that they come from.
    """
    self.members: dict[int, Member] = {}
    self.expected, self.order = {*expected}, before
    self._count, self._begun = count, begun
    self._lost = before is not None  # whether the generation must be followed by another
    self._came = False  # whether another would have more members
    self._halting = before is not None  # those who come have halted
    self._silent: set[int] = set()  # lost in this generation, perhaps alive
    self._leaving: dict[int, int] = {}  # rank -> signal
    self._news: list[str] = []
    self._attempts: list[int] = []  # the steps of generations that ended by themselves
    self._stopping = False
    self.whole = before is None  # whether all have to come, as to a job that begins

  def come(self, rank: int, member: Member) -> None:
    """Of a supervisor that was expected, or has come back."""
    if rank in self.expected:
      self.expected.discard(rank)
    else:
      member.held = set()
      self._came = True
      self._silent.discard(rank)
      self._news.append(f"{self._name(rank)} has come{' back' if self.order else ''}")
    self.members[rank] = member

  def gone(self, rank: int, words: str, silent: bool) -> None:
    """Of one that has ended, or is not heard of any more. words: "has ended"."""
    self.expected.discard(rank)
    self.members.pop(rank, None)
    self._leaving.pop(rank, None)
    if self.whole:  # it does not begin without it
      self.expected.add(rank)
      return
    if silent:
      self._silent.add(rank)
    self._lost = True
    self._news.append(f"{self._name(rank)} {words}")

  def halted(self, rank: int, generation: int, held: Iterable[int], free: int) -> None:
    """Of one whose training process is ended, as it was told."""
    if rank in self.members and self.order and generation == self.order.generation:
      member = self.members[rank]
      member.held, member.free, member.halting = {*held}, free, False

  def ended(self, rank: int, generation: int, code: int) -> None:
    """Of a training process that has ended by itself."""
    if rank in self.members and self.order and generation == self.order.generation and not self._halting:
      self.members[rank].code = code
      if code < 0:
        self._news.append(f"the training of {self._name(rank)} was killed by {signal.Signals(-code).name}")

  def leave(self, rank: int, number: int) -> None:
    """Of one that was asked to end, by this signal."""
    self._leaving[rank] = number

  @property
  def partly_stopped(self) -> bool:
    """Whether training is to stop, and has ended in some members only."""
    codes = [each.code for each in self.members.values()]
    return self._stopping and None in codes and any(code is not None for code in codes)

  def decide(self, settled: bool, progressed: bool, overdue: bool = False) -> list[Decision]:
    """Return what is to be done now.

    settled: whether who is asked to leave with the others has said so; progressed: whether this generation has made a
    round, so that those who came may be let in; overdue: whether it is partly stopped for too long.
    """
    if self.whole and self._leaving:  # nothing has begun that the others could go on with
      return [End(128 + next(iter(self._leaving.values())), "", tuple(self.members))]
    if self.expected:
      return []
    if self.order is None:
      return [self._next()]
    codes = {rank: each.code for rank, each in self.members.items()}
    if not self._halting:
      if all(code == 0 for code in codes.values()):
        return [End(0, "", tuple(self.members))]
      if failed := self._failed(overdue):
        return [failed]
      if self._leaving and settled and not self._stopping:
        if {*self._leaving} >= {*self.members}:
          self._stopping = True
          return [Stop(next(iter(self._leaving.values())))]
        return self._let_go()
      if self._lost or (self._came and progressed) or any(code == LOST or (code or 0) < 0 for code in codes.values()):
        self._halting = True
        for each in self.members.values():
          each.halting = True
        return [Halt()]
      return []
    if any(each.halting for each in self.members.values()):
      return []
    if text := self._minority() or self._stuck():
      return [End(1, text, tuple(self.members))]
    if not self.whole and not any(each.held for each in self.members.values()):
      # The folder may hold the state of others than those that are here.
      self.whole, self.expected = True, {*range(self._count)} - {*self.members}
      return self.decide(settled, progressed) if not self.expected else []
    return [self._next()]

  def news(self) -> str:
    """Return what has happened since it was last asked."""
    told, self._news = ", ".join(dict.fromkeys(self._news)), []
    return told

  def _failed(self, overdue: bool) -> End | None:
    """Return the end that a training process's failure is."""
    assert self.order
    ends = [each.code for each in self.members.values()]
    if self._stopping and None in ends and not overdue:  # they stop at the same step, or wait for one that has ended
      return None
    asked = next((code for code in ends if code in ASKED), None)
    stopped = [code for code in ends if code in (0, *ASKED) or (self._stopping and (code or 1) > 0 and code != LOST)]
    if asked and stopped == ends:
      return End(asked, "", tuple(self.members))  # the training of one has stopped before all were there
    for rank, each in self.members.items():
      code = each.code or 0
      if code in (0, LOST, *ASKED) or code < 0:
        continue
      came = self.order.stay and rank not in self.order.stay and not each.held
      told = f"{self._name(rank)} has failed with exit code {code}"
      if came and len(self.members) > 1:  # what it lacks is its own
        self.gone(rank, f"has failed with exit code {code}", silent=False)
        return End(code, "", (rank,))
      return End(code, told, tuple(self.members))
    return None

  def _let_go(self) -> list[Decision]:
    out: list[Decision] = []
    for rank, number in [*self._leaving.items()]:
      self.gone(rank, f"was asked to end by {signal.Signals(number).name}", silent=False)
      out.append(End(128 + number, "left the job, which goes on without it", (rank,)))
    return out

  def _minority(self) -> str:
    """Return why those that are left must not go on: the others, who are silent, may do so themselves."""
    here, there = len(self.members), len(self._silent)
    if here > there or (here == there and min(self.members) < min(self._silent)):
      return ""
    who = ", ".join(map(str, sorted(self._silent)))
    return (
      f"process{'es' * (there > 1)} {who} of {self._count} may go on without this one: {here} of the {here + there} "
      "that are not known to have ended are no majority"
    )

  def _stuck(self) -> str:
    """Return that a generation has ended by itself too often at the same step."""
    assert self.order
    step = max((max(each.held, default=-1) for each in self.members.values()), default=-1)
    self._attempts = [] if self._lost or self._came else [at for at in self._attempts if at == step] + [step]
    return f"{ATTEMPTS} times in a row training has failed after step {max(step, 0)}" * (
      len(self._attempts) >= ATTEMPTS
    )

  def _next(self) -> Order:
    """Return the order of the next generation, which begins."""
    holders: dict[int, list[int]] = {}
    for rank, each in self.members.items():
      for step in each.held:
        holders.setdefault(step, []).append(rank)
    step = max(holders, key=lambda at: (len(holders[at]), at), default=-1)
    ranks = tuple(sorted(self.members))
    first = self.members[ranks[0]]
    self.order = Order(
      self.order.generation + 1 if self.order else 0,
      ranks,
      tuple(sorted(holders.get(step, []))),
      step,
      step < 0 and self._begun(),
      (first.address[0], first.free),
      {rank: each.address for rank, each in self.members.items()},
    )
    self._lost = self._came = self._halting = self._stopping = self.whole = False
    self._silent = set()
    for each in self.members.values():
      each.code, each.halting = None, False
    return self.order

  def _name(self, rank: int) -> str:
    return f"process {rank} of {self._count}"
