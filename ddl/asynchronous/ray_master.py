"""A shard of the master on Ray: server state, checkpoints, admission of workers and the record of visits."""

import os
import re
import threading
import time
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ddl.api import ServerAlgorithm, Tree, Visit
from ddl.asynchronous import ray_transport as wire
from ddl.asynchronous.flat_params import visit_trees
from ddl.asynchronous.worker_round import visit_step
from ddl.engine.consensus import Progress
from ddl.errors import OptionError
from ddl.events import arrays
from ddl.events.barriers import LiveBarrier
from ddl.events.record import ROW, TYPES, Events, VisitRow, make_events


class Snapshot(NamedTuple):
  """Parameters (or a shard's slice of them) and progress after a visit.

  The fields other than `params` are valid only in a snapshot of the first shard.
  """

  params: Any  # parameters to evaluate
  extra: Tree
  progress: Progress
  losses: list[np.ndarray]  # losses of the steps since the last snapshot


class Record:
  """The events recorded so far, and the clock of the run."""

  def __init__(self, workers: int, period: int, paired: bool):
    """Create an empty record with a stopped clock.

    period: steps in a worker round; paired: whether only visits with a peer count as exchanges.
    """
    # _latest: index of each worker's last row
    self._rows, self._peers, self._latest = list[VisitRow](), list[int](), [-1] * workers
    self._restarts = dict[int, float]()  # worker -> time of a restart since its last visit
    self._origin: float | None = None
    self._paired, self._exchanges, self._period = paired, 0, period

  def start(self) -> None:
    """Start the clock at the time of the last visit, unless it is running."""
    if self._origin is None:
      self._origin = time.time() - self._seconds()

  def now(self) -> float:
    """Return the seconds since the start of the run, never less than the time of the last visit."""
    return self._seconds() if self._origin is None else max(time.time() - self._origin, self._seconds())

  def restart(self, worker: int) -> None:
    """Record that a worker restarts from the current center."""
    self._restarts[worker] = self.now()

  def add(self, request: Any, arrival: float) -> None:
    """Add a served visit. Times from other hosts' clocks are clipped, so that no event precedes its cause.

    request: the message's header, of type `ray_transport.REQUEST`; arrival: seconds since the start of the run.
    """
    worker, origin = int(request["worker"]), self._origin or 0.0
    start, released = float(request["start"]) - origin, float(request["released"]) - origin
    if restarted := worker in self._restarts:
      start = self._restarts.pop(worker)
    elif self._latest[worker] >= 0:
      before = self._rows[self._latest[worker]]
      arrival = max(arrival, before.released)
      before.released = min(max(released, before.released), arrival)
      start = max(start, before.released)
    start, served = min(max(start, 0.0), arrival), self.now()
    self._latest[worker] = len(self._rows)
    self._peers.append(int(request["peer"]))
    self._exchanges += not self._paired or self._peers[-1] >= 0
    times = (start, arrival, served, len(self._rows) + 1, served)
    self._rows.append(VisitRow(worker, int(request["round"]), *times, False, restarted, self._period))

  def behind(self, worker: int) -> bool:
    """Return whether other visits have been served since the worker's last visit."""
    return len(self._rows) > self._latest[worker] + 1

  def answer(self, worker: int) -> None:
    """Record that a worker's last visit is answered with the current center."""
    row = self._rows[self._latest[worker]]
    row.answered, row.released = len(self._rows), self.now()

  def progress(self) -> Progress:
    """Return the progress up to the last visit."""
    return Progress(len(self._rows), self._exchanges, self._seconds())

  def events(self) -> Events:
    """Return the recorded visits."""
    return make_events(self._rows)._replace(peer=np.array(self._peers, np.int32))

  def restore(self, events: Events) -> None:
    """Set the recorded visits to those of an earlier run, which this run continues."""
    self._rows = [VisitRow(*row) for row in zip(*(getattr(events, name).tolist() for name in ROW), strict=True)]
    self._peers = events.peer.tolist()
    self._exchanges = sum(not self._paired or peer >= 0 for peer in self._peers)
    for i, row in enumerate(self._rows):
      self._latest[row.worker] = i

  def _seconds(self) -> float:
    return self._rows[-1].served if self._rows else 0.0


def labels(folder: Path, shard: int) -> list[int]:
  """Return the visit counts of a shard's saved checkpoints, in ascending order."""
  matches = (re.fullmatch(rf"shard{shard}-(\d+)\.npz", path.name) for path in folder.glob(f"shard{shard}-*.npz"))
  return sorted(int(match[1]) for match in matches if match)


