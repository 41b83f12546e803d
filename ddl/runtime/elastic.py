"""A run whose workers come and go: between two changes it is exactly the algorithm of those that are present.

Each of them keeps its id, and with it its batches and its keys, whoever else is there.
"""

from collections.abc import Callable, Iterator, Sequence
from itertools import groupby, pairwise
from typing import Any, NamedTuple

import jax
import numpy as np

from ddl.api import Algorithm, Tree
from ddl.events.presence import Ids, Presence
from ddl.group_recorder import record
from ddl.runtime.calls import Call
from ddl.runtime.consensus import Consensus
from ddl.runtime.device_functions import Carry
from ddl.runtime.trainer import Feed, Trainer
from ddl.schedule import Schedule


class Held(NamedTuple):
  """The state between two calls."""

  carry: Carry
  ids: Ids  # of the workers that have its rows


class Elastic:
  """The trainers of a run, one for each number of workers that is present at some time, made when it comes to it.

  What a run needs of a `Trainer` is here too, with `Held` for its `Carry`.
  """

  def __init__(self, make: Callable[[int], Trainer], presence: Presence):
    """make: number of workers -> the trainer of an algorithm of so many.

    Raises:
      ValueError: as `make` does for all workers.
    """
    self.presence = presence
    self._make, self._trainers, self._initial = make, dict[int, Trainer](), jax.random.key(0)
    self.all = self.of(presence.workers)  # the trainer where nobody is absent
    self.workers, self.execution, self.placement = self.all.workers, self.all.execution, self.all.placement

  def of(self, count: int) -> Trainer:
    """Return the trainer of so many workers."""
    if count not in self._trainers:
      self._trainers[count] = self._make(count)
    return self._trainers[count]

  @property
  def compile_seconds(self) -> float:
    """Seconds that compiling the calls has taken so far."""
    return sum(each.compile_seconds for each in self._trainers.values())

  def start(self, key: jax.Array, step: int = 0) -> Held:
    """Return what is held before the first step; with a step the same of those that have made the step before it."""
    self._initial, ids = key, self.presence.at(max(step - 1, 0))
    return Held(self.of(len(ids)).start(key), ids)

  def saved(self, held: Held) -> Carry:
    """Return the carry for a checkpoint, which has a row for each worker that has just been there."""
    return self.of(len(held.ids)).saved(held.carry)

  def restored(self, saved: Carry, step: int) -> Held:
    """Invert `saved` after so many steps."""
    ids = self.presence.at(max(step - 1, 0))
    return Held(self.of(len(ids)).restored(saved), ids)

  def consensus(self, held: Held) -> Consensus:
    """See `Trainer.consensus`."""
    return self.of(len(held.ids)).consensus(held.carry)

  def plan(self, first: int, last: int, every: int) -> list[Call]:
    """Return the calls of a run from step `first` to `last`, each with one set of workers."""
    parts: dict[int, list[tuple[int, int]]] = {}
    for each in self.presence.segments(first, last):
      parts.setdefault(len(each.ids), []).append((each.first, each.last))
    calls = [call for count, own in parts.items() for call in self.of(count).plan_parts(own, every)]
    return sorted(calls, key=lambda call: call.first)

  def run(self, held: Held, calls: list[Call], feed: Feed, key: jax.Array) -> Iterator[tuple[Call, Held, jax.Array]]:
    """Dispatch the calls as `Trainer.run` does. feed: of all workers, those that are absent included."""
    for ids, group in groupby(calls, lambda call: self.presence.at(call.first)):
      own = [*group]
      held = self.regroup(held, ids, own[0].first)
      for call, carry, losses in self.of(len(ids)).run(held.carry, own, _rows_of(feed, ids), key, ids):
        held = Held(carry, ids)
        yield call, held, losses

  def losses(self, call: Call, losses: jax.Array) -> np.ndarray:
    """See `Trainer.losses`; means over those that are present."""
    return self.all.losses(call, losses)

  def nbytes(self, call: Call) -> float:
    """Return the bytes that a worker that is present sends in a call."""
    return self.of(len(self.presence.at(call.first))).nbytes(call)

  def regroup(self, held: Held, ids: Ids, step: int) -> Held:
    """Return what these workers hold before a step, from what those before it held.

    Who stays keeps its own. Who joins begins with the model on which those that stay agree (`Algorithm.evaluate`), the
    state of a start with it, and the mean of their statistics. What is equal on all workers is kept, and of messages in
    flight who joins has a copy of the first one's that stays.

    Raises:
      ValueError: if nobody stays.
    """
    if ids == held.ids:
      return held
    stay = tuple(i for i in held.ids if i in ids)
    if not stay:
      raise ValueError(f"of the workers {list(held.ids)} none stays at step {step}")
    if stay not in (held.ids, ids):  # some leave, some join
      held = self.regroup(held, stay, step)
    after = self.of(len(ids))
    new = after.start_from(*self._model(held), self._initial) if stay != ids else None
    return Held(_regrouped(self.of(len(held.ids)), held, after, ids, new, step), ids)

  def _model(self, held: Held) -> tuple[Tree, Tree]:
    found = self.consensus(held)
    return jax.tree.map(lambda x: np.array(x.addressable_data(0)), (found.params, found.extra))


