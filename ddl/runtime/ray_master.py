"""One shard of the master: the algorithm's server for a run of the flat parameters, served over a socket."""

import os
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ddl.api import ServerAlgorithm, Tree, Visit
from ddl.events.record import TYPES, Events
from ddl.runtime import ray_files as files
from ddl.runtime import ray_wire as wire


class Shard:
  """The server's state, one thread per connection, a lock around each visit. A Ray actor, but it does not use Ray."""

  def __init__(
    self, index: int, algorithm: ServerAlgorithm, part: np.ndarray, extra: Tree, *, visits: int, **settings: Any
  ):
    """part: this shard's initial parameters; extra: the model's initial non-trained state; visits: after which to stop.

    settings: workers (how many there may be), period (steps), folder, every (visits per checkpoint, 0: none), token.
    """
    self.index, self.algorithm, self.visits = index, algorithm, visits
    self.workers, self.period = settings["workers"], settings["period"]
    self.folder, self.every, self.token = Path(settings["folder"]), settings["every"], settings["token"]
    _, server, self.start_reply = algorithm.init(jnp.asarray(part))
    self.server = jax.tree.map(lambda x: jnp.array(x, copy=True), server)  # donated: no two leaves of one buffer
    self.like = wire.traffic(algorithm, part.size, part.dtype)
    self.extra, self.extras = extra, dict[int, list[np.ndarray]]()
    self.served, self.origin, self.failure = 0, time.time(), ""
    self.resumed = False
    self.rows: list[list[Any]] = []  # the first shard's: columns of Events
    self.losses: list[np.ndarray] = []
    self.turns, self.learnt = np.zeros(self.workers, int), np.zeros(self.workers, int)
    self.last = np.full(self.workers, -1)  # each worker's latest row
    self.came_back = dict[int, float]()  # worker -> when, before its next visit
    self.holding = set[int]()  # workers that may make a visit
    self.active: int | None = None  # whose turn it is, of a round robin
    self.changed = threading.Condition()
    self._serve = jax.jit(algorithm.serve, donate_argnums=0)
    self._evaluate = jax.jit(algorithm.evaluate)
    self._read = jax.jit(algorithm.read) if algorithm.read else None

  def open(self, label: int | None, host: str | None = None) -> tuple[str, int]:
    """Continues from the checkpoint of so many visits, or starts anew; returns the address where workers connect.

    host: the address to listen at, by default the one by which Ray knows this machine.
    """
    if host is None:
      import ray

      host = str(ray.util.get_node_ip_address())
    if label is not None:
      self._restore(label)
    listener = wire.listen(host)
    threading.Thread(target=self._admit, args=(listener,), daemon=True).start()
    return listener.getsockname()

  def pid(self) -> int:
    """Its process."""
    return os.getpid()

  def begin(self, worker: int) -> tuple[int, int, np.ndarray | None, Tree]:
    """(status, turn, this part of the parameters, extra) that a worker starts from; None: the initial ones."""
    with self.changed:
      if self.active == worker:
        self.active = None
      room = self.served + len(self.holding) < self.visits
      if self.algorithm.round_robin:
        room = (worker - self.served) % self.workers < self.visits - self.served
      if worker in self.holding or room:
        self.holding.add(worker)
      status = wire.GO if worker in self.holding else wire.STOP
      self.changed.notify_all()
      if not self.served:
        return status, 0, None, self.extra
      if self._read:
        self.server, _ = self._read(self.server, self.start_reply, self._visit(worker, -1))
      self.learnt[worker], self.came_back[worker] = self.served, self._now()
      part = np.array(self._evaluate(self.server))
      return status, int(self.turns[worker]), part, self._mean_extra()

  def leave(self, worker: int) -> None:
    """The worker will not come any more: others may make its visit."""
    with self.changed:
      self.holding.discard(worker)
      if self.active == worker:
        self.active = None
      self.changed.notify_all()

  def evaluate(self) -> tuple[np.ndarray, Tree]:
    """This part of the params to test, and the workers' mean extra."""
    with self.changed:
      return np.array(self._evaluate(self.server)), self._mean_extra()

  def progress(self, visits: int, seconds: float) -> tuple[int, np.ndarray, list[np.ndarray], str]:
    """(visits, each worker's, losses since the last call, what went wrong), at so many visits or after so long."""
    with self.changed:
      self.changed.wait_for(lambda: self.served >= visits or self.failure, seconds)
      losses, self.losses = self.losses, []
      return self.served, self.turns.copy(), losses, self.failure

  def events(self) -> Events:
    """The visits so far: as this shard saw them, if it is the first."""
    with self.changed:
      return self._events()

  def save(self, label: int) -> None:
    """A checkpoint that is named after so many visits."""
    with self.changed:
      self._save(label)

  def _admit(self, listener: Any) -> None:
    while True:
      connection, _ = listener.accept()
      threading.Thread(target=self._talk, args=(connection,), daemon=True).start()

  def _talk(self, connection: Any) -> None:
    """Serves one worker until it is gone: what it has not sent to the end was never sent."""
    header, answer = np.zeros(1, wire.REQUEST), np.zeros(1, wire.REPLY)
    losses = np.zeros(self.period, np.float32)
    extra = wire.buffers(self.extra)
    with connection, suppress(OSError):
      if not wire.admit(connection, self.token):
        return
      while True:
        wire.receive(connection, [header])
        asked = header[0]
        if asked["what"] == wire.ASK:
          self._wait_for_turn(int(asked["worker"]))
          continue_at = []
        else:
          message = wire.buffers(self.like.message)  # new ones: JAX may go on with their memory
          wire.receive(connection, [losses, *extra, *message] if self.index == 0 else [losses, *message])
          arrival = self._now()
          with self.changed:
            continue_at = self._visited(asked, arrival, losses, extra, message, answer)
        wire.send(connection, [answer, *continue_at])

  def _visited(self, asked: Any, arrival: float, losses: Any, extra: Any, message: Any, answer: Any) -> list[Any]:
    worker, turn = int(asked["worker"]), int(asked["turn"])
    sent = jax.tree.unflatten(jax.tree.structure(self.like.message), message)
    self.server, reply = self._serve(self.server, sent, self._visit(worker, int(asked["peer"])))
    replies = [np.asarray(x) for x in jax.tree.leaves(reply)]
    answer["visit"] = self.served
    if not all(np.isfinite(x).all() for x in (*message, *replies)):
      self.failure = (
        f"visit {self.served}: the message of worker {worker}'s turn {turn} (its step {turn * self.period}) or the "
        f"center is not finite; the last good checkpoint stays, a lower learning rate may help"
      )
    if self.failure:
      answer["status"] = wire.DIVERGED
      self.changed.notify_all()
      return replies
    if self.index == 0:
      self._record(asked, arrival)
      self.losses.append(losses.copy())
      self.extras[worker] = [x.copy() for x in extra]
    self.served += 1
    self.turns[worker], self.learnt[worker] = turn + 1, self.served
    self.holding.discard(worker)
    if self.served + len(self.holding) < self.visits:
      self.holding.add(worker)
    answer["status"] = wire.GO if worker in self.holding else wire.STOP
    if worker not in self.holding and self.active == worker:
      self.active = None  # it will not ask again
    if self.every and self.served % self.every == 0:
      self._save(self.served)
    self.changed.notify_all()
    return replies

  def _record(self, asked: Any, arrival: float) -> None:
    """Workers' clocks are other hosts': what they say is moved to where it can be."""
    worker, start, released = int(asked["worker"]), float(asked["start"]), float(asked["released"])
    before = self.rows[self.last[worker]] if self.last[worker] >= 0 else None
    restarted = worker in self.came_back
    if restarted:
      start = self.came_back.pop(worker)
    elif before:
      arrival = max(arrival, before[RELEASED])
      before[RELEASED] = min(max(released - self.origin, before[RELEASED]), arrival)
      start = max(start - self.origin, before[RELEASED])
    else:
      start = max(start - self.origin, 0.0)
    start = min(start, arrival)
    served = max(self._now(), self.rows[-1][SERVED] if self.rows else 0.0)
    stale = self.served - int(self.learnt[worker])
    row = (worker, int(asked["turn"]), start, arrival, served, self.served + 1, served, stale, int(asked["peer"]))
    self.last[worker] = len(self.rows)
    self.rows.append([*row, False, restarted])

  def _wait_for_turn(self, worker: int) -> None:
    """Round robin: until everybody else is done with theirs and this one is next by rank."""
    with self.changed:
      if self.active == worker:
        self.active = None
        self.changed.notify_all()
      self.changed.wait_for(lambda: self.active is None and self.served % self.workers == worker)
      self.active = worker

  def _now(self) -> float:
    return max(time.time() - self.origin, 0.0)

  def _visit(self, worker: int, peer: int) -> Visit:
    return Visit(np.int32(worker), np.int32(peer))

  def _mean_extra(self) -> Tree:
    """The workers' mean of floating-point leaves; of others (counters) the largest."""
    if not self.extras:
      return self.extra
    columns = zip(*self.extras.values(), strict=True)
    means = [np.mean(c, axis=0, dtype=c[0].dtype) if c[0].dtype.kind != "i" else np.max(c, axis=0) for c in columns]
    return jax.tree.unflatten(jax.tree.structure(self.extra), means)

  def _events(self) -> Events:
    columns: Sequence[Any] = list(zip(*self.rows, strict=True)) or [()] * len(Events._fields)
    return Events(*(np.array(c, kind) for kind, c in zip(TYPES_IN_ORDER, columns, strict=True)))

  def _save(self, label: int) -> None:
    if not np.isfinite(self._evaluate(self.server)).all():
      self.failure = self.failure or f"visit {label}: the center is not finite; the last good checkpoint stays"
      return
    keep = label - 2 * self.every - self.workers  # shards are at most so far apart
    files.save(self.folder, self.index, label, (self.server, self._mean_extra()), self._events(), keep=keep)

  def _restore(self, label: int) -> None:
    (server, self.extra), events = files.load(self.folder, self.index, label, (self.server, self.extra))
    self.server = jax.tree.map(jnp.array, server)
    self.rows = [list(row) for row in zip(*(column.tolist() for column in events), strict=True)]
    self.served = label
    self.origin = time.time() - (self.rows[-1][SERVED] if self.rows else 0.0)
    for i, row in enumerate(self.rows):
      self.last[row[0]] = i
      self.turns[row[0]] = row[1] + 1


TYPES_IN_ORDER = [kind for name in Events._fields for key, kind in TYPES.items() if key == name]
RELEASED, SERVED = (Events._fields.index(name) for name in ("released", "served"))
