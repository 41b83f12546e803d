"""A generation of a job whose processes come and go: which workers are in it, and what memory holds of their state.

A process has the same workers in each generation: process r of N those from r p / N on.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import jax
import numpy as np

from ddl.events import presence
from ddl.events.presence import Ids, Presence
from ddl.runtime import hosts
from ddl.runtime.elastic import Elastic, Held, Rows
from ddl.runtime.hosts.supervision import Memory, Order
from ddl.runtime.layout.workers import Workers, divisors, on_devices
from experiments.train.run_dir import PRESENCE, RunFolder


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
    """Return these workers on the devices of their processes; with one that is lost, all on a device of this one."""
    devices = [
      device
      for index, rank in enumerate(self.order.ranks)
      if {*self.ids((rank,))} <= {*ids}
      for device in self._devices(index)
    ]
    if len(devices) == len(self._devices(0)) * self.processes * len(ids) // self.workers:
      return on_devices(len(ids), devices, 1)
    return on_devices(len(ids), jax.local_devices()[:1], 1)

  def _devices(self, index: int) -> list[Any]:
    found = sorted((d for d in jax.devices() if d.process_index == index), key=lambda d: d.id)
    even = divisors(self.workers // self.processes)
    return found[: max(d for d in even if d <= len(found))]

  def presence(self, folder: RunFolder) -> Presence:
    """Return who has been present up to now, as far as it is known before a checkpoint is read."""
    if self.order.stay:
      text = next(text for text in hosts.exchange(self._kept[0]) if text)
      found = Presence(self.workers, tuple((step, tuple(ids)) for step, ids in json.loads(text)["presence"]))
    elif (file := folder.path / PRESENCE).exists() and self.order.resume:
      found = presence.load(file, self.workers)
    else:
      found = Presence(self.workers, ((0, self.ids()),))
    return self.gone_on(found, self.order.step) if self.order.stay else found

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

  def kept(self, trainer: Elastic, key: jax.Array) -> tuple[dict[str, Any], Held, dict[str, Any]] | None:
    """Return figures, state and places of streams of the step that memory holds, of those that stay; None without.

    key: of the start, for those that join.
    """
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
    return told["figures"], trainer.placed(rows, before, self.ids(), self.order.step, key), streams

  @cached_property
  def _kept(self) -> tuple[str, list[np.ndarray]]:
    return self.memory.read(self.order.step) if self.rank in self.order.stay else ("", [])

  def note(self, folder: RunFolder, found: Presence) -> None:
    """Write who is present when to the run's folder."""
    if folder.writes:
      folder.path.mkdir(parents=True, exist_ok=True)
      presence.save(folder.path / PRESENCE, found)
