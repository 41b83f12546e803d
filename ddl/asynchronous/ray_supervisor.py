"""The driver of a run on Ray: starts workers, replaces dead ones, and reports the master's progress."""

import warnings
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from ddl.api import Tree
from ddl.asynchronous.ray_master import Snapshot
from ddl.engine.consensus import NotFinite
from ddl.errors import first_line
from ddl.events.record import Events

ATTEMPTS = 3  # the run fails after this many successive deaths of a worker without a completed visit
PAUSE = 1.0  # maximum seconds between progress reports of a shard

Watch = Callable[[Snapshot], None]


def answers(ray: Any, refs: Sequence[Any], first: int = 0) -> list[Any]:
  """Return the results of calls to the shards, one per shard from shard `first` on.

  Raises ValueError if a shard died or raised an exception. refs: Ray's references to the results.
  """
  results = []
  for k, ref in enumerate(refs, start=first):
    try:
      results.append(ray.get(ref))
    except ray.exceptions.RayTaskError as error:
      raise ValueError(first_line(error.cause)) from error
    except ray.exceptions.RayActorError as error:
      check_started(error, f"shard {k} of the master")
      raise ValueError(f"shard {k} of the master died. Resume the run if it has a checkpoint.") from error
  return results


def check_started(error: Any, who: str) -> None:
  """Raise ValueError for an actor that could not start, for example because its host lacks a module."""
  if error.actor_init_failed:
    raise ValueError(f"{who} cannot start: {str(error).strip().splitlines()[-1]}") from error


class RaySupervisor:
  """Supervisor of one run: starts the workers, replaces dead ones, and passes snapshots to `watch`."""

  def __init__(
    self, ray: Any, new: Callable[[int], Any], actors: dict[int, Any], shards: list[Any], unravel: Callable[[Any], Tree]
  ):
    """Initialize without starting workers.

    ray: the module `ray`; new: rank -> a new actor for that worker; actors: a dict that receives the current actor of
    each rank; shards: the actors of the shards; unravel: parameter vector -> tree.
    """
    self.ray, self.new, self.actors, self.shards, self.unravel = ray, new, actors, shards, unravel
    self.preparing, self.working = dict[Any, int](), dict[Any, int]()  # reference to a call's result -> rank
    self.missing, self.ready = set[int](), list[int]()  # the first rounds start when no worker is missing
    self.deaths = dict[int, tuple[int, int]]()  # rank -> (visits, successive deaths)
    self.stopping = False

  def run(self, ranks: Iterable[int], visits: int, watch: Watch) -> Events:
    """Run until `visits` visits are served and all workers have returned, or `stopping` is set.

    Return the visits recorded by the first shard. ranks: the workers to start.
    """
    self.served, self.rounds, _, _ = self._progress([self.shards[0].progress.remote(0)])[0]
    reports = dict[Any, int]()  # reference to a shard's progress -> shard
    self.missing = set(ranks)
    for rank in sorted(self.missing):
      self.start(rank)
    while (self.served < visits or self.working) and not self.stopping:
      for k in set(range(len(self.shards))) - set(reports.values()):
        reports[self.shards[k].progress.remote(PAUSE)] = k
      finished, _ = self.ray.wait([*reports, *self.preparing, *self.working])
      for ref in finished:
        if ref in reports:
          k = reports.pop(ref)
          served, rounds, marks, _ = self._progress([ref], k)[0]
          if k == 0:
            self.served, self.rounds = served, rounds
            self._show(watch, marks)
        elif ref in self.preparing:
          self._prepared(ref, self.preparing.pop(ref))
        elif ref in self.working:
          self._succeeded(ref, self.working.pop(ref))
    self._call_shards("close")
    self.served, _, marks, _ = self._progress([shard.progress.remote(0) for shard in self.shards])[0]
    self._call_shards("save", self.served)
    self._show(watch, [*marks, None])
    return answers(self.ray, [self.shards[0].events.remote()])[0]

  def start(self, rank: int) -> None:
    """Start a worker. Its rounds begin when it is ready or, at the start of the run, when all workers are ready."""
    self.actors[rank] = self.new(rank)
    self.preparing[self.actors[rank].prepare.remote()] = rank

  def _call_shards(self, method: str, *args: Any) -> list[Any]:
    return answers(self.ray, [getattr(shard, method).remote(*args) for shard in self.shards])

  def _prepared(self, ref: Any, rank: int) -> None:
    if not self._succeeded(ref, rank):
      return
    self.ready.append(rank)
    self.missing.discard(rank)
    if not self.missing:
      self._begin(self.ready)
      self.ready = []

  def _begin(self, ranks: Sequence[int]) -> None:
    starts = {rank: [shard.begin.remote(rank) for shard in self.shards] for rank in ranks}
    refs = [ref for parts in starts.values() for ref in parts]
    self.ray.wait(refs, num_returns=len(refs), fetch_local=False)
    for rank, parts in starts.items():
      self.working[self.actors[rank].work.remote(*parts)] = rank

  def _succeeded(self, ref: Any, rank: int) -> bool:
    """Return whether a worker's call succeeded; replace the worker if it died.

    Raises ValueError if the worker raised an exception or died ATTEMPTS times without completing a visit.
    """
    errors = self.ray.exceptions
    try:
      self.ray.get(ref)
      return True
    except errors.RayTaskError as error:
      self._progress([shard.progress.remote(0) for shard in self.shards])  # raises if a shard's failure is the reason
      reason = next(iter(str(error.cause).splitlines()), "")
      raise ValueError(f"worker {rank} failed: {type(error.cause).__name__}: {reason}") from error
    except errors.RayActorError as error:
      check_started(error, f"worker {rank}")
      answers(self.ray, [self.shards[0].lose.remote(rank)])
      visits = int(self.rounds[rank])
      before, count = self.deaths.get(rank, (visits, 0))
      self.deaths[rank] = visits, count + 1 if before == visits else 1
      if self.deaths[rank][1] >= ATTEMPTS:
        raise ValueError(f"worker {rank} died {ATTEMPTS} times in a row without completing a visit") from error
      message = f"worker {rank} died after {visits} visits: its current round is lost, and a new worker replaces it"
      warnings.warn(message, RuntimeWarning, stacklevel=2)
      self.ray.kill(self.actors[rank])
      self.start(rank)
      return False

  def _progress(self, refs: Sequence[Any], first: int = 0) -> list[Any]:
    results = answers(self.ray, refs, first)
    for _, _, _, failure in results:
      if failure:
        raise NotFinite(failure)
    return results

  def _show(self, watch: Watch, marks: Sequence[int | None]) -> None:
    for mark in marks:
      parts = self._call_shards("snapshot", mark)
      watch(parts[0]._replace(params=self.unravel(np.concatenate([part.params for part in parts]))))
