"""A generation of a job whose processes come and go: which workers are in it, and what memory holds of their state.

A process has the same workers in each generation: process r of N those from r p / N on.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import jax
import numpy as np

from ddl.events import presence
from ddl.events.presence import Ids, Presence
from ddl.runtime import hosts
from ddl.runtime.elastic import Elastic, Held, Rows
from ddl.runtime.hosts.supervision import Memory, Order
from ddl.runtime.layout.workers import Workers, divisors, on_devices
from experiments.train.folder.run_dir import PRESENCE, RunFolder


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

  def before(self, folder: RunFolder) -> Presence:
    """Return who was present up to the last checkpoint, and perhaps later, of a run that goes on from there."""
    file = folder.path / PRESENCE
    return presence.load(file, self.workers) if file.exists() else self.alone

  def gone_on(self, before: Presence, step: int) -> Presence:
    """Return the presence with the workers of this generation from a step on."""
    kept = tuple(change for change in before.changes if change[0] < step)
    if kept and kept[-1][1] == self.ids():
      return before._replace(changes=kept)
    return before._replace(changes=(*kept, (step, self.ids())))

  def keep(self, step: int, trainer: Elastic, held: Held, figures: Mapping[str, Any], streams: Any) -> None:
    """Keep the state after so many steps in memory."""
    told = {"figures": figures, "streams": streams, "presence": trainer.presence.changes}
    rows = trainer.rows(held)
    own = [bool(each) for each in jax.tree.leaves(rows.own)]
    self.memory.write(step, json.dumps(told | {"own": own}), jax.tree.leaves(rows.carry))

  def kept(self, trainer: Elastic, key: jax.Array) -> Kept | None:
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

  def note(self, folder: RunFolder, found: Presence) -> None:
    """Write who is present when to the run's folder."""
    if folder.writes:
      folder.path.mkdir(parents=True, exist_ok=True)
      presence.save(folder.path / PRESENCE, found)
