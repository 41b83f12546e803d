"""The driver of a run on Ray: starts workers, replaces those that die, and reports how far the master is."""

import warnings
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from ddl.api import Tree
from ddl.asynchronous.ray_master import Snapshot
from ddl.engine.consensus import NotFinite
from ddl.events.record import Events

ATTEMPTS = 3  # deaths of a worker in a row, without a visit between, that end the run
PAUSE = 1.0  # seconds between two looks at a shard that serves nobody
SECONDS = 10.0  # to see whether a shard is the reason why a worker failed


Watch = Callable[[Snapshot], None]


def answers(ray: Any, refs: Sequence[Any], first: int = 0) -> list[Any]:
  """What the shards from `first` on answer. ValueError, one line, where one of them is dead or raised."""
  got = []
  for k, ref in enumerate(refs, start=first):
    try:
      got.append(ray.get(ref))
    except ray.exceptions.RayTaskError as error:
      raise ValueError(str(error.cause).splitlines()[0]) from error
    except ray.exceptions.RayActorError as error:
      check_made(error, f"shard {k} of the master")
      raise ValueError(f"shard {k} of the master died; resume goes on from the newest checkpoint") from error
  return got


def check_made(error: Any, who: str) -> None:
  """ValueError, one line, if an actor did not die but could not be made, as where its host lacks a module."""
  if error.actor_init_failed:
    raise ValueError(f"{who} can't be made: {str(error).strip().splitlines()[-1]}") from error


class RaySupervisor:
  """The workers of one run, and what is awaited of them."""

  def __init__(
    self, ray: Any, new: Callable[[int], Any], actors: dict[int, Any], shards: list[Any], unravel: Callable[[Any], Tree]
  ):
    """new: a rank's actor; actors: those that are there; unravel: the flat parameters as a tree."""
    self.ray, self.new, self.actors, self.shards, self.unravel = ray, new, actors, shards, unravel
    self.preparing, self.working = dict[Any, int](), dict[Any, int]()  # what is awaited -> rank
    self.idle = set[int]()  # ranks without a round to make
    self.together, self.ready = set[int](), list[int]()  # the first workers begin when all of them are ready
    self.deaths = dict[int, tuple[int, int]]()  # rank -> (its visits, deaths in a row)
    self.stopping = False

  def run(self, ranks: Iterable[int], visits: int, watch: Watch) -> Events:
    """Until so many visits are served and every worker has heard of it, or `stopping` is set."""
    ray, shards = self.ray, self.shards
    self.served, self.rounds, _, _ = self._progress([shards[0].progress.remote(0)])[0]
    self.visits, looks = visits, dict[Any, int]()
    self.together = set(ranks)
    for rank in sorted(self.together):
      self.start(rank)
    while (self.served < visits or self.working) and not self.stopping:
      for k in set(range(len(shards))) - set(looks.values()):
        looks[shards[k].progress.remote(PAUSE)] = k
      done, _ = ray.wait([*looks, *self.preparing, *self.working])
      for ref in done:
        if ref in looks:
          k = looks.pop(ref)
          served, rounds, kept, _ = self._progress([ref], k)[0]
          if k == 0:
            self.served, self.rounds = served, rounds
            for at in kept:
              self._show(watch, at)
        elif ref in self.preparing:
          self._prepared(ref, self.preparing.pop(ref))
        elif ref in self.working:
          self._stopped(ref, self.working.pop(ref))
    answers(ray, [shard.close.remote() for shard in shards])
    self.served, _, kept, _ = self._progress([shard.progress.remote(0) for shard in shards])[0]
    answers(ray, [shard.save.remote(self.served) for shard in shards])
    for at in (*kept, None):
      self._show(watch, at)
    return answers(ray, [shards[0].events.remote()])[0]

  def start(self, rank: int) -> None:
    """Start a worker, which makes rounds as soon as it is ready."""
    self.actors[rank] = self.new(rank)
    self.preparing[self.actors[rank].prepare.remote()] = rank

  def leave(self, rank: int) -> None:
    """A worker is gone for good."""
    for awaited in (self.preparing, self.working):
      for ref in [r for r, w in awaited.items() if w == rank]:
        del awaited[ref]
    self.ray.kill(self.actors.pop(rank))
    self.idle.discard(rank)
    answers(self.ray, [shard.leave.remote(rank) for shard in self.shards])
    self._wake()

  def _prepared(self, ref: Any, rank: int) -> None:
    if not self._well(ref, rank):
      return
    self.ready.append(rank)
    self.together.discard(rank)
    if not self.together:
      self._begin(self.ready)
      self.ready = []

  def _stopped(self, ref: Any, rank: int) -> None:
    if self._well(ref, rank):
      self.idle.add(rank)
      self._wake()

  def _wake(self) -> None:
    """Let an idle worker make the rounds of those that left, or of one that died after others had stopped."""
    if self.idle and not self.working and not self.preparing and self.served < self.visits:
      self._begin([self.idle.pop()])

  def _begin(self, ranks: Sequence[int]) -> None:
    begun = {rank: [shard.begin.remote(rank) for shard in self.shards] for rank in ranks}
    refs = [ref for each in begun.values() for ref in each]
    self.ray.wait(refs, num_returns=len(refs), fetch_local=False)
    for rank, parts in begun.items():
      self.working[self.actors[rank].work.remote(*parts)] = rank

  def _well(self, ref: Any, rank: int) -> bool:
    """Whether the worker did what was awaited; if it is dead there is another one now."""
    errors = self.ray.exceptions
    try:
      self.ray.get(ref)
      return True
    except errors.RayTaskError as error:
      self._progress([shard.progress.remote(0) for shard in self.shards])
      why = (str(error.cause).splitlines() or [""])[0]
      raise ValueError(f"worker {rank} failed: {type(error.cause).__name__}: {why}") from error
    except errors.RayActorError as error:
      check_made(error, f"worker {rank}")
      answers(self.ray, [self.shards[0].lost.remote(rank)])
      visits = int(self.rounds[rank])
      at, count = self.deaths.get(rank, (visits, 0))
      self.deaths[rank] = visits, count + 1 if at == visits else 1
      if self.deaths[rank][1] >= ATTEMPTS:
        raise ValueError(f"worker {rank} died {ATTEMPTS} times in a row before it made a visit") from error
      told = f"worker {rank} died after {visits} visits: its current round is lost, and another one takes its place"
      warnings.warn(told, RuntimeWarning, stacklevel=2)
      self.ray.kill(self.actors[rank])
      self.start(rank)
      return False

  def _progress(self, refs: Sequence[Any], first: int = 0) -> list[Any]:
    got = answers(self.ray, refs, first)
    for _, _, _, failure in got:
      if failure:
        raise NotFinite(failure)
    return got

  def _show(self, watch: Watch, at: int | None) -> None:
    parts = answers(self.ray, [shard.snapshot.remote(at) for shard in self.shards])
    watch(parts[0]._replace(params=self.unravel(np.concatenate([part.params for part in parts]))))
