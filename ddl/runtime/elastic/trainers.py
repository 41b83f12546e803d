"""A run whose workers come and go: between two changes it is exactly the algorithm of those that are present.

Each of them keeps its id, and with it its batches and its keys, whoever else is there.
"""

from collections.abc import Callable, Iterator
from itertools import groupby
from typing import NamedTuple

import jax
import numpy as np

from ddl.api import Tree
from ddl.events.presence import Ids, Presence
from ddl.runtime.device_functions import Carry
from ddl.runtime.elastic.rows import Rows, local, one_of, put, rows_of, shapes_of_one
from ddl.runtime.rounds.calls import Call
from ddl.runtime.rounds.consensus import Consensus
from ddl.runtime.trainer import Feed, Trainer


class Held(NamedTuple):
  """The state between two calls."""

  carry: Carry
  ids: Ids  # of the workers that have its rows
  read: bool = False  # from a checkpoint of other workers than those of now, by each process for itself


# (a tree of host arrays in the process that has it, None in the others; its shapes) -> the tree, in all processes
Share = Callable[[Tree | None, Tree], Tree]


class Elastic:
  """The trainers of a run, each of the workers that are present at some time, made when it comes to it.

  What a run needs of a `Trainer` is here too, with `Held` for its `Carry`.
  """

  def __init__(
    self,
    make: Callable[[Ids], Trainer],
    presence: Presence,
    fed: Ids = (),
    share: Share = lambda tree, _: tree,
    reader: Callable[[Ids], Trainer] | None = None,
  ):
    """make: workers -> their trainer, which may serve others too. Workers that stay are all of one process, or of none.

    fed: those whose batches a feed has, by default all; share: to the processes of workers that join; reader: workers
    of a checkpoint -> their trainer in this process alone, where some of them are elsewhere or lost.

    Raises:
      ValueError: as `make` does for the workers that come last.
    """
    self.presence = presence
    self._make, self._made, self._initial = make, dict[int, Trainer](), jax.random.key(0)
    self._reader = reader
    self._fed, self._share = fed or tuple(range(presence.workers)), share
    self._now = presence.changes[-1][1]
    self.all = self.of(self._now)
    self.workers, self.execution, self.placement = self.all.workers, self.all.execution, self.all.placement

  def of(self, ids: Ids) -> Trainer:
    """Return the trainer of these workers."""
    found = self._make(ids)
    return self._made.setdefault(id(found), found)

  @property
  def compile_seconds(self) -> float:
    """Seconds that compiling the calls has taken so far."""
    return sum(each.compile_seconds for each in self._made.values())

  @property
  def fed(self) -> Ids:
    """The workers whose batches a feed has."""
    return self._fed

  def start(self, key: jax.Array, step: int = 0) -> Held:
    """Return what is held before the first step; with a step the same of those that have made the step before it."""
    self._initial, ids = key, self.presence.at(max(step - 1, 0))
    trainer, read = self._of_checkpoint(ids)
    return Held(trainer.start(key), ids, read)

  def saved(self, held: Held) -> Carry:
    """Return the carry for a checkpoint, which has a row for each worker that has just been there."""
    return self._of_held(held).saved(held.carry)

  def restored(self, saved: Carry, step: int) -> Held:
    """Invert `saved` after so many steps."""
    ids = self.presence.at(max(step - 1, 0))
    trainer, read = self._of_checkpoint(ids)
    return Held(trainer.restored(saved), ids, read)

  def consensus(self, held: Held) -> Consensus:
    """See `Trainer.consensus`."""
    return self.of(held.ids).consensus(held.carry)

  def plan(self, first: int, last: int, every: int) -> list[Call]:
    """Return the calls of a run from step `first` to `last`, each with one set of workers."""
    parts: dict[int, tuple[Trainer, list[tuple[int, int]]]] = {}
    for each in self.presence.segments(first, last):
      trainer = self.of(each.ids)
      parts.setdefault(id(trainer), (trainer, []))[1].append((each.first, each.last))
    calls = [call for trainer, own in parts.values() for call in trainer.plan_parts(own, every)]
    return sorted(calls, key=lambda call: call.first)

  def run(self, held: Held, calls: list[Call], feed: Feed, key: jax.Array) -> Iterator[tuple[Call, Held, jax.Array]]:
    """Dispatch the calls as `Trainer.run` does. feed: of the workers `fed`, those that are absent included."""
    for ids, group in groupby(calls, lambda call: self.presence.at(call.first)):
      own = [*group]
      held = self.regroup(held, ids, own[0].first)
      for call, carry, losses in self.of(ids).run(held.carry, own, self._rows_of(feed, ids), key, ids):
        held = Held(carry, ids)
        yield call, held, losses

  def losses(self, call: Call, losses: jax.Array) -> np.ndarray:
    """See `Trainer.losses`; means over those that are present."""
    return self.all.losses(call, losses)

  def nbytes(self, call: Call) -> float:
    """Return the bytes that a worker that is present sends in a call."""
    return self.of(self.presence.at(call.first)).nbytes(call)

  def regroup(self, held: Held, ids: Ids, step: int) -> Held:
    """Return what these workers hold before a step, from what those before it held, as `placed` does."""
    return held if ids == held.ids else self.placed(self.rows(held), held.ids, ids, step, self._initial)

  def rows(self, held: Held) -> Rows:
    """Return this process's part."""
    return rows_of(self._of_held(held), held.carry, held.ids)

  def placed(self, rows: Rows | None, before: Ids, ids: Ids, step: int, key: jax.Array) -> Held:
    """Return what these workers hold before a step, from the rows of those before it.

    Who stays keeps its own. Who joins begins with the model on which those that stay agree (`Algorithm.evaluate`), the
    state of a start with it, and the mean of their statistics. What is equal on all workers is kept, and of messages in
    flight who joins has a copy of the first one's that stays.

    Args:
      rows: of this process; None if it has no workers that stay.
      before, ids: the workers before and now, of all processes.
      step: that comes next.
      key: of the start, for those that join.

    Raises:
      ValueError: if nobody stays.
    """
    stay = tuple(i for i in before if i in ids)
    if not stay:
      raise ValueError(f"of the workers {[*before]} none stays at step {step}")
    among, after, told = self.of(stay), self.of(ids), None
    if stay == ids:
      assert rows
      return Held(put(after, rows, ids, step), ids)
    if rows and local(among, stay):
      model = self._model(Held(put(among, rows, stay, step), stay))
      told = (model, one_of(rows, stay[0])) if stay[0] in local(among, stay) else None
    like = (jax.eval_shape(self.all.model.init, key), shapes_of_one(among.own, among.carry))
    model, first = self._share(told, like)
    params, extra = model
    new = self.rows(Held(after.start_from(params, extra, key), ids))
    return Held(put(after, rows, ids, step, first, new), ids)

  def _of_checkpoint(self, ids: Ids) -> tuple[Trainer, bool]:
    """Return the trainer that a checkpoint of these workers is read for, and whether it is a reader's."""
    if self._reader is None or ids == self._now:
      return self.of(ids), False
    return self._reader(ids), True

  def _of_held(self, held: Held) -> Trainer:
    return self._reader(held.ids) if held.read and self._reader else self.of(held.ids)

  def _model(self, held: Held) -> tuple[Tree, Tree]:
    found = self.consensus(held)
    return jax.tree.map(lambda x: np.array(x.addressable_data(0)), (found.params, found.extra))

  def _rows_of(self, feed: Feed, ids: Ids) -> Feed:
    """Return the feed of this process's among these workers."""
    at = [self._fed.index(i) for i in local(self.of(ids), ids)]

    def rows(first: int, steps: int) -> dict[str, np.ndarray]:
      return {name: x if at == [*range(len(x))] else x[at] for name, x in feed(first, steps).items()}

    return rows
