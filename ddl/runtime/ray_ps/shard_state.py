"""The state of one shard of the master: the algorithm's server for a run of the flat parameters, compiled."""

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ddl.api import ServerAlgorithm, Tree, Visit
from ddl.events.record import Events
from ddl.runtime.flat_params import visit_trees
from ddl.runtime.ray_ps import shard_checkpoint as files
from ddl.runtime.rounds.worker_round import visit_step


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
    files.save(folder, shard, label, (self.server, self.mean_extra()), events, keep=keep)

  def restore(self, folder: Path, shard: int, label: int) -> Events:
    """Go on from a checkpoint; return its record."""
    (server, self.extra), events = files.load(folder, shard, label, (self.server, self.extra))
    self.server = jax.tree.map(jnp.array, server)
    return events

  def _visit(self, worker: int, peer: int, round_: int) -> Visit:
    delay, period = self._clock
    return Visit(np.int32(worker), np.int32(peer), np.int32(visit_step(delay, round_, period)))
