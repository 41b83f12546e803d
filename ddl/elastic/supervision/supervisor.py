"""The supervisor of one process: whether it leads or follows, and its loop."""

import signal
import sys
import time

from ddl.elastic.supervision import meeting
from ddl.elastic.supervision.following import Following, Lost
from ddl.elastic.supervision.leader import Leader
from ddl.elastic.supervision.leading import Leading
from ddl.elastic.supervision.meeting import ANSWER, PAUSE
from ddl.elastic.supervision.site import Site, SupervisedJob
from ddl.hosts import launcher
from ddl.hosts.process_info import ProcessInfo, check_address, check_seconds, whence
from ddl.hosts.rendezvous import host_port
from ddl.hosts.watch import EVERY

Role = Leading | Following


class Supervisor:
  """One process's. The one of the lowest rank leads; where it is lost, the next one does."""

  def __init__(self, me: ProcessInfo, job: SupervisedJob):
    """me: the place of this process."""
    check_seconds("join_timeout", job.join_timeout)
    check_seconds("peer_timeout", job.silence)
    self._site, self._where = Site(me, job), check_address(me.coordinator)
    self._asked = 0  # signal
    self._orphaned = False  # whether the launcher has ended

  def supervise(self) -> int:
    """Return the job's exit code, at its end or where this process leaves it.

    Raises:
      ValueError: with one line, if the others do not come or are not found, or this one differs from them.
    """
    site, role = self._site, None
    launcher.release()  # a fork has no threads to lose
    before = {number: signal.signal(number, self._note) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
      role, told, at, paused = self._begin(), False, time.monotonic(), float("-inf")
      while True:
        site.wait(role.lines)
        now = time.monotonic()
        if now - at > site.job.silence - EVERY:
          paused = now
        if (code := site.ended()) is not None:
          role.ended(code)
        if (number := self._to_end()) and not told:
          role.leave(number)
          told = True
        found = role.turn(now - paused < site.job.silence)
        if isinstance(found, int):
          return found
        at = now
        if found is not None:
          site.training.kill()
          for each in role.lines:
            each.close()
          role = self._elect(found) if isinstance(found, Lost) else self._begin()
          told, at = False, time.monotonic()
    finally:
      site.training.kill()
      site.close(role.lines if role else ())
      for number, handler in before.items():
        signal.signal(number, handler)

  def _begin(self) -> Role:
    """Come to the one that leads; as process 0 of a job that nobody leads, lead it."""
    site = self._site
    site.memory.clear()
    site.order = None
    if site.me.rank == 0:
      try:
        site.listen_at(*self._where)
      except OSError as error:
        told = str(error.strerror or error).lower()
        raise ValueError(f"process 0 cannot listen at {site.me.coordinator}: {told}") from error
    seconds = site.job.join_timeout if site.me.rank else 2 * ANSWER
    until, why = time.monotonic() + seconds, "no answer"
    while (left := until - time.monotonic()) > 0 and not self._to_end():
      places = meeting.noted(site.job.file, site.me.rank)
      if site.me.rank:
        places.append(self._where)
      gone = 0
      for place in places:
        try:
          if found := meeting.greet(place, site.hello, min(ANSWER, left)):
            return self._follow(found)
          why = "no answer"
        except ConnectionRefusedError:
          gone, why = gone + 1, "connection refused"
      if site.me.rank == 0 and gone == len(places):
        break
      time.sleep(PAUSE)
    if site.me.rank == 0:
      site.job.check()
      return Leading(site, Leader(site.me.count, site.job.begun, range(site.me.count)), site.job.join_timeout)
    if self._asked:
      sys.exit(128 + self._asked)
    raise ValueError(
      f"no other process was reached at {host_port(*self._where)} within {seconds:g} s: {why}; start all"
      + whence(site.me)
    )

  def _elect(self, lost: Lost) -> Role:
    """After the loss of the one that led: the first of those that are left leads."""
    site, order = self._site, self._site.order
    assert order
    gone = {lost.rank: lost}
    for rank in order.ranks:
      if rank in gone:
        continue
      if rank == site.me.rank:
        break
      try:
        if found := meeting.greet_until(order.addresses[rank], site.hello, 2 * ANSWER):
          return self._follow(found)
        gone[rank] = Lost(rank, f"has not answered for {2 * ANSWER:g} s", silent=True)
      except ConnectionRefusedError:
        gone[rank] = Lost(rank, "has ended", silent=False)
    leader = Leader(site.me.count, site.job.begun, {*order.ranks} - {*gone}, order)
    for each in gone.values():
      leader.gone(each.rank, each.words, each.silent)
    return Leading(site, leader, 3 * ANSWER)

  def _follow(self, found: meeting.Found) -> Following:
    self._site.listen(found.line.host)
    return Following(self._site, found)

  def _to_end(self) -> int:
    """Return the signal that this process was asked to end by, or 0; the end of its launcher counts as one."""
    if not self._orphaned and launcher.launcher_ended():
      self._orphaned, self._asked = True, self._asked or signal.SIGTERM
      launcher.kill_later()
    return self._asked

  def _note(self, number: int, _frame: object) -> None:
    if self._asked:  # the second time
      sys.exit(128 + number)
    self._asked = number
