"""Trainer of elastic runs: between two membership changes, the algorithm runs on the workers present.

A worker's ID, batches and keys do not depend on which other workers are present.
"""

from collections.abc import Callable, Iterator
from functools import cache
from itertools import groupby, pairwise
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import jax
import numpy as np

from ddl.api import Algorithm, Tree
from ddl.engine.calls import Call
from ddl.engine.compiled_trainer import CompiledTrainer
from ddl.engine.consensus import Consensus
from ddl.engine.device_functions import Carry
from ddl.engine.placement import shardings
from ddl.engine.trainer import Feed, SingleRunTrainer
from ddl.engine.workers import Workers, divisors, make_workers, placed
from ddl.errors import OptionError
from ddl.events import presence as presence_file
from ddl.events.presence import Ids, Presence, everyone
from ddl.events.presence import check as check_presence
from ddl.group_recorder import record
from ddl.schedule import Schedule

PRESENCE = "presence.json"  # file in the run folder with the workers present from each change on


def check(make: Callable[[int], Algorithm], params: Tree, presence: Presence, label: str) -> None:
  """Check that an algorithm supports all numbers of workers in a run and the changes between them.

  Args:
    make: number of workers -> the algorithm.
    params: shapes of one worker's parameters.
    presence: the workers present at each step.
    label: name of the algorithm in error messages.

  Raises:
    OptionError: if the algorithm does not support them.
  """
  try:
    _check(make, params, presence)
  except ValueError as error:
    raise OptionError("config.elastic", f"False with {label}", True, str(error)) from error


def _check(make: Callable[[int], Algorithm], params: Tree, presence: Presence) -> None:
  """Raise ValueError with one sentence if the algorithm does not support the presence. Errors of `make` propagate."""

  def shapes(count: int) -> Tree:
    algorithm = make(count)
    state = record(lambda group, x: algorithm.init(group, x, jax.random.key(0)), params, workers=count)[1]
    return jax.tree.map(lambda x: (x.shape, x.dtype), state)

  if make(presence.workers).takes_step:
    raise ValueError("Its workers take different numbers of steps by rank, and ranks change when workers leave.")
  whole = shapes(presence.workers)
  for count in sorted({len(ids) for _, ids in presence.changes}, reverse=True):
    if shapes(count) != whole:
      raise ValueError(f"The algorithm's state has different shapes for {presence.workers} and {count} workers.")
  for (_, before), (step, now) in pairwise(presence.changes):
    under_way = [Schedule(make(len(ids)).exchanges).in_flight(step) for ids in (before, now)]
    if under_way[0] != under_way[1] and any(map(any, under_way)):
      raise ValueError(
        f"At step {step} the numbers of messages in flight differ between {len(before)} and {len(now)} workers."
      )


class LocalRows(NamedTuple):
  """This process's rows of a carry, one per local worker, in host memory."""

  carry: Carry  # leaves [local workers, ...], or [1, ...] for those on which all workers agree
  per_worker: Carry  # bool per leaf: whether it is [local workers, ...]
  ids: Ids  # IDs of the local workers


def rows_of(trainer: CompiledTrainer, carry: Carry, ids: Ids) -> LocalRows:
  """Return this process's rows of a carry, in host memory; with a single CPU device they share the carry's memory."""

  def leaf(per_worker: bool, x: jax.Array) -> np.ndarray:
    shards = sorted(x.addressable_shards, key=lambda shard: shard.index[0].start or 0)
    rows = [np.asarray(shard.data) for shard in (shards if per_worker else shards[:1])]
    return rows[0] if len(rows) == 1 else np.concatenate(rows)

  return LocalRows(jax.tree.map(leaf, trainer.per_worker, carry), trainer.per_worker, local(trainer, ids))


