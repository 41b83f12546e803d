"""Jobs one after the other, disturbed by a seeded script until the time is over, and what became of each."""

import shutil
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from ddl.run.exit_codes import Failed
from experiments.chaos.disturbances import KINDS, Event, script
from experiments.chaos.job import ChaosJob
from experiments.chaos.verdict import difference, difference_from_replay

ASKED = (128 + 15, -9)  # codes of a launcher that a disturbance has ended: go on with --resume
PATIENCE = 120.0  # seconds in which a job has processes again, and beyond its own time comes to its end


class Setting(NamedTuple):
  """What is to happen."""

  words: Sequence[str]  # flags of `train`
  folder: Path
  apart: bool  # whether jobs have a network namespace
  silence: float  # seconds after which a process counts as lost
  seed: int
  rate: float  # events a minute
  minutes: float
  kinds: Sequence[str]
  elastic: bool = False  # whether the others go on without a process that is lost


class Chaos:
  """The jobs of one setting, and what has happened to them."""

  def __init__(self, setting: Setting, say: Callable[[str], None]):
    """say: is told each event."""
    self.setting, self._say = setting, say
    self.events: Counter[str] = Counter()
    self.ended = 0  # jobs, all as the undisturbed one
    self.restarts, self.resumes = 0, 0  # by launchers themselves, and with --resume
    self.undisturbed, self.seconds = 0.0, 0.0  # of the job alone, and of the disturbances
    self._job = ChaosJob(setting.words, setting.folder / "undisturbed", setting.apart)

  @property
  def expected(self) -> str:
    """What the job's result has to be, in words."""
    return "its replay in virtual time, up to rounding" if self.setting.elastic else "the undisturbed one, bit for bit"

  def run(self) -> None:
    """Run the job undisturbed, then disturbed until the time is over; the last one comes to its end undisturbed.

    Raises:
      Failed: if a job fails, hangs or does not end as expected; its folder stays.
    """
    try:
      self._alone()
      began = at = time.monotonic()
      events = script(self.setting.seed, self.setting.rate, self.setting.kinds)
      event = next(events)
      while (now := time.monotonic()) < began + 60 * self.setting.minutes:
        self._look_after(another=True)
        pids = self._job.processes()
        if now > at + event.after and pids:
          self._disturb(event, pids, now - began)
          at, event = now, next(events)
        elif now > at + event.after + PATIENCE:
          self._fail("has no processes")
        time.sleep(0.02)
      self.seconds, last = now - began, self.ended + 1
      self._say("no more events: the last job comes to its end")
      while self.ended < last:
        if time.monotonic() > now + PATIENCE + 3 * self.undisturbed:
          self._fail("does not come to its end")
        self._look_after(another=False)
        time.sleep(0.02)
    except TimeoutError as error:
      self._fail(str(error))
    finally:
      self._job.kill()

  def _alone(self) -> None:
    began = time.monotonic()
    self._job.start()
    while self._job.ended() is None:
      time.sleep(0.02)
    self.undisturbed = time.monotonic() - began
    if self._job.ended():
      self._fail("fails without a disturbance")
    self._say(f"undisturbed: {self.undisturbed:.1f} s")
    self._next()

  def _next(self) -> None:
    self._job = ChaosJob(self.setting.words, self.setting.folder / f"job-{self.ended + 1}", self.setting.apart)
    self._job.start()

  def _disturb(self, event: Event, pids: Sequence[int], at: float) -> None:
    where = int(event.where * len(pids))
    self._say(f"{at:6.1f} s, {self._job.folder.name}, process {where}: {KINDS[event.kind].words}")
    self.events[event.kind] += 1
    KINDS[event.kind].act(self._job, pids[where], event.how, self.setting.silence)

  def _look_after(self, another: bool) -> None:
    """Go on with a job that a disturbance has ended; compare one that has come to its end, and start another one."""
    code, job = self._job.ended(), self._job
    if code in ASKED:
      self.resumes += 1
      job.start()
    elif code == 0:
      if self.setting.elastic:
        found = difference_from_replay(job.folder, self.setting.words)
      else:
        found = difference(job.folder, self.setting.folder / "undisturbed")
      if found:
        self._fail(f"differs: {found}")
      self.ended += 1
      self.restarts += job.restarts()
      for each in job.folder.parent.glob(f"{job.folder.name}*/"):
        shutil.rmtree(each)
      self._say(f"{job.folder.name} is as {self.expected}, after {job.restarts()} restarts")
      if another:
        self._next()
    elif code is not None:
      self._fail(f"ended with code {code}")

  def _fail(self, why: str) -> None:
    raise Failed(1, f"{self._job.folder} {why}; it said last: {self._job.last_line()} (see {self._job.log})")
