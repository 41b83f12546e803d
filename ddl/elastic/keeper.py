"""In-memory snapshots of the workers' state on each node, from which a job resumes after a process fails."""

import json
import os
import signal
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from typing import Any, NamedTuple

import jax
import numpy as np

from ddl import hosts
from ddl.elastic.trainer import PRESENCE, ElasticTrainer, LocalRows
from ddl.engine.compiled_trainer import CompiledTrainer
from ddl.engine.workers import Workers, divisors, on_devices
from ddl.events import presence
from ddl.events.presence import Ids, Presence

# Number of states stored per process: more than one, as a process can be a round ahead of another that is still sending
# its state.
ROUNDS = 3


class Report(NamedTuple):
  """The report of a node's `Keeper` to the driver."""

  silence: dict[int, float]  # rank -> seconds since its last heartbeat
  steps: dict[int, list[int]]  # rank -> steps after which its state is stored
  text: str  # output of the main process since the last report


class Keeper:
  """An actor that stores the state of a node's processes after each round and receives their heartbeats."""

  def __init__(self) -> None:
    """Create an empty store."""
    self._states = dict[int, dict[int, tuple[str, list[np.ndarray]]]]()  # rank -> step -> state
    self._pids, self._heartbeats = dict[int, int](), dict[int, float]()
    self._membership, self._stop, self._text = -1, 0, ""

  def begin(self, membership: int, ranks: Sequence[int], step: int) -> None:
    """Kill the processes of the previous membership; keep only the states of `ranks` after exactly `step` steps.

    membership: index of the new membership, see `ProcessGroup`.
    """
    for pid in self._pids.values():
      with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)  # also ends suspended processes, unlike `ray.kill`
    self._states = {rank: {step: self._states[rank][step]} for rank in ranks if step in self._states.get(rank, {})}
    self._pids, self._heartbeats, self._membership = {}, {}, membership

  def store(self, membership: int, rank: int, step: int, record: str, leaves: Sequence[np.ndarray]) -> None:
    """Store the state of a process after a step, unless its membership has ended.

    record: JSON of the state other than arrays, such as metrics and data positions. leaves: the arrays of the carry,
    copied because Ray frees objects sent by a process that dies.
    """
    if membership == self._membership:
      states = self._states.setdefault(rank, {})
      states[step] = record, [np.array(leaf) for leaf in leaves]
      for oldest in sorted(states)[:-ROUNDS]:
        del states[oldest]

  def read(self, rank: int, step: int) -> tuple[str, list[np.ndarray]]:
    """Return the record and the leaves passed to `store` for this rank and step."""
    return self._states[rank][step]

  def heartbeat(self, membership: int, rank: int, pid: int, text: str) -> int:
    """Record a process's heartbeat and output; return the signal that asks it to stop, or 0."""
    if membership == self._membership:
      self._pids[rank], self._heartbeats[rank] = pid, time.monotonic()
    self._text += text
    return self._stop

  def stop(self, number: int) -> None:
    """Ask the processes to stop: each sends itself the signal `number` after its next heartbeat."""
    self._stop = number

  def report(self) -> Report:
    """Return a report, and clear the recorded output."""
    now, text, self._text = time.monotonic(), self._text, ""
    return Report(
      {rank: now - last for rank, last in self._heartbeats.items()},
      {rank: sorted(states) for rank, states in self._states.items()},
      text,
    )