def place_rows(
  after: CompiledTrainer,
  rows: LocalRows | None,
  ids: Ids,
  step: int,
  first: Carry | None = None,
  new: LocalRows | None = None,
) -> Carry:
  """Build the carry of the workers `ids` on the devices of the trainer `after`, with `Algorithm.regroup` applied.

  Args:
    after: the trainer of these workers.
    rows: this process's rows of the previous carry; None if it has none.
    ids: IDs of the workers present from `step` on.
    step: the next step.
    first: carry of the first worker that stays; by default taken from `rows`.
    new: initial rows for workers that join.
  """
  local_ids, copies = local(after, ids), len(after.workers.local_rows)
  if first is None:
    assert rows
    first = carry_of_worker(rows, next(i for i in rows.ids if i in ids))
  if regroup := after.algorithm.regroup:
    first = first._replace(state=regroup(first.state))
    rows = rows and rows._replace(carry=rows.carry._replace(state=regroup(rows.carry.state)))

  def leaf(per_worker: bool, row: np.ndarray, old: Any, was_per_worker: Any, initial: Any) -> np.ndarray:
    if not per_worker:  # all workers agree on this leaf
      return np.repeat(row[None], copies, 0)
    stays = {} if rows is None else {i: old[k] if was_per_worker else row for k, i in enumerate(rows.ids)}
    joins = [row] * len(local_ids) if initial is None else initial
    return np.stack([stays[i] if i in stays else joins[k] for k, i in enumerate(local_ids)])

  def part(name: str) -> Tree:
    per_worker, row = (getattr(x, name) for x in (after.per_worker, first))
    old, was_per_worker = (getattr(x, name) for x in rows[:2]) if rows else (per_worker, per_worker)
    initial = getattr(new.carry, name) if new and name != "messages" else jax.tree.map(lambda _: None, per_worker)
    return after.workers.put(jax.tree.map(leaf, per_worker, row, old, was_per_worker, initial))

  if any(after.schedule.in_flight(step)):
    messages = part("messages")
  else:  # nothing is in flight, and the exchanges may have changed
    messages = after.workers.put(
      jax.tree.map(
        lambda per_worker, x: np.zeros((len(local_ids) if per_worker else copies, *x.shape[1:]), x.dtype),
        after.per_worker.messages,
        after.carry.messages,
      )
    )
  return Carry(part("params"), part("state"), part("extra"), messages)


def local(trainer: CompiledTrainer, ids: Ids) -> Ids:
  """Return the IDs of a trainer's workers in this process."""
  return tuple(ids[i] for i in trainer.workers.local)


def carry_of_worker(rows: LocalRows, worker: int) -> Carry:
  """Return one worker's carry."""
  at = rows.ids.index(worker)
  return jax.tree.map(lambda per_worker, x: x[at if per_worker else 0], rows.per_worker, rows.carry)


def shapes_of_worker(per_worker: Carry, carry: Carry) -> Carry:
  """Return the shapes of one worker's carry."""
  return jax.tree.map(lambda _, x: jax.ShapeDtypeStruct(x.shape[1:], x.dtype), per_worker, carry)


class ElasticCarry(NamedTuple):
  """The carry of an elastic run, and the workers it belongs to."""

  carry: Carry
  ids: Ids  # the worker of each row
  changes: int = 1  # number of entries of `Presence.changes` applied so far
  read: bool = False  # whether each process read the whole carry from a checkpoint of another set of workers


class Folder(Protocol):
  """The part of the interface of a run's folder that this module uses."""

  path: Path
  writes: bool


class StepClock(Protocol):
  """The interface of a clock of virtual seconds."""

  def columns(self, step: int) -> dict[str, float]:
    """Return the metrics columns with the times after `step` steps."""
    ...

  def save(self, folder: Path) -> None:
    """Write the schedule to a run's folder, for reports."""
    ...


# (a tree of host arrays in the process that has it, None in the others; its shapes) -> the tree, in all processes
Share = Callable[[Tree | None, Tree], Tree]


