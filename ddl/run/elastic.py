"""Elastic runs (`config.elastic`), whose workers leave and join: in virtual time, recorded, or as real processes.

A generation of a job whose processes come and go: which workers are in it, and what memory holds of their state.
A process has the same workers in each generation: process r of N those from r p / N on.
"""

import json
import os
import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache, cached_property
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from ddl import elastic, hosts
from ddl.api import Algorithm
from ddl.config.experiment import Experiment
from ddl.config.options import RunOptions
from ddl.elastic import Elastic, Held, Rows
from ddl.engine.trainer import Trainer
from ddl.engine.workers import Workers, divisors, make_workers, on_devices
from ddl.events import presence
from ddl.events.presence import Ids, Presence, everyone
from ddl.hosts.rendezvous import host_port
from ddl.hosts.supervision import LOST, Memory, Order, SupervisedJob, Supervisor
from ddl.run import processes as agreement
from ddl.run import virtual_time
from ddl.run.exit_codes import Failed, Stopped, exit_code
from ddl.run.folder import PRESENCE, RunFolder
from ddl.run.workdir import check_folder


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


def check(experiment: Experiment, options: RunOptions, lost_for_real: bool) -> None:
  """ValueError, one line, for what workers that come and go cannot be. lost_for_real: with their processes."""
  if options.members > 1:
    raise ValueError(
      f"--members={options.members}: config.elastic is of workers of one device alone, which a death takes whole"
    )
  if not lost_for_real and max(options.processes, hosts.processes()) > 1:
    raise ValueError("config.elastic with several processes is for train alone: the others' runs would be lost too")
  if lost_for_real and experiment.times.get("death_rate"):
    raise ValueError("config.times.death_rate with several processes: those are lost for real; it is of one process")
  if not lost_for_real and not (experiment.times.get("death_rate") or options.replay):
    warnings.warn("config.elastic has no effect: config.times.death_rate is 0", stacklevel=2)


def make(
  experiment: Experiment,
  trainer: Callable[[Experiment, Workers], Trainer],
  options: RunOptions,
  recorded: Presence | None,
) -> Elastic:
  """Return the trainers of a run whose workers come and go.

  Args:
    experiment: of all workers.
    trainer: (the experiment of some of them, these on devices) -> their trainer.
    options: devices are those of all workers; fewer of them have the most that they divide evenly.
    recorded: who is present when; None: drawn from the experiment's step times and deaths.

  Raises:
    ValueError: for an algorithm that cannot go on with fewer workers, or as `follow`.
  """

  every = make_workers(experiment.workers, options.devices or None)

  @cache
  def of(count: int) -> Trainer:
    devices = max(d for d in divisors(count) if d <= every.devices)
    workers = every if count == experiment.workers else make_workers(count, devices)
    return trainer(replace(experiment, workers=count), workers)

  found = Elastic(lambda ids: of(len(ids)), everyone(experiment.workers))
  follow(found, experiment, recorded)
  return found


def of_processes(
  experiment: Experiment, trainer: Callable[[Experiment, Workers], Trainer], generation: Generation
) -> Elastic:
  """Return the trainers of a run whose processes come and go, in one of them, as if nobody had been lost before.

  trainer: as of `make`.

  Raises:
    ValueError: for an algorithm that cannot go on with fewer workers.
  """

  @cache
  def of(workers: Workers) -> Trainer:
    return trainer(replace(experiment, workers=workers.count), workers)

  found = Elastic(
    lambda ids: of(generation.layout(ids)), generation.alone, generation.mine, hosts.share,
    lambda ids: of(generation.here(ids)),
  )  # fmt: skip
  _check(experiment, found, generation.alone)
  return found


def follow(trainer: Elastic, experiment: Experiment, recorded: Presence | None = None) -> None:
  """Set who is present in a run of this experiment, which has another seed perhaps.

  Raises:
    ValueError: for an algorithm that cannot go on with the numbers of workers that come, or a record of other rounds.
  """
  every = trainer.all
  if recorded:
    presence.check(recorded, virtual_time.round_steps(every.algorithm))
  else:
    charged = virtual_time.charges(experiment, every.traffic)
    recorded = virtual_time.drawn_presence(experiment, every.algorithm, charged)
  _check(experiment, trainer, recorded)
  trainer.presence = recorded


def _check(experiment: Experiment, trainer: Elastic, recorded: Presence) -> None:
  params = jax.eval_shape(trainer.all.model.init, jax.random.key(0))[0]
  try:
    elastic.check(lambda count: _algorithm(replace(experiment, workers=count)), params, recorded)
  except ValueError as error:
    raise ValueError(f"config.elastic with {experiment.label}: {error}") from error


def keep(folder: RunFolder, found: Presence) -> None:
  """Write who is present when to a run's folder; ValueError if a run that is there already has another presence."""
  file = folder.path / PRESENCE
  if not file.exists():
    if folder.writes:
      folder.path.mkdir(parents=True, exist_ok=True)
      presence.save(file, found)
  elif presence.load(file, found.workers) != found:
    raise ValueError(f"{file} has another presence than this run; --resume --workdir={folder.path} alone goes on")


def _algorithm(experiment: Experiment) -> Algorithm:
  made = experiment.make_algorithm()
  assert isinstance(made, Algorithm)
  return made


MEMBERS = "members.json"  # where the supervisors are
COLLECTIVE = (
  "Gloo",
  "NCCL",
  "coordination service",
  "has not come to",
  "was not reached",
)  # what one lacked says of it

Run = Callable[[Order, Memory], object]


def supervise(experiment: Experiment, options: RunOptions, path: Path, run: Run) -> None:
  """Supervise this process of the job until its end. run: trains as an order says, in a fork.

  Raises:
    Failed: if the job did not come to its end, or goes on without this process.
    ValueError: if the processes do not find each other, or differ.
  """
  me, folder = hosts.member(), RunFolder(path)

  def train(order: Order, memory: Memory) -> int:
    index = order.ranks.index(me.rank)
    place = me._replace(rank=index, count=len(order.ranks), coordinator=host_port(*order.coordinator))
    os.environ[hosts.JOINED] = str(place)
    hosts.declare()
    return exit_code("train", lambda: _alone_in_failing(lambda: run(order, memory), len(order.ranks)))

  job = SupervisedJob(
    run=train,
    same=agreement.text(experiment.to_json(), options),
    differs=agreement.difference,
    check=(lambda: None) if hosts.RESTARTED in os.environ else lambda: check_folder(path, experiment, options),
    begun=folder.has_begun,
    file=path / MEMBERS,
    say=lambda text: hosts.tell(f"train: {text}"),
    join_timeout=options.join_timeout,
    silence=options.peer_timeout,
  )
  if code := Supervisor(me, job).supervise():
    raise Failed(code)


def _alone_in_failing(run: Callable[[], object], processes: int) -> int:
  """Return the exit code. What fails as another process is lost is for the supervisor, which ends this one."""
  try:
    run()
    code = 0
  except Stopped as stopped:
    if hosts.is_main():
      print(stopped.message, flush=True)
    code = 128 + stopped.args[1]
  except Exception as error:
    if processes > 1:
      time.sleep(hosts.GRACE)
      if any(words in str(error) for words in COLLECTIVE):
        return LOST
    raise
  if processes > 1:
    hosts.exchange("done")  # the first one's end would be a loss to the others
  return code
