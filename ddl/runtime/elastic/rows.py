"""A process's part of what workers hold, and the carry of other workers that is made of such parts."""

from typing import Any, NamedTuple

import jax
import numpy as np

from ddl.api import Tree
from ddl.events.presence import Ids
from ddl.runtime.device_functions import Carry
from ddl.runtime.trainer import Trainer


class Rows(NamedTuple):
  """A process's part of what is held, in its own memory."""

  carry: Carry  # [its workers, ...], or [1, ...] of what is equal on all workers
  own: Carry  # bools: which of the two
  ids: Ids  # of its workers


def rows_of(trainer: Trainer, carry: Carry, ids: Ids) -> Rows:
  """Return this process's part of a carry of these workers, which on a CPU is the memory of the carry itself."""

  def leaf(own: bool, x: jax.Array) -> np.ndarray:
    parts = sorted(x.addressable_shards, key=lambda shard: shard.index[0].start or 0)
    found = [np.asarray(each.data) for each in (parts if own else parts[:1])]
    return found[0] if len(found) == 1 else np.concatenate(found)

  return Rows(jax.tree.map(leaf, trainer.own, carry), trainer.own, local(trainer, ids))


def put(
  after: Trainer, rows: Rows | None, ids: Ids, step: int, first: Carry | None = None, new: Rows | None = None
) -> Carry:
  """Return the carry of these workers, whose trainer is `after`, from the rows that this process has.

  first: one worker's, of the first that stays, by default of this process; new: of a start, for those that join.
  """
  mine, copies = local(after, ids), len(after.workers.local_rows)
  if first is None:
    assert rows
    first = one_of(rows, next(i for i in rows.ids if i in ids))

  def leaf(now: bool, one: np.ndarray, old: Any, own: Any, begun: Any) -> np.ndarray:
    if not now:  # what is equal on all workers
      return np.repeat(one[None], copies, 0)
    stays = {} if rows is None else {i: old[k] if own else one for k, i in enumerate(rows.ids)}
    return np.stack([stays[i] if i in stays else one if begun is None else begun[k] for k, i in enumerate(mine)])

  def part(name: str) -> Tree:
    now, one = (getattr(x, name) for x in (after.own, first))
    old, own = (getattr(x, name) for x in rows[:2]) if rows else (now, now)
    begun = getattr(new.carry, name) if new and name != "messages" else jax.tree.map(lambda _: None, now)
    return after.workers.put(jax.tree.map(leaf, now, one, old, own, begun))

  if any(after.schedule.in_flight(step)):
    messages = part("messages")
  else:  # of other exchanges, perhaps
    messages = after.workers.put(
      jax.tree.map(
        lambda own, x: np.zeros((len(mine) if own else copies, *x.shape[1:]), x.dtype),
        after.own.messages,
        after.carry.messages,
      )
    )
  return Carry(part("params"), part("state"), part("extra"), messages)


def local(trainer: Trainer, ids: Ids) -> Ids:
  """Return this process's of the workers of a trainer."""
  return tuple(ids[i] for i in trainer.workers.local)


def one_of(rows: Rows, worker: int) -> Carry:
  """Return one worker's carry."""
  at = rows.ids.index(worker)
  return jax.tree.map(lambda own, x: x[at if own else 0], rows.own, rows.carry)


def shapes_of_one(own: Carry, carry: Carry) -> Carry:
  """Return the shapes of one worker's carry."""
  return jax.tree.map(lambda _, x: jax.ShapeDtypeStruct(x.shape[1:], x.dtype), own, carry)