class ElasticTrainer(SingleRunTrainer):
  """The trainer of an elastic run. Each set of workers has an inner trainer, built when the set is first present.

  Implements `ddl.engine.trainer.Trainer`, with `ElasticCarry` as the carry.
  """

  def __init__(
    self,
    make: Callable[[Ids], CompiledTrainer],
    presence: Presence,
    fed: Ids = (),
    share: Share = lambda tree, _: tree,
    reader: Callable[[Ids], CompiledTrainer] | None = None,
  ):
    """Set the presence, and build the inner trainer of the last set of workers.

    Args:
      make: set of workers -> their trainer; several sets may share a trainer. At a membership change, this process must
        have all or none of the workers that stay.
      presence: the workers present at each step.
      fed: workers for which the feed has batches; by default all.
      share: sends a tree to the processes of workers that join.
      reader: set of workers -> a trainer on this process's devices, which can read a checkpoint of workers whose
        processes are lost.

    Raises:
      ValueError: if `make` raises it.
    """
    self.presence = presence
    self._make, self._trainers, self._initial = make, dict[int, CompiledTrainer](), jax.random.key(0)
    self._reader = reader
    self._share = share
    self._now = presence.changes[-1][1]
    self.all = self.trainer_for(self._now)
    self.workers, self.execution, self.placement = self.all.workers, self.all.execution, self.all.placement
    self.layout = dict(self.all.layout)
    self.fed: Ids = fed or tuple(range(presence.workers))

  def follow(self, presence: Presence, round_steps: int, make: Callable[[int], Algorithm], label: str) -> None:
    """Set the membership of the run.

    Args:
      presence: the workers present at each step.
      round_steps: steps of a round, within which the membership must not change.
      make: number of workers -> their algorithm.
      label: name of the algorithm in error messages.

    Raises:
      OptionError: if the membership is invalid, changes within a round, or is not supported by the algorithm.
    """
    check_presence(presence, round_steps)
    params = jax.eval_shape(self.all.model.init, jax.random.key(0))[0]
    check(make, params, presence, label)
    self.presence = presence

  def trainer_for(self, ids: Ids) -> CompiledTrainer:
    """Return the trainer of these workers."""
    trainer = self._make(ids)
    return self._trainers.setdefault(id(trainer), trainer)

  @property
  def compile_seconds(self) -> float:
    """Return the seconds spent compiling so far."""
    return sum(trainer.compile_seconds for trainer in self._trainers.values())

  def start(self, key: jax.Array, step: int = 0) -> ElasticCarry:
    """Initialize the carry from a key, for the workers present just before `step`."""
    self._initial = key
    return self._carry_at(step, lambda trainer: trainer.start(key))

  def saved_shapes(self, key: jax.Array, step: int) -> Carry:
    """Return the shapes, types and shardings of the carry in the checkpoint after `step` steps."""
    saved = self.saved(self.start(key, step))
    return placed(saved, shardings(saved))

  def saved(self, carry: ElasticCarry) -> Carry:
    """Return the carry to save in a checkpoint, with a row per worker present in the last step."""
    return self._trainer_of(carry).saved(carry.carry)

  def restored(self, saved: Carry, step: int) -> ElasticCarry:
    """Convert a saved carry, from a checkpoint after `step` steps, to a carry of this trainer."""
    return self._carry_at(step, lambda trainer: trainer.restored(saved))

  def consensus(self, carry: ElasticCarry) -> Consensus:
    """Return the model to evaluate and the workers' distance from their mean; the carry stays valid."""
    return self.trainer_for(carry.ids).consensus(carry.carry)

  def plan(self, first: int, last: int, every: int) -> list[Call]:
    """Return the calls from step `first` to `last`; none crosses a membership change or a multiple of `every`."""
    parts: dict[int, tuple[CompiledTrainer, list[tuple[int, int]]]] = {}
    for segment in self.presence.segments(first, last):
      trainer = self.trainer_for(segment.ids)
      parts.setdefault(id(trainer), (trainer, []))[1].append((segment.first, segment.last))
    calls = [call for trainer, own in parts.values() for call in trainer.plan_parts(own, every)]
    return sorted(calls, key=lambda call: call.first)

  def run(
    self, carry: ElasticCarry, calls: list[Call], feed: Feed, key: jax.Array
  ) -> Iterator[tuple[Call, ElasticCarry, jax.Array]]:
    """Dispatch the calls as `CompiledTrainer.run` does. feed: batches of the workers `fed`, including absent ones."""
    current = carry
    del carry
    for count, group in groupby(calls, lambda call: self.presence.count(call.first)):
      same = [*group]
      for _, ids in self.presence.changes[current.changes : count]:
        current = self.regroup(current, ids, same[0].first)
      ids = current.ids
      for call, after, losses in self.trainer_for(ids).run(current.carry, same, self._rows_of(feed, ids), key, ids):
        current = ElasticCarry(after, ids, count)
        yield call, current, losses

  def losses(self, call: Call, losses: jax.Array) -> np.ndarray:
    """Return the losses of a call, averaged over the present workers, as a host array."""
    return self.all.losses(call, losses)

  def nbytes(self, call: Call) -> float:
    """Return the bytes that a present worker sends in a call."""
    return self.trainer_for(self.presence.at(call.first)).nbytes(call)

  def describe(self) -> str:
    """Describe the devices, the execution options and the membership changes in one line."""
    changes = self.presence.changes
    return self.all.describe() + (f"; {self.presence.describe(changes[-1][0] + 1)}" if len(changes) > 1 else "")

  def regroup(self, current: ElasticCarry, ids: Ids, step: int) -> ElasticCarry:
    """Return the carry of the workers `ids` before a step; see `placed`."""
    return current if ids == current.ids else self.placed(self.rows(current), current.ids, ids, step, self._initial)

  def rows(self, current: ElasticCarry) -> LocalRows:
    """Return this process's rows of a carry."""
    return rows_of(self._trainer_of(current), current.carry, current.ids)

  def placed(self, rows: LocalRows | None, before: Ids, ids: Ids, step: int, key: jax.Array) -> ElasticCarry:
    """Return the carry of the workers `ids` before a step, built from the rows of the previous workers.

    Workers that stay keep their state, except what `Algorithm.regroup` resets. Workers that join start with the
    consensus model (`Algorithm.evaluate`) and the mean non-trained state of the workers that stay, and with a newly
    initialized algorithm state. Leaves on which all workers agree are unchanged. Workers that join copy the messages in
    flight from the first worker that stays.

    Args:
      rows: this process's rows of the previous carry; None if it has none.
      before, ids: the previous and the current workers of all processes.
      step: the next step.
      key: for initializing workers that join.

    Raises:
      ValueError: if no worker stays.
    """
    stay = tuple(i for i in before if i in ids)
    if not stay:
      raise ValueError(f"at least one of the workers present before step {step} ({[*before]}) must remain present.")
    among, after, leaving = self.trainer_for(stay), self.trainer_for(ids), None
    if stay == ids:
      assert rows
      return ElasticCarry(place_rows(after, rows, ids, step), ids)
    if rows and local(among, stay):
      model = self._model(ElasticCarry(place_rows(among, rows, stay, step), stay))
      leaving = (model, carry_of_worker(rows, stay[0])) if stay[0] in local(among, stay) else None
    like = (jax.eval_shape(self.all.model.init, key), shapes_of_worker(among.per_worker, among.carry))
    model, first = self._share(leaving, like)
    params, extra = model
    new = self.rows(ElasticCarry(after.start_from(params, extra, key), ids))
    return ElasticCarry(place_rows(after, rows, ids, step, first, new), ids)

  def _carry_at(self, step: int, carry: Callable[[CompiledTrainer], Carry]) -> ElasticCarry:
    """Return the carry after `step` steps.

    carry: trainer of the workers present in the last of these steps -> their carry.
    """
    last = max(step - 1, 0)
    ids, changes = self.presence.at(last), self.presence.count(last)
    if self._reader is None or ids == self._now:
      return ElasticCarry(carry(self.trainer_for(ids)), ids, changes)
    return ElasticCarry(carry(self._reader(ids)), ids, changes, read=True)

  def _trainer_of(self, current: ElasticCarry) -> CompiledTrainer:
    return self._reader(current.ids) if current.read and self._reader else self.trainer_for(current.ids)

  def _model(self, current: ElasticCarry) -> tuple[Tree, Tree]:
    consensus = self.consensus(current)
    return jax.tree.map(lambda x: np.array(x.addressable_data(0)), (consensus.params, consensus.extra))

  def _rows_of(self, feed: Feed, ids: Ids) -> Feed:
    """Return a feed for this process's workers among `ids`."""
    at = [self.fed.index(i) for i in local(self.trainer_for(ids), ids)]

    def rows(first: int, steps: int) -> dict[str, np.ndarray]:
      return {name: x if at == [*range(len(x))] else x[at] for name, x in feed(first, steps).items()}

    return rows