def _regrouped(before: Trainer, held: Held, after: Trainer, ids: Ids, new: Carry | None, step: int) -> Carry:
  """Return the carry of these workers. new: that of a start, for those that join."""
  at = [held.ids.index(i) if i in held.ids else -1 for i in ids]  # row of each one before; -1: it joins

  def leaf(old: jax.Array, own: bool, like: Any, now: bool, begun: jax.Array | None = None) -> jax.Array:
    rows = np.array(old)
    first = rows[next(i for i in at if i >= 0) if own else 0]
    if not now:  # what is equal on all workers
      found = np.broadcast_to(first, like.shape)
    else:
      joins = [first] * len(ids) if begun is None else np.asarray(begun)
      found = np.stack([joins[k] if i < 0 else rows[i] if own else first for k, i in enumerate(at)])
    return jax.device_put(found, like.sharding)

  def part(name: str) -> Tree:
    trees = [getattr(x, name) for x in (held.carry, before.own, after.carry, after.own)]
    begun = [getattr(new, name)] if new is not None and name != "messages" else []
    return jax.tree.map(leaf, *trees, *begun)

  if any(after.schedule.in_flight(step)):
    messages = part("messages")
  else:  # of other exchanges, perhaps
    messages = jax.tree.map(lambda x: jax.device_put(np.zeros(x.shape, x.dtype), x.sharding), after.carry.messages)
  return Carry(part("params"), part("state"), part("extra"), messages)


def check(make: Callable[[int], Algorithm], params: Tree, presence: Presence) -> None:
  """Check that the algorithm can be made for every number of workers that comes, which can go on from each other.

  Args:
    make: number of workers -> the algorithm.
    params: of one worker, as shapes.
    presence: who is there.

  Raises:
    ValueError: one line; also of `make`.
  """

  def shapes(count: int) -> Tree:
    algorithm = make(count)
    state = record(lambda group, x: algorithm.init(group, x, jax.random.key(0)), params, workers=count)[1]
    return jax.tree.map(lambda x: (x.shape, x.dtype), state)

  whole = shapes(presence.workers)
  for count in sorted({len(ids) for _, ids in presence.changes}, reverse=True):
    if shapes(count) != whole:
      raise ValueError(
        f"a worker's state depends on how many there are: with {count} it is another than with {presence.workers}, so "
        "that nobody can go on from it"
      )
  for (_, before), (step, now) in pairwise(presence.changes):
    under_way = [Schedule(make(len(ids)).exchanges).in_flight(step) for ids in (before, now)]
    if under_way[0] != under_way[1] and any(map(any, under_way)):
      raise ValueError(f"messages of {len(before)} workers are in flight at step {step}, and no use to {len(now)}")


def _rows_of(feed: Feed, ids: Sequence[int]) -> Feed:
  """Return the feed of these workers from one of all."""

  def rows(first: int, steps: int) -> dict[str, np.ndarray]:
    return {name: x if len(x) == len(ids) else x[[*ids]] for name, x in feed(first, steps).items()}

  return rows
