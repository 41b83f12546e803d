"""A supervisor that follows: it does what the one that leads says, and finds another one where that is lost."""

import time
from typing import Any

from ddl.elastic.supervision import meeting
from ddl.elastic.supervision.meeting import DEPOSED, Deposed, Found
from ddl.elastic.supervision.messages import Line, Order, free_port
from ddl.elastic.supervision.site import Site


class Lost:
  """That the one that led is lost."""

  def __init__(self, rank: int, words: str, silent: bool):
    """words: "has ended"; silent: it may be alive."""
    self.rank, self.words, self.silent = rank, words, silent


class Following:
  """The role."""

  def __init__(self, site: Site, found: Found):
    """found: the one that leads."""
    self._site, (self._line, self._rank) = site, found

  @property
  def lines(self) -> list[Line]:
    """The connection to the one that leads."""
    return [self._line]

  def ended(self, code: int) -> None:
    """Of this process's training."""
    assert self._site.order
    self._line.say(ended=code, generation=self._site.order.generation)

  def leave(self, number: int) -> None:
    """Of a signal to this process."""
    self._line.say(leave=number)

  def turn(self, paused: bool) -> int | Lost | Deposed | None:
    """Look after everything once; return the exit code at the end.

    paused: not read: one that was stopped finds that the one that led is there, and has done without it.
    """
    self._line.show()
    for said in self._line.hear():
      code = self._do(said)
      if code is not None:
        return code
    quiet, silence, order = time.monotonic() - self._line.heard, self._site.job.silence, self._site.order
    if self._line.open and quiet <= silence:
      self._redirect()
      return None
    self._line.close()
    if order is None or self._site.me.rank not in order.ranks:
      return DEPOSED
    if quiet <= silence and meeting.is_there(order.addresses[self._rank]):  # of one that is stopped the system answers
      return DEPOSED
    words = f"has not been heard of for {silence:g} s" if quiet > silence else "has ended"
    return Lost(self._rank, words, silent=quiet > silence / 2)

  def _do(self, said: dict[str, Any]) -> int | None:
    site = self._site
    if "halt" in said:
      site.training.kill()
      self._line.say(halted=said["halt"], held=site.memory.held(), free=free_port(self._line.host))
    if "order" in said:
      site.start(Order.of(said["order"]), self.lines)
    if "stop" in said:
      site.training.send(int(said["stop"]))
    if "end" in said:
      if said["text"]:
        site.job.say(str(said["text"]))
      return int(said["end"])
    return None

  def _redirect(self) -> None:
    """Tell those who come where the one is that leads."""
    at = self._site.order.addresses[self._rank] if self._site.order else self._line.socket.getpeername()[:2]
    for each in self._site.strangers:
      if each.hear():
        each.say(leader=at)
    self._site.strangers = [each for each in self._site.strangers if each.open]
