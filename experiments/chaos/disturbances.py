"""What happens to a job: kinds of events, how often each comes, and the seeded script of them."""

import random
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from experiments.chaos.job import ChaosJob

SHORT = (0.2, 1.0)  # seconds of a pause or a cut that nothing is lost by
LONGER = 2.0  # seconds that a cut takes beyond the silence after which a process is lost


class Event(NamedTuple):
  """One line of a script."""

  after: float  # seconds since the one before
  kind: str
  where: float  # from 0 to 1: which of the processes
  how: float  # from 0 to 1: how long


class DisturbanceKind(NamedTuple):
  """A kind of event."""

  weight: int
  act: Callable[[ChaosJob, int, float, float], None]  # (job, process, `Event.how`, seconds of silence)
  words: str


def _kill(job: ChaosJob, pid: int, how: float, silence: float) -> None:
  job.send(pid, signal.SIGKILL)


def _pause(job: ChaosJob, pid: int, how: float, silence: float) -> None:
  job.send(pid, signal.SIGSTOP)
  time.sleep(_short(how))
  job.send(pid, signal.SIGCONT)


def _freeze(job: ChaosJob, pid: int, how: float, silence: float) -> None:
  job.send(pid, signal.SIGSTOP)  # the others end after the silence, and then the launcher kills it


def _stall(job: ChaosJob, pid: int, how: float, silence: float) -> None:
  job.send(pid, signal.SIGSTOP)
  time.sleep(silence + LONGER)
  job.send(pid, signal.SIGCONT)


def _preempt(job: ChaosJob, pid: int, how: float, silence: float) -> None:
  job.end(signal.SIGTERM)


def _orphan(job: ChaosJob, pid: int, how: float, silence: float) -> None:
  job.end(signal.SIGKILL)


def _damage(job: ChaosJob, pid: int, how: float, silence: float) -> None:
  steps = sorted((each for each in job.folder.glob("checkpoints/*") if each.name.isdigit()), key=lambda x: int(x.name))
  if len(steps) > 1 and not (job.damaged and job.damaged.exists()):  # a run goes on from the last but one
    files = [file for file in steps[-1].rglob("*") if file.is_file() and file.stat().st_size]
    job.damaged = max(files, key=lambda file: (file.stat().st_size, file.name), default=None)
    if job.damaged:
      _cut_short(job.damaged)
  job.send(pid, signal.SIGKILL)


def _blink(job: ChaosJob, pid: int, how: float, silence: float) -> None:
  job.network("down")
  time.sleep(_short(how))
  job.network("up")


def _cut(job: ChaosJob, pid: int, how: float, silence: float) -> None:
  job.network("down")
  time.sleep(silence + LONGER)
  job.network("up")


KINDS = {
  "pause": DisturbanceKind(8, _pause, "SIGSTOP for a moment"),
  "kill": DisturbanceKind(6, _kill, "SIGKILL of a process"),
  "blink": DisturbanceKind(4, _blink, "the network cut for a moment"),
  "freeze": DisturbanceKind(1, _freeze, "SIGSTOP for good"),
  "stall": DisturbanceKind(1, _stall, "SIGSTOP for longer than the silence"),
  "cut": DisturbanceKind(1, _cut, "the network cut for longer than the silence"),
  "damage": DisturbanceKind(1, _damage, "the newest checkpoint cut short, and SIGKILL"),
  "preempt": DisturbanceKind(1, _preempt, "SIGTERM of the job, and --resume"),
  "orphan": DisturbanceKind(1, _orphan, "SIGKILL of the launcher, and --resume"),
}
NETWORK = ("blink", "cut")  # which take a network of the job's own
GOING_ON = ("stall",)  # of jobs that go on without a process that is lost
ENDING = ("freeze", "cut", "damage")  # which such a job has no answer to, as nobody or too few are left
SEVERAL = ("freeze", *GOING_ON, *NETWORK)  # and those that another process has to notice


def script(seed: int, rate: float, kinds: Sequence[str]) -> Iterator[Event]:
  """Yield events without end, the same for the same seed. rate: events a minute, at random times."""
  draw = random.Random(seed)
  weights = [KINDS[kind].weight for kind in kinds]
  while True:
    yield Event(draw.expovariate(rate / 60), draw.choices(kinds, weights)[0], draw.random(), draw.random())


def _short(how: float) -> float:
  return SHORT[0] + how * (SHORT[1] - SHORT[0])


def _cut_short(file: Path) -> None:
  with file.open("rb+") as opened:
    opened.truncate(file.stat().st_size // 2)
