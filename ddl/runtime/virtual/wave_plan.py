"""A schedule cut into compiled calls of one shape: which worker rounds and which operations each wave of a call makes."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from ddl.api import ServerAlgorithm
from ddl.events.operations import Operations
from ddl.events.record import Events
from ddl.events.schedule import check_schedule, visits
from ddl.events.waves import Wave, stops, waves
from ddl.runtime.virtual.server_state import Step
from ddl.runtime.worker_round import DROPPED, FULL, REST, RESTART, first_step


class SimulatorCall(NamedTuple):
  """The visits that bring the workers, on average, from step `first` to step `end`."""

  first: int
  end: int
  waves: tuple[Wave, ...]

  @property
  def steps(self) -> int:
    """Number of steps of a worker, on average."""
    return self.end - self.first


class Shape(NamedTuple):
  """What all calls are padded to, so that there is one executable."""

  waves: int
  operations: int  # per wave
  rows: int  # worker rounds with steps, per device


class Arrays(NamedTuple):
  """A call as arrays."""

  mode: np.ndarray  # [workers, waves] int32
  row: np.ndarray  # [workers, waves] int32: the worker round's place among its device's batches
  first: np.ndarray  # [workers, waves] int32: number of the worker round's first step
  count: np.ndarray  # [waves] int32: operations
  steps: Step  # [waves, operations]
  rounds: list[list[tuple[int, int]]]  # per device, in the order of `row`: (worker, first step)
  most_rows: int  # that a device has room for


class WavePlan:
  """The calls of a run and their arrays."""

  def __init__(self, algorithm: ServerAlgorithm, events: Events, operations: Operations, workers: int, devices: int):
    """events and operations: of the whole run. ValueError if they are of another number of workers, or lack peers."""
    check_schedule(algorithm, events, operations, workers)
    self.algorithm, self.events, self.operations = algorithm, events, operations
    self.workers, self.virtual, self.devices = workers, workers // devices, devices

  def visits(self, step: int) -> int:
    """Visits after which the workers have made `step` steps on average. ValueError if the schedule ends before."""
    count, there = visits(self.algorithm, self.workers, step), len(self.events.worker)
    if count > there:
      raise ValueError(
        f"the schedule ends after {there} visits, but step {step} takes {count}: make one of {step} steps"
      )
    return count

  def seconds(self, step: int) -> float:
    """When the workers have made `step` steps on average, by the schedule. ValueError if it ends before."""
    count = self.visits(step)
    return float(self.events.served[count - 1]) if count else 0.0

  def calls(self, boundaries: Sequence[int], widest: int) -> list[SimulatorCall]:
    """Calls between successive steps in `boundaries`, which begin with 0. ValueError beyond the schedule's end."""
    cuts = stops(self.operations, [self.visits(step) for step in boundaries[1:]])
    parts = waves(self.operations, cuts, widest)
    return [SimulatorCall(a, b, tuple(part)) for a, b, part in zip(boundaries[:-1], boundaries[1:], parts, strict=True)]

  def shape(self, calls: Sequence[SimulatorCall]) -> Shape:
    """The smallest that fits all calls."""
    rows = [len(rounds) for call in calls for rounds in self._worker_rounds(call)]
    most = max((w.last - w.first for call in calls for w in call.waves), default=1)
    return Shape(max(len(call.waves) for call in calls) or 1, most, max(rows, default=1) or 1)

  def arrays(self, call: SimulatorCall, shape: Shape) -> Arrays:
    """The call, padded to `shape`."""
    mode = np.full((self.workers, shape.waves), REST, np.int32)
    row, first = np.zeros_like(mode), np.zeros_like(mode)
    count = np.zeros(shape.waves, np.int32)
    size = (shape.waves, shape.operations)
    kind, who, peer, block = np.zeros((4, *size), np.int32)
    steps = Step(kind, who, peer, block, np.zeros(size))
    rounds: list[list[tuple[int, int]]] = [[] for _ in range(self.devices)]
    for k, wave in enumerate(call.waves):
      for event in wave.visits:
        worker = int(self.events.worker[event])
        mode[worker, k] = self._mode(event)
        if self.has_steps(event):
          mine = rounds[worker // self.virtual]
          row[worker, k], first[worker, k] = len(mine), self._first(event)
          mine.append((worker, self._first(event)))
      count[k] = wave.last - wave.first
      part = slice(wave.first, wave.last)
      event = self.operations.event[part]
      steps.kind[k, : count[k]] = self.operations.kind[part]
      steps.worker[k, : count[k]] = self.operations.worker[part]
      steps.peer[k, : count[k]] = self.events.peer[event]
      steps.block[k, : count[k]] = self.operations.block[part]
      steps.weight[k, : count[k]] = self.operations.weight[part]
    return Arrays(mode, row, first, count, steps, rounds, shape.rows)

  def _worker_rounds(self, call: SimulatorCall) -> list[list[tuple[int, int]]]:
    rounds: list[list[tuple[int, int]]] = [[] for _ in range(self.devices)]
    for wave in call.waves:
      for event in wave.visits:
        if self.has_steps(event):
          rounds[int(self.events.worker[event]) // self.virtual].append((0, 0))
    return rounds

  def _first(self, event: int) -> int:
    return first_step(self.algorithm.delay, int(self.events.round[event]), self.algorithm.period)

  def _mode(self, event: int) -> int:
    if self.events.dropped[event]:
      return DROPPED
    if self.events.restarted[event]:
      return RESTART
    return FULL if self.has_steps(event) else REST

  def has_steps(self, event: int) -> bool:
    """Whether the visit's worker round has steps, or the worker only asks, or is dropped."""
    if self.events.dropped[event]:
      return False
    delayed = self.algorithm.delay > 0
    return not delayed or bool(self.events.round[event] > 0 and not self.events.restarted[event])