@dataclass
class ProcessGroup:
  """A membership: the processes of an elastic job that train together until one of them fails or another one joins.

  Each process has a copy of this object with its own `rank`. Process r of N always has the workers r p / N to
  (r + 1) p / N - 1, where p is the number of workers of the job.
  """

  processes: int  # number of processes of the job
  workers: int  # number of workers of the job
  round_steps: int  # steps per round, after which the state is stored
  ranks: tuple[int, ...]  # ranks of this membership
  rank: int = -1  # rank of this process
  number: int = -1  # index of this membership, from 0
  survivors: tuple[int, ...] = ()  # ranks with a stored state after `step`; (): start from scratch or a checkpoint
  step: int = -1  # step from which the survivors continue; -1: none
  resume: bool = False  # whether there may be a checkpoint
  coordinator: str = ""  # HOST:PORT of the `jax.distributed` coordinator, which runs in the first process
  keeper: Any = None  # the keeper of this node
  keepers: dict[int, Any] = field(default_factory=dict)  # rank of a survivor -> keeper of its state

  def ids(self, ranks: tuple[int, ...] | None = None) -> Ids:
    """Return the IDs of the workers of some processes of the job, by default of this membership."""
    share = self.workers // self.processes
    return tuple(rank * share + i for rank in (self.ranks if ranks is None else ranks) for i in range(share))

  @property
  def reference(self) -> int:
    """Return the index in `ranks` of the first survivor, with which the others are compared; 0 without survivors."""
    return self.ranks.index((self.survivors or self.ranks)[0])

  @property
  def own_ids(self) -> Ids:
    """Return the IDs of the workers of this process."""
    return self.ids((self.rank,))

  @property
  def presence(self) -> Presence:
    """Return the presence of workers in a run with this membership at all steps."""
    return Presence(self.workers, ((0, self.ids()),))

  def layout(self, ids: Ids) -> Workers:
    """Place workers on the devices of their processes. ids: all workers of one or more processes."""
    indices = [index for index, rank in enumerate(self.ranks) if {*self.ids((rank,))} <= {*ids}]
    return on_devices(len(ids), [device for index in indices for device in self._devices(index)], 1)

  def _devices(self, index: int) -> list[Any]:
    devices = sorted((d for d in jax.devices() if d.process_index == index), key=lambda d: d.id)
    even = divisors(self.workers // self.processes)
    return devices[: max(d for d in even if d <= len(devices))]

  def continued(self, before: Presence, step: int) -> Presence:
    """Return the presence of workers: that of `before` until `step`, and this membership from `step` on."""
    changes = tuple(change for change in before.changes if change[0] < step)
    for ranks in (self.survivors, self.ranks):
      if ranks and (not changes or changes[-1][1] != self.ids(ranks)):
        changes += ((step, self.ids(ranks)),)
    return before._replace(changes=changes)


def trainer_of_process(make: Callable[[Workers], CompiledTrainer], membership: ProcessGroup) -> ElasticTrainer:
  """Build the elastic trainer of one process. make: layout of workers on devices -> their trainer."""
  trainer_for = cache(make)
  trainer = ElasticTrainer(
    lambda ids: trainer_for(membership.layout(ids)),
    membership.presence,
    membership.own_ids,
    hosts.share,
    lambda ids: trainer_for(on_devices(len(ids), jax.local_devices()[:1], 1)),
  )
  trainer.layout |= {"devices": 0, "processes": membership.processes, "elastic": True}
  return trainer


class KeeperStore:
  """A store that writes checkpoints to disk and also sends the state after each round to the keeper.

  Implements `ddl.run.checkpoints.Store`.
  """

  def __init__(self, checkpoints: Any, membership: ProcessGroup, restored: Callable[..., Any]):
    """Wrap the store `checkpoints`. restored: the constructor of `ddl.run.checkpoints.Restored`."""
    self._checkpoints, self._membership, self._restored = checkpoints, membership, restored
    self._sent: Any = None  # reference to the result of the last `Keeper.store`

  def restore(self, batch: Any, resume: bool) -> Any:
    """Return the state from which the run continues, or None to start at step 0; write the presence to the run folder.

    The state is that of the survivors; if there are none and `resume` is True, it is that of the newest checkpoint.
    """
    membership, trainer, folder = self._membership, batch.trainer, batch.runs[0].folder
    state, file, now = self._checkpoints.restore(batch, False), folder.path / PRESENCE, membership.presence
    if membership.survivors:
      state, now = self._read(trainer, batch.initial_key)
    elif resume and self._checkpoints.steps():
      before = trainer.presence = presence.load(file, membership.workers) if file.exists() else now
      if state := self._checkpoints.restore(batch, True):  # has rows for the workers present at its step
        state, now = state._replace(joined=True), membership.continued(before, state.figures[0]["step"])
    trainer.presence = now
    if folder.writes:
      folder.path.mkdir(parents=True, exist_ok=True)
      presence.save(file, now)
    return state

  def _read(self, trainer: ElasticTrainer, key: jax.Array) -> tuple[Any, Presence]:
    """Return the state from which this membership continues, and the presence. key: initializes workers that join."""
    import ray

    membership = self._membership
    survives = membership.rank in membership.survivors
    source = membership.rank if survives else membership.survivors[0]
    text, leaves = ray.get(membership.keepers[source].read.remote(source, membership.step))
    record, rows = json.loads(text), None
    if survives:
      treedef = jax.tree.structure(trainer.all.per_worker)
      rows = LocalRows(treedef.unflatten(leaves), treedef.unflatten(record["per_worker"]), membership.own_ids)
    before = Presence(membership.workers, tuple((step, tuple(ids)) for step, ids in record["presence"]))
    now = membership.continued(before, membership.step)
    carry = trainer.placed(rows, membership.ids(membership.survivors), membership.ids(), membership.step, key)
    streams = [(membership.step, record["streams"] if survives else {})]
    return self._restored(carry._replace(changes=len(now.changes)), [record["figures"]], 0, streams, True), now

  def due(self, first: int, step: int) -> bool:
    """Return whether `step` ends a round or a checkpoint is due after the steps first..step-1."""
    return step % self._membership.round_steps == 0 or self._checkpoints.due(first, step)

  def __call__(self, state: Any) -> None:
    """Save a checkpoint if it is due; send the state of a complete round to the keeper."""
    import ray

    self._checkpoints(state)
    membership, batch = self._membership, state.batch
    if state.step == 0 or state.carry is None or state.step % membership.round_steps:
      return
    rows = batch.trainer.rows(state.carry)
    per_worker = [bool(leaf) for leaf in jax.tree.leaves(rows.per_worker)]
    record = {"figures": batch.figures[0], "streams": batch.stream_states(0), "per_worker": per_worker}
    text = json.dumps(record | {"presence": batch.trainer.presence.changes})
    if self._sent:  # send one state at a time
      ray.get(self._sent)
    send = membership.keeper.store.remote
    self._sent = send(membership.number, membership.rank, state.step, text, jax.tree.leaves(rows.carry))

  def finished(self, run: int) -> None:
    """Do nothing: the checkpoint contains the last state."""

  def close(self) -> None:
    """Wait for pending saves."""
    self._checkpoints.close()