def in_virtual_time(make: Callable[[Workers], CompiledTrainer], workers: Workers) -> ElasticTrainer:
  """Build the trainer of a single-process elastic run in virtual time.

  make: layout of workers on devices -> their trainer. workers: all workers, on the largest number of devices used.
  """

  @cache
  def trainer_for(count: int) -> CompiledTrainer:
    devices = max(d for d in divisors(count) if d <= workers.devices)
    return make(workers if count == workers.count else make_workers(count, devices))

  return ElasticTrainer(lambda ids: trainer_for(len(ids)), everyone(workers.count))


class ElasticClock:
  """The clock of an elastic run, which counts worker steps and, if the run has virtual time, virtual seconds."""

  def __init__(self, trainer: ElasticTrainer, clock: StepClock | None = None):
    """Wrap the clock of virtual seconds; None for a run without virtual time."""
    self._trainer, self._clock = trainer, clock

  def worker_steps(self, step: int) -> int:
    """Return the total number of steps of all workers up to a step of the run."""
    return self._trainer.presence.worker_steps(step)

  def columns(self, step: int) -> dict[str, float]:
    """Return the metrics columns: the number of present workers and, in virtual time, the virtual seconds."""
    present = {"present": len(self._trainer.presence.at(max(step - 1, 0)))}
    return present | (self._clock.columns(step) if self._clock else {})

  def keep(self, folder: Folder) -> None:
    """Write the membership to a run's folder. Raises ValueError if the folder has a different one."""
    if self._clock is None:  # with real processes, `KeeperStore` writes it at each change
      return
    file, presence = folder.path / PRESENCE, self._trainer.presence
    if not file.exists():
      if folder.writes:
        folder.path.mkdir(parents=True, exist_ok=True)
        presence_file.save(file, presence)
    elif presence_file.load(file, presence.workers) != presence:
      raise ValueError(
        f"{file} must contain the membership of this run, got a different one. "
        f"To continue the recorded run, pass only resume and workdir={folder.path}."
      )

  def save(self, folder: Path) -> None:
    """Write the schedule to a run's folder, for reports."""
    if self._clock:
      self._clock.save(folder)
