"""One shard of the master on Ray: its state, its checkpoints, whose visit is next, and what is recorded."""

import os
import re
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ddl.api import ServerAlgorithm, Tree, Visit
from ddl.asynchronous import ray_transport
from ddl.asynchronous import ray_transport as wire
from ddl.asynchronous.flat_params import visit_trees
from ddl.asynchronous.worker_round import visit_step
from ddl.engine.consensus import Progress
from ddl.events import arrays
from ddl.events.barriers import LiveBarrier
from ddl.events.record import TYPES, Events


class Snapshot(NamedTuple):
  """The run at some visit: a shard's part of the parameters, or all. The rest is the first shard's to know."""

  params: Any  # to test
  extra: Tree
  progress: Progress
  losses: list[np.ndarray]  # of the steps since the last snapshot


class Record:
  """Rows of `Events`, and their clock."""

  def __init__(self, workers: int):
    """The clock stands at 0."""
    self._rows: list[list[Any]] = []  # columns of Events
    self._last = np.full(workers, -1)  # each worker's latest row
    self._learnt = np.zeros(workers, int)  # visits that the center held which it was told
    self._came_back = dict[int, float]()  # worker -> when, before its next visit
    self._origin: float | None = None
    self._exchanges = 0

  def start(self) -> None:
    """The clock goes on from the last visit, unless it goes already."""
    if self._origin is None:
      self._origin = time.time() - self._seconds()

  def now(self) -> float:
    """Seconds of the run."""
    return self._seconds() if self._origin is None else max(time.time() - self._origin, 0.0)

  def came_back(self, worker: int) -> None:
    """It begins anew, from the center of now."""
    self._learnt[worker], self._came_back[worker] = len(self._rows), self.now()

  def add(self, asked: Any, arrival: float, exchanged: bool) -> None:
    """A visit is served. Workers' clocks are other hosts': what they say is moved to where it can be."""
    worker, start, released = int(asked["worker"]), float(asked["start"]), float(asked["released"])
    before = self._rows[self._last[worker]] if self._last[worker] >= 0 else None
    restarted = worker in self._came_back
    origin = self._origin or 0.0
    if restarted:
      start = self._came_back.pop(worker)
    elif before:
      arrival = max(arrival, before[RELEASED])
      before[RELEASED] = min(max(released - origin, before[RELEASED]), arrival)
      start = max(start - origin, before[RELEASED])
    else:
      start = max(start - origin, 0.0)
    start = min(start, arrival)
    served, index = max(self.now(), self._seconds()), len(self._rows)
    stale = index - int(self._learnt[worker])
    row = (worker, int(asked["round"]), start, arrival, served, index + 1, served, stale, int(asked["peer"]))
    self._last[worker], self._learnt[worker] = index, index + 1
    self._rows.append([*row, False, restarted])
    self._exchanges += exchanged

  def behind(self, worker: int) -> bool:
    """Whether others were served since its visit."""
    return len(self._rows) > self._last[worker] + 1

  def told(self, worker: int) -> None:
    """A worker is told anew what the center is."""
    row = self._rows[self._last[worker]]
    row[ANSWERED] = self._learnt[worker] = len(self._rows)
    row[RELEASED] = max(self.now(), self._seconds())

  def progress(self) -> Progress:
    """How far it is; the seconds are those of the last visit."""
    return Progress(len(self._rows), self._exchanges, self._seconds())

  def events(self) -> Events:
    """The visits so far."""
    columns: Sequence[Any] = list(zip(*self._rows, strict=True)) or [()] * len(Events._fields)
    named = dict(zip(Events._fields, columns, strict=True))
    return Events(**{name: np.array(named[name], kind) for name, kind in TYPES.items()})

  def restore(self, events: Events, exchanges: int) -> None:
    """Goes on from what `events` gave."""
    self._rows = [list(row) for row in zip(*(column.tolist() for column in events), strict=True)]
    self._exchanges = exchanges
    for i, row in enumerate(self._rows):
      self._last[row[0]] = i

  def _seconds(self) -> float:
    return self._rows[-1][SERVED] if self._rows else 0.0


ANSWERED, RELEASED, SERVED = (Events._fields.index(name) for name in ("answered", "released", "served"))


def labels(folder: Path, shard: int) -> list[int]:
  """The numbers of visits of this shard's whole checkpoints, in order."""
  found = (re.fullmatch(rf"shard{shard}-(\d+)\.npz", path.name) for path in folder.glob(f"shard{shard}-*.npz"))
  return sorted(int(match[1]) for match in found if match)


def newest(folder: Path, shards: int) -> int | None:
  """The newest that all shards have, None if there is none."""
  common = set.intersection(*(set(labels(folder, k)) for k in range(shards)))
  return max(common, default=None)


def save(folder: Path, shard: int, label: int, tree: Tree, events: Events, *, keep: int) -> None:
  """Writes the leaves and the record, then forgets what is older than `keep` visits."""
  folder.mkdir(parents=True, exist_ok=True)
  path = _path(folder, shard, label)
  leaves = {f"leaf{i:04d}": np.asarray(x) for i, x in enumerate(jax.tree.leaves(tree))}
  arrays.save(path, leaves | events._asdict())
  for old in labels(folder, shard):
    if old < keep:
      _path(folder, shard, old).unlink()


