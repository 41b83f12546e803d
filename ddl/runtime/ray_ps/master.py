"""One shard of the master, served over a socket: whose visit is next, what is recorded, and when it is saved."""

import os
import threading
from pathlib import Path
from typing import Any

import jax
import numpy as np

from ddl.api import ServerAlgorithm, Tree
from ddl.events.membership_barrier import MembershipBarrier
from ddl.events.record import Events
from ddl.runtime.ray_ps import shard_server
from ddl.runtime.ray_ps import transport as wire
from ddl.runtime.ray_ps.record import Record, Snapshot
from ddl.runtime.ray_ps.shard_state import ShardState


class Shard:
  """A `ShardState`, one thread per connection, a lock around each visit. A Ray actor, but it does not use Ray."""

  def __init__(
    self, index: int, algorithm: ServerAlgorithm, part: np.ndarray, extra: Tree, *, visits: int, **settings: Any
  ):
    """part: this shard's initial parameters; extra: the model's initial non-trained state; visits: after which to stop.

    settings: workers (how many there may be), barrier (a bounded one), seed (of its samples), folder, every (visits per
      checkpoint, 0: none), marks (visits at which a snapshot is kept until it is fetched), token.
    """
    self.index, self.algorithm, self.visits = index, algorithm, visits
    self.workers, self.marks = settings["workers"], frozenset(settings["marks"])
    self.folder, self.every, self.token = Path(settings["folder"]), settings["every"], settings["token"]
    self.state = ShardState(algorithm, part, extra)
    self.served, self.failure, self.closed = 0, "", False
    self.record, self.losses, self.kept = Record(self.workers), list[np.ndarray](), dict[int, Snapshot]()
    self.rounds = np.zeros(self.workers, int)
    self.members = MembershipBarrier(settings["barrier"], workers=self.workers, seed=settings["seed"], present=False)
    self.holding = set[int]()  # workers that may make a visit
    self.active: int | None = None  # the rank that may visit, of a round robin
    self.changed = threading.Condition()

  def open(self, label: int | None, host: str | None = None) -> tuple[str, int]:
    """Continues from the checkpoint of so many visits, or starts anew; returns the address where workers connect.

    host: the address to listen at, by default the one by which Ray knows this machine.
    """
    if host is None:
      import ray

      host = str(ray.util.get_node_ip_address())
    if label is not None:
      self._restore(label)
    self.state.warm_up()
    listener = wire.listen(host)
    threading.Thread(target=shard_server.admit, args=(listener, self, self.token), daemon=True).start()
    return listener.getsockname()

  def pid(self) -> int:
    """Its process."""
    return os.getpid()

  def begin(self, worker: int) -> tuple[int, int, np.ndarray | None, Tree]:
    """(status, round, this part of the parameters, extra) that a worker starts from; None: the initial ones."""
    with self.changed:
      self.record.start()
      if self.active == worker:
        self.active = None
      room = self.served + len(self.holding) < self.visits
      if self.algorithm.arrivals.round_robin:
        room = (worker - self.served) % self.workers < self.visits - self.served
      if worker in self.holding or room:
        self.holding.add(worker)
        self.members.join(worker)
      status = wire.GO if worker in self.holding else wire.STOP
      self.changed.notify_all()
      if not self.served:
        return status, 0, None, self.state.extra
      part = self.state.begin(worker, int(self.rounds[worker]))
      self.record.came_back(worker)
      return status, int(self.rounds[worker]), part, self.state.mean_extra()

  def leave(self, worker: int) -> None:
    """The worker will not come any more: others may make its visit."""
    with self.changed:
      self.holding.discard(worker)
      self.members.leave(worker)
      if self.active == worker:
        self.active = None
      self.changed.notify_all()

  def lost(self, worker: int) -> None:
    """The worker died: nobody waits for it until it begins again."""
    with self.changed:
      self.members.leave(worker)
      self.changed.notify_all()

  def close(self) -> None:
    """From now on nothing is served."""
    with self.changed:
      self.closed = True

  def snapshot(self, visits: int | None) -> Snapshot:
    """The one that was kept at so many visits; where there is none, how it is now."""
    with self.changed:
      return self.kept.pop(visits) if visits in self.kept else self._snapshot()

  def progress(self, seconds: float) -> tuple[int, np.ndarray, list[int], str]:
    """(visits, each worker's, those of kept snapshots, what went wrong), once there is news or after so long."""
    with self.changed:
      news = self.index == 0  # the first one has the run's
      self.changed.wait_for(lambda: self.failure or (news and (self.kept or self.served >= self.visits)), seconds)
      return self.served, self.rounds.copy(), sorted(self.kept), self.failure

  def events(self) -> Events:
    """The visits so far: as this shard saw them, if it is the first."""
    with self.changed:
      return self.record.events()

  def save(self, label: int) -> None:
    """A checkpoint that is named after so many visits."""
    with self.changed:
      self._save(label)

  def visited(self, asked: Any, arrival: float, losses: Any, extra: Any, message: Any, answer: Any) -> list[Any]:
    """A message is served, under the lock: the reply's leaves; sets the answer's status."""
    if self.closed:
      answer["status"] = wire.STOP
      return [np.asarray(x) for x in jax.tree.leaves(self.state.start_reply)]
    worker, number = int(asked["worker"]), int(asked["round"])
    reply = self.state.serve(worker, int(asked["peer"]), number, message)
    answer["visit"] = self.served
    if not all(np.isfinite(x).all() for x in (*message, *reply)):
      self.failure = (
        f"visit {self.served}: the message of worker {worker}'s round {number} (its step "
        f"{number * self.algorithm.period}) or the center is not finite"
      )
    if self.failure:
      answer["status"] = wire.DIVERGED
      self.changed.notify_all()
      return reply
    if self.index == 0:
      self.record.add(asked, arrival, self.algorithm.arrivals.peers == "none" or int(asked["peer"]) >= 0)
      self.losses.append(losses.copy())
      self.state.extras[worker] = [x.copy() for x in extra]
    self.served += 1
    self.rounds[worker] = number + 1
    self.holding.discard(worker)
    if self.served + len(self.holding) < self.visits:
      self.holding.add(worker)
    answer["status"] = wire.GO if worker in self.holding else wire.STOP
    if worker not in self.holding:  # it will not ask again
      self.members.leave(worker)
      if self.active == worker:
        self.active = None
    if self.served in self.marks:
      self.kept[self.served] = self._snapshot()
    if self.every and self.served % self.every == 0:
      self._save(self.served)
    self.changed.notify_all()
    return reply

  def wait_for_round(self, worker: int) -> bool:
    """Wait until the worker may begin a round; return whether its last reply is old by now.

    Round robin: when everybody else is done with theirs and this one is next by rank. Else when the barrier lets it: a
    round is finished when its worker asks for the next, so that all shards have served it by then.
    """
    with self.changed:
      if self.algorithm.arrivals.round_robin:
        if self.active == worker:
          self.active = None
          self.changed.notify_all()
        self.changed.wait_for(lambda: self.active is None and self.served % self.workers == worker)
        self.active = worker
        return False
      self.members.finish(worker)
      self.changed.notify_all()
      while worker in self.members.held and not self.failure:
        self.changed.wait()
      old = not self.algorithm.delay and self.record.behind(worker)
      if old and not self.state.reads:
        self.record.told(worker)
      return old

  def told(self, asked: Any) -> list[Any]:
    """What a worker is told anew."""
    worker = int(asked["worker"])
    with self.changed:
      reply = self.state.tell_anew(worker, int(asked["peer"]), int(asked["round"]) - 1)  # asked before the next
      if self.index == 0 and self.record.behind(worker):
        self.record.told(worker)
      return reply

  def _snapshot(self) -> Snapshot:
    losses, self.losses = self.losses, []
    return Snapshot(self.state.center(), self.state.mean_extra(), self.record.progress(), losses)

  def _save(self, label: int) -> None:
    if not np.isfinite(self.state.center()).all():
      self.failure = self.failure or f"visit {label}: the center is not finite"
      return
    keep = label - 2 * self.every - self.workers  # shards are at most so far apart
    self.state.save(self.folder, self.index, label, self.record.events(), keep=keep)

  def _restore(self, label: int) -> None:
    events = self.state.restore(self.folder, self.index, label)
    exchanges = len(events.peer) if self.algorithm.arrivals.peers == "none" else int(np.sum(events.peer >= 0))
    self.record.restore(events, exchanges)
    self.served = label
    np.maximum.at(self.rounds, events.worker, events.round + 1)