def newest(folder: Path, shards: int) -> int | None:
  """Return the number of visits of the newest checkpoint that all shards have, or None."""
  return max(set.intersection(*(set(labels(folder, k)) for k in range(shards))), default=None)


def save(folder: Path, shard: int, label: int, tree: Tree, events: Events, *, keep: int) -> None:
  """Write a tree and the visits as the checkpoint after `label` visits; delete those after fewer than `keep` visits."""
  folder.mkdir(parents=True, exist_ok=True)
  leaves = {f"leaf{i:04d}": np.asarray(x) for i, x in enumerate(jax.tree.leaves(tree))}
  arrays.save(_path(folder, shard, label), leaves | events._asdict())
  for old in labels(folder, shard):
    if old < keep:
      _path(folder, shard, old).unlink()


def load(folder: Path, shard: int, label: int, like: Tree) -> tuple[Tree, Events]:
  """Read a checkpoint; return (tree with the structure of `like`, visits).

  Raises OptionError if shapes differ, as with another model, algorithm, number of workers or number of shards.
  """
  path, expected = _path(folder, shard, label), jax.tree.leaves(like)
  with np.load(path, allow_pickle=False) as saved:
    leaves: list[Any] = [saved[name] for name in sorted(saved.files) if name.startswith("leaf")]
    if [x.shape for x in leaves] != [np.shape(x) for x in expected]:
      condition = "a checkpoint of this model, algorithm, number of workers and number of shards"
      raise OptionError(str(path), condition, "arrays of other shapes")
    leaves = [x.view(y.dtype) if x.dtype.kind == "V" else x for x, y in zip(leaves, expected, strict=True)]  # bfloat16
    return jax.tree.unflatten(jax.tree.structure(like), leaves), Events(**{name: saved[name] for name in TYPES})


def _path(folder: Path, shard: int, label: int) -> Path:
  return folder / f"shard{shard}-{label:09d}.npz"


class ShardState:
  """The state of a shard: the server, its last reply to each worker, and each worker's non-trained state."""

  def __init__(self, algorithm: ServerAlgorithm, part: np.ndarray, extra: Tree):
    """Initialize from the shard's slice of the initial parameters and the initial non-trained state."""
    _, server, self.first_reply = algorithm.init(jnp.asarray(part))
    self.server = jax.tree.map(lambda x: jnp.array(x, copy=True), server)  # donated leaves must not share buffers
    self.like = visit_trees(algorithm, part.size, part.dtype)
    self.extra, self.extras = extra, dict[int, list[np.ndarray]]()  # worker -> leaves
    self.reads = algorithm.read is not None
    self._replies = dict[int, Tree]()  # worker -> last reply
    self._clock = algorithm.delay, algorithm.period
    self._serve = jax.jit(algorithm.serve, donate_argnums=0)
    self._evaluate = jax.jit(algorithm.evaluate)
    self._read = jax.jit(algorithm.read) if algorithm.read else None

  def warm_up(self) -> None:
    """Compile the functions of a visit by calling them twice, because types may change after the first call."""
    server, visit = jax.tree.map(lambda x: jnp.array(x, copy=True), self.server), self._visit(0, -1, 0)
    message = jax.tree.map(lambda x: np.zeros(x.shape, x.dtype), self.like.message)
    for _ in range(2):
      server, reply = self._serve(server, message, visit)
      if self._read:
        server, _ = self._read(server, reply, visit)
      jax.block_until_ready(self._evaluate(server))

  def serve(self, worker: int, peer: int, round_: int, message: list[Any]) -> list[np.ndarray]:
    """Serve the message of a worker's round; return the reply's leaves."""
    sent = jax.tree.unflatten(jax.tree.structure(self.like.message), message)
    visit = self._visit(worker, peer, round_)
    self.server, self._replies[worker] = self._serve(self.server, sent, visit)
    return [np.asarray(x) for x in jax.tree.leaves(self._replies[worker])]

  def read(self, worker: int, peer: int, round_: int) -> list[np.ndarray]:
    """Return the leaves of the last reply to a worker, brought up to date by `ServerAlgorithm.read`."""
    assert self._read
    self.server, reply = self._read(self.server, self._replies[worker], self._visit(worker, peer, round_))
    return [np.asarray(x) for x in jax.tree.leaves(reply)]

  def begin(self, worker: int, round_: int) -> np.ndarray:
    """Return the shard's slice of the parameters with which a worker restarts at this round."""
    if self._read:
      self.server, _ = self._read(self.server, self.first_reply, self._visit(worker, -1, round_))
    return self.center()

  def center(self) -> np.ndarray:
    """Return the shard's slice of the parameters to evaluate."""
    return np.array(self._evaluate(self.server))

  def mean_extra(self) -> Tree:
    """Return the mean of the workers' non-trained states; for integer leaves (counters), the maximum."""
    if not self.extras:
      return self.extra
    columns = zip(*self.extras.values(), strict=True)
    means = [np.mean(c, axis=0, dtype=c[0].dtype) if c[0].dtype.kind != "i" else np.max(c, axis=0) for c in columns]
    return jax.tree.unflatten(jax.tree.structure(self.extra), means)

  def _visit(self, worker: int, peer: int, round_: int) -> Visit:
    delay, period = self._clock
    return Visit(np.int32(worker), np.int32(peer), np.int32(visit_step(delay, round_, period)))