def load(folder: Path, shard: int, label: int, like: Tree) -> tuple[Tree, Events]:
  """What `save` wrote, as `like`. ValueError, one line, if it is another model's, algorithm's or number of shards'."""
  path = _path(folder, shard, label)
  with np.load(path, allow_pickle=False) as saved:
    wanted = jax.tree.leaves(like)
    leaves: list[Any] = [saved[name] for name in sorted(saved.files) if name.startswith("leaf")]
    if [x.shape for x in leaves] != [np.shape(x) for x in wanted]:
      raise ValueError(f"{path} was written by another model, algorithm, number of workers or number of shards")
    leaves = [x.view(y.dtype) if x.dtype.kind == "V" else x for x, y in zip(leaves, wanted, strict=True)]  # bfloat16
    return jax.tree.unflatten(jax.tree.structure(like), leaves), Events(**{name: saved[name] for name in TYPES})


def _path(folder: Path, shard: int, label: int) -> Path:
  return folder / f"shard{shard}-{label:09d}.npz"


class ShardState:
  """The server, what it last told each worker, and the workers' non-trained state of the model."""

  def __init__(self, algorithm: ServerAlgorithm, part: np.ndarray, extra: Tree):
    """part: the initial parameters of the shard; extra: the model's initial non-trained state."""
    _, server, self.start_reply = algorithm.init(jnp.asarray(part))
    self.server = jax.tree.map(lambda x: jnp.array(x, copy=True), server)  # donated: no two leaves of one buffer
    self.like = visit_trees(algorithm, part.size, part.dtype)
    self.extra, self.extras = extra, dict[int, list[np.ndarray]]()  # by worker
    self.reads = algorithm.read is not None
    self._replies = dict[int, Tree]()  # what each worker was last told
    self._clock = algorithm.delay, algorithm.period
    self._serve = jax.jit(algorithm.serve, donate_argnums=0)
    self._evaluate = jax.jit(algorithm.evaluate)
    self._read = jax.jit(algorithm.read) if algorithm.read else None

  def warm_up(self) -> None:
    """Compile what a visit needs, and forget it; twice, as what a first one gives may have other types."""
    server, visit = jax.tree.map(lambda x: jnp.array(x, copy=True), self.server), self._visit(0, -1, 0)
    message = jax.tree.map(lambda x: np.zeros(x.shape, x.dtype), self.like.message)
    for _ in range(2):
      server, reply = self._serve(server, message, visit)
      if self._read:
        server, _ = self._read(server, reply, visit)
      jax.block_until_ready(self._evaluate(server))

  def serve(self, worker: int, peer: int, round_: int, message: list[Any]) -> list[np.ndarray]:
    """Serve the message of a worker's round; return the leaves of the reply."""
    sent = jax.tree.unflatten(jax.tree.structure(self.like.message), message)
    visit = self._visit(worker, peer, round_)
    self.server, self._replies[worker] = self._serve(self.server, sent, visit)
    return [np.asarray(x) for x in jax.tree.leaves(self._replies[worker])]

  def tell_anew(self, worker: int, peer: int, round_: int) -> list[np.ndarray]:
    """Read the server after other visits; return the leaves of the reply."""
    assert self._read
    self.server, reply = self._read(self.server, self._replies[worker], self._visit(worker, peer, round_))
    return [np.asarray(x) for x in jax.tree.leaves(reply)]

  def begin(self, worker: int, round_: int) -> np.ndarray:
    """Return the parameters that a worker starts this round from after others were served."""
    if self._read:
      self.server, _ = self._read(self.server, self.start_reply, self._visit(worker, -1, round_))
    return self.center()

  def center(self) -> np.ndarray:
    """Return the shard's part of the parameters to test."""
    return np.array(self._evaluate(self.server))

  def mean_extra(self) -> Tree:
    """Return the workers' mean of floating-point leaves; of others (counters) the largest."""
    if not self.extras:
      return self.extra
    columns = zip(*self.extras.values(), strict=True)
    means = [np.mean(c, axis=0, dtype=c[0].dtype) if c[0].dtype.kind != "i" else np.max(c, axis=0) for c in columns]
    return jax.tree.unflatten(jax.tree.structure(self.extra), means)

  def save(self, folder: Path, shard: int, label: int, events: Events, *, keep: int) -> None:
    """Write a checkpoint, see `shard_checkpoint.save`."""
    save(folder, shard, label, (self.server, self.mean_extra()), events, keep=keep)

  def restore(self, folder: Path, shard: int, label: int) -> Events:
    """Go on from a checkpoint; return its record."""
    (server, self.extra), events = load(folder, shard, label, (self.server, self.extra))
    self.server = jax.tree.map(jnp.array, server)
    return events

  def _visit(self, worker: int, peer: int, round_: int) -> Visit:
    delay, period = self._clock
    return Visit(np.int32(worker), np.int32(peer), np.int32(visit_step(delay, round_, period)))


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
    self.members = LiveBarrier(settings["barrier"], workers=self.workers, seed=settings["seed"], present=False)
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
    threading.Thread(target=ray_transport.admit, args=(listener, self, self.token), daemon=True).start()
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
