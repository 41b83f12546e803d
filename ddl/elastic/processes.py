"""Elastic runs of real processes, which fail and join.

A generation of a job whose processes come and go: which workers are in it, and what memory holds of their state.
A process has the same workers in each generation: process r of N those from r p / N on.
"""

import json
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any, NamedTuple

import jax
import numpy as np

from ddl import hosts
from ddl.elastic.supervision import LOST, Memory, Order, SupervisedJob, Supervisor
from ddl.elastic.trainer import PRESENCE, ElasticTrainer, Folder, Held, Rows
from ddl.engine.compiled_trainer import CompiledTrainer
from ddl.engine.workers import Workers, divisors, on_devices
from ddl.events import presence
from ddl.events.presence import Ids, Presence
from ddl.hosts.rendezvous import host_port

# Of messages of a collective whose other side was lost.
COLLECTIVE = ("Gloo", "NCCL", "coordination service", "has not come to", "was not reached")


class Kept(NamedTuple):
  """What memory holds after the step from which a generation goes on."""

  figures: dict[str, Any]
  held: Held  # by the workers of now
  streams: dict[str, Any]  # where those of this process's workers are
  presence: Presence  # up to that step


@dataclass
class Generation:
  """Of one process."""

  order: Order
  memory: Memory
  rank: int  # of this process in the job
  processes: int  # of the job
  workers: int  # p, of the job
  round_steps: int  # after which a state is kept

  def ids(self, ranks: tuple[int, ...] | None = None) -> Ids:
    """Return the workers of some processes of the job, by default of those that are in the generation."""
    each = self.workers // self.processes
    return tuple(rank * each + i for rank in (self.order.ranks if ranks is None else ranks) for i in range(each))

  @property
  def first(self) -> int:
    """The index of the first process that stays."""
    return self.order.ranks.index((self.order.stay or self.order.ranks)[0])

  @property
  def mine(self) -> Ids:
    """The workers of this process."""
    return self.ids((self.rank,))

  def layout(self, ids: Ids) -> Workers:
    """Return these workers, of whole processes that are in the generation, on the devices of those."""
    there = [index for index, rank in enumerate(self.order.ranks) if {*self.ids((rank,))} <= {*ids}]
    return on_devices(len(ids), [device for index in there for device in self._devices(index)], 1)

  def here(self, ids: Ids) -> Workers:
    """Return these workers, some of whom may be lost, all on a device of this process."""
    return on_devices(len(ids), jax.local_devices()[:1], 1)

  def _devices(self, index: int) -> list[Any]:
    found = sorted((d for d in jax.devices() if d.process_index == index), key=lambda d: d.id)
    even = divisors(self.workers // self.processes)
    return found[: max(d for d in even if d <= len(found))]

  @property
  def alone(self) -> Presence:
    """The presence of a run that begins with this generation."""
    return Presence(self.workers, ((0, self.ids()),))

  def before(self, folder: Folder) -> Presence:
    """Return who was present up to the last checkpoint, and perhaps later, of a run that goes on from there."""
    file = folder.path / PRESENCE
    return presence.load(file, self.workers) if file.exists() else self.alone

  def gone_on(self, before: Presence, step: int) -> Presence:
    """Return the presence with the workers of this generation from a step on."""
    kept = tuple(change for change in before.changes if change[0] < step)
    if kept and kept[-1][1] == self.ids():
      return before._replace(changes=kept)
    return before._replace(changes=(*kept, (step, self.ids())))

  def keep(self, step: int, trainer: ElasticTrainer, held: Held, figures: Mapping[str, Any], streams: Any) -> None:
    """Keep the state after a step in memory."""
    told = {"figures": figures, "streams": streams, "presence": trainer.presence.changes}
    rows = trainer.rows(held)
    own = [bool(leaf) for leaf in jax.tree.leaves(rows.own)]
    self.memory.write(step, json.dumps(told | {"own": own}), jax.tree.leaves(rows.carry))

  def kept(self, trainer: ElasticTrainer, key: jax.Array) -> Kept | None:
    """Return what memory holds of those that stay; None without. key: of the start, for those that join."""
    if not self.order.stay:
      return None
    text, arrays = self._kept
    told = json.loads(next(text for text in hosts.exchange(text) if text))
    rows, streams = None, {}
    if text:
      mine = json.loads(text)
      treedef = jax.tree.structure(trainer.all.own)
      rows = Rows(treedef.unflatten(arrays), treedef.unflatten(mine["own"]), self.mine)
      streams = mine["streams"]
    before = self.ids(self.order.stay)
    there = Presence(self.workers, tuple((step, tuple(ids)) for step, ids in told["presence"]))
    return Kept(told["figures"], trainer.placed(rows, before, self.ids(), self.order.step, key), streams, there)

  @cached_property
  def _kept(self) -> tuple[str, list[np.ndarray]]:
    return self.memory.read(self.order.step) if self.rank in self.order.stay else ("", [])

  def note(self, folder: Folder, found: Presence) -> None:
    """Write who is present when to the run's folder."""
    if folder.writes:
      folder.path.mkdir(parents=True, exist_ok=True)
      presence.save(folder.path / PRESENCE, found)


def of_processes(make: Callable[[Workers], CompiledTrainer], generation: Generation) -> ElasticTrainer:
  """Return the trainers of one process of a job, as if none of the others had failed before.

  make: workers on devices -> their trainer.
  """
  of = cache(make)
  trainer = ElasticTrainer(
    lambda ids: of(generation.layout(ids)), generation.alone, generation.mine, hosts.share,
    lambda ids: of(generation.here(ids)),
  )  # fmt: skip
  trainer.layout |= {"devices": 0, "processes": generation.processes, "come and go": True}
  return trainer


class MemoryStore:
  """A store that keeps the state of each round in memory, beside the checkpoints on disk.

  Implements `ddl.run.checkpoints.Store`.
  """

  def __init__(self, checkpoints: Any, generation: Generation, restored: Callable[..., Any]):
    """checkpoints: a store; restored: makes a `Restored` of carry, figures, first step, streams and `joined`."""
    self._checkpoints, self._generation, self._restored = checkpoints, generation, restored

  def restore(self, batch: Any, resume: bool) -> Any:
    """Return the state that the survivors hold, else that of the newest checkpoint; None: start at step 0."""
    generation, trainer, folder = self._generation, batch.trainer, batch.runs[0].folder
    kept, before = generation.kept(trainer, batch.initial_key), None
    state = self._checkpoints.restore(batch, False)
    if kept:
      figures, before = kept.figures, kept.presence
      state = self._restored(kept.held, [figures], 0, [(figures["step"], kept.streams)], True)
    elif resume and self._checkpoints.steps():
      before = trainer.presence = generation.before(folder)
      if state := self._checkpoints.restore(batch, True):
        state = state._replace(joined=True)
    if before and state:
      trainer.presence = generation.gone_on(before, state.figures[0]["step"])
    generation.note(folder, trainer.presence)
    return state

  def due(self, first: int, step: int) -> bool:
    """Return whether a round ends, or a checkpoint is due."""
    return step % self._generation.round_steps == 0 or self._checkpoints.due(first, step)

  def __call__(self, state: Any) -> None:
    """Save a checkpoint where that is due; keep the state of a complete round."""
    self._checkpoints(state)
    if state.step and state.carry is not None and state.step % self._generation.round_steps == 0:
      batch = state.batch
      self._generation.keep(state.step, batch.trainer, state.carry, batch.figures[0], batch.stream_states(0))

  def finished(self, run: int) -> None:
    """Do nothing: the last state is in the checkpoint."""

  def close(self) -> None:
    """Wait for what is being saved."""
    self._checkpoints.close()


Run = Callable[[Order, Memory], int]


def supervise(run: Run, failed: Callable[[Callable[[], int]], int], **job: Any) -> int:
  """Supervise this process of the job until its end; return the exit code.

  Args:
    run: trains as an order says, in a fork.
    failed: calls a function and returns the exit code of its error.
    job: see `SupervisedJob`.

  Raises:
    ValueError: if the processes do not find each other, or differ.
  """
  me = hosts.member()

  def train(order: Order, memory: Memory) -> int:
    index = order.ranks.index(me.rank)
    place = me._replace(rank=index, count=len(order.ranks), coordinator=host_port(*order.coordinator))
    os.environ[hosts.JOINED] = str(place)
    hosts.declare()
    return failed(lambda: _isolated(lambda: run(order, memory), len(order.ranks)))

  supervised = SupervisedJob(run=train, say=lambda text: hosts.tell(f"train: {text}"), **job)
  return Supervisor(me, supervised).supervise()


def _isolated(run: Callable[[], int], processes: int) -> int:
  """Return the exit code. An error that follows from the loss of another process is left to the supervisor."""
  try:
    code = run()
  except Exception as error:
    if processes > 1:
      time.sleep(hosts.GRACE)
      if any(words in str(error) for words in COLLECTIVE):
        return LOST
    raise
  if processes > 1:
    hosts.exchange("done")  # the end of the first process would be a loss to the others
  return code