class Shard:
  """A Ray actor that serves a slice of the parameters, with one thread per worker and a lock around each visit."""

  def __init__(
    self, index: int, algorithm: ServerAlgorithm, part: np.ndarray, extra: Tree, *, visits: int, **settings: Any
  ):
    """Initialize the shard from its slice of the parameters and the non-trained state, for a run of `visits` visits.

    settings: maximum number of `workers`; `barrier`, a `Bounded`; `seed` of the barrier's samples; `folder` of the
      checkpoints; `every`, the visits between checkpoints (0: none); `marks`, the numbers of visits after which a
      snapshot is stored until it is requested; `token`, which authenticates workers.
    """
    self.index, self.algorithm, self.visits = index, algorithm, visits
    self.workers, self.marks = settings["workers"], set(settings["marks"])
    self.folder, self.every, self.token = Path(settings["folder"]), settings["every"], settings["token"]
    self.state = ShardState(algorithm, part, extra)
    self.served, self.failure, self.closed = 0, "", False
    self.record = Record(self.workers, algorithm.period, algorithm.arrivals.peers != "none")
    self.losses, self.snapshots = list[np.ndarray](), dict[int, Snapshot]()
    self.rounds = np.zeros(self.workers, int)
    self.members = LiveBarrier(settings["barrier"], workers=self.workers, seed=settings["seed"], present=False)
    self.admitted = set[int]()  # workers that may send a message
    self.active: int | None = None  # the rank that may send a message in a round robin
    self.changed = threading.Condition()

  def open(self, label: int | None, host: str | None = None) -> tuple[str, int]:
    """Start serving; return the address for workers.

    label: number of visits of the checkpoint to start from; None: start from the initial parameters. host: address to
      listen on; by default, that of this Ray node.
    """
    if host is None:
      import ray

      host = str(ray.util.get_node_ip_address())
    if label is not None:
      (server, self.state.extra), events = load(self.folder, self.index, label, (self.state.server, self.state.extra))
      self.state.server = jax.tree.map(jnp.array, server)
      self.record.restore(events)
      self.served = label
      np.maximum.at(self.rounds, events.worker, events.round + 1)
    self.state.warm_up()
    return wire.listen(host, self, self.token)

  def pid(self) -> int:
    """Return the process ID."""
    return os.getpid()

  def begin(self, worker: int) -> tuple[int, int, np.ndarray | None, Tree]:
    """Admit a starting worker if visits remain; return (status, its first round, slice of the parameters, extra).

    status: `ray_transport.GO` or STOP. The slice is None if the worker starts from the initial parameters.
    """
    with self.changed:
      self.record.start()
      if self.active == worker:
        self.active = None
      room = self.served + len(self.admitted) < self.visits
      if self.algorithm.arrivals.round_robin:
        room = (worker - self.served) % self.workers < self.visits - self.served
      if worker in self.admitted or room:
        self.admitted.add(worker)
        self.members.join(worker)
      status = wire.GO if worker in self.admitted else wire.STOP
      self.changed.notify_all()
      if not self.served:
        return status, 0, None, self.state.extra
      part = self.state.begin(worker, int(self.rounds[worker]))
      self.record.restart(worker)
      return status, int(self.rounds[worker]), part, self.state.mean_extra()

  def lose(self, worker: int) -> None:
    """Exclude a dead worker from the barrier until it restarts."""
    with self.changed:
      self.members.leave(worker)
      self.changed.notify_all()

  def close(self) -> None:
    """Reply STOP to all further messages."""
    with self.changed:
      self.closed = True

  def snapshot(self, visits: int | None) -> Snapshot:
    """Return the snapshot stored after this number of visits; without one, take a snapshot now."""
    with self.changed:
      self.marks.discard(visits)  # a shard that lags needs no snapshot later
      return self.snapshots.pop(visits) if visits in self.snapshots else self._snapshot()

  def progress(self, seconds: float) -> tuple[int, np.ndarray, list[int], str]:
    """Wait up to `seconds` for an error or, in the first shard, a snapshot or the last visit; return the progress.

    Returns (visits, visits of each worker, numbers of visits at the stored snapshots, error or "").
    """
    with self.changed:
      is_first = self.index == 0  # the supervisor needs no reports about the snapshots of other shards
      self.changed.wait_for(
        lambda: self.failure or (is_first and (self.snapshots or self.served >= self.visits)), seconds
      )
      return self.served, self.rounds.copy(), sorted(self.snapshots), self.failure

  def events(self) -> Events:
    """Return the recorded visits; only the first shard records them."""
    with self.changed:
      return self.record.events()

  def save(self, label: int) -> None:
    """Write a checkpoint. label: the first shard's number of visits."""
    with self.changed:
      self._save(label)

  def visited(self, request: Any, arrival: float, losses: Any, extra: Any, message: Any) -> tuple[int, list[Any]]:
    """Serve a message; return the status and the reply's leaves. The caller must hold the lock `changed`."""
    if self.closed:
      return wire.STOP, [np.asarray(x) for x in jax.tree.leaves(self.state.first_reply)]
    worker, number = int(request["worker"]), int(request["round"])
    reply = self.state.serve(worker, int(request["peer"]), number, message)
    if not all(np.isfinite(x).all() for x in (*message, *reply)):
      step = number * self.algorithm.period
      self.failure = (
        f"visit {self.served}: in round {number} of worker {worker} (a round that starts after {step} of the worker's "
        "steps), the message or the reply is not finite"
      )
    if self.failure:
      self.changed.notify_all()
      return wire.DIVERGED, reply
    if self.index == 0:
      self.record.add(request, arrival)
      self.losses.append(losses.copy())
      self.state.extras[worker] = [x.copy() for x in extra]
    self.served += 1
    self.rounds[worker] = number + 1
    self.admitted.discard(worker)
    if self.served + len(self.admitted) < self.visits:
      self.admitted.add(worker)
    else:  # the worker runs no further round
      self.members.leave(worker)
      if self.active == worker:
        self.active = None
    if self.served in self.marks:
      self.snapshots[self.served] = self._snapshot()
    if self.every and self.served % self.every == 0:
      self._save(self.served)
    self.changed.notify_all()
    return wire.GO if worker in self.admitted else wire.STOP, reply

  def wait_for_round(self, worker: int) -> bool:
    """Wait until the worker may start a round; return whether its last reply is outdated by then.

    In a round robin a worker may start when it is next by rank and all others have finished. Otherwise the barrier
    decides. It counts a round as finished when the worker requests the next one, because by then all shards have
    served that round.
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
      self.changed.wait_for(lambda: worker not in self.members.waiting_for or self.failure)
      outdated = not self.algorithm.delay and self.record.behind(worker)
      if outdated and not self.state.reads:
        self.record.answer(worker)
      return outdated

  def read(self, request: Any) -> list[Any]:
    """Return the leaves of the last reply to a worker, brought up to date with other workers' visits since then."""
    worker = int(request["worker"])
    with self.changed:
      # The header names the next round.
      reply = self.state.read(worker, int(request["peer"]), int(request["round"]) - 1)
      if self.index == 0 and self.record.behind(worker):
        self.record.answer(worker)
      return reply

  def _snapshot(self) -> Snapshot:
    losses, self.losses = self.losses, []
    return Snapshot(self.state.center(), self.state.mean_extra(), self.record.progress(), losses)

  def _save(self, label: int) -> None:
    if not np.isfinite(self.state.center()).all():
      self.failure = self.failure or f"visit {label}: the center is not finite"
      return
    keep = label - 2 * self.every - self.workers  # other shards lag by fewer visits than this
    tree = self.state.server, self.state.mean_extra()
    save(self.folder, self.index, label, tree, self.record.events(), keep=keep)
