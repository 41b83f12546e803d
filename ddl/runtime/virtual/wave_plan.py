"""A schedule cut into compiled calls of one shape: the worker rounds and operations of each wave of a call."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from ddl.api import ServerAlgorithm
from ddl.events.operations import Operations
from ddl.events.record import Events
from ddl.events.schedule import check_schedule, visits
from ddl.events.waves import Wave, stops, waves
from ddl.runtime.rounds.worker_round import DROPPED, FULL, REST, RESTART, first_step, visit_step
from ddl.runtime.virtual.server_state import Step


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
  """The shape to which all calls are padded, so that there is one executable."""

  waves: int
  operations: int  # per wave
  rows: int  # worker rounds with steps, per device


class Arrays(NamedTuple):
  """A call as arrays."""

  mode: np.ndarray  # [workers, waves] int32
  row: np.ndarray  # [workers, waves] int32: place of the round among its device's batches
  first: np.ndarray  # [workers, waves] int32: number of the round's first step
  count: np.ndarray  # [waves] int32: operations
  steps: Step  # [waves, operations]
  rounds: list[list[tuple[int, int]]]  # per device, in the order of `row`: (worker, first step)
  most_rows: int  # per device


class WavePlan:
  """The calls of a run and their arrays."""

  def __init__(self, algorithm: ServerAlgorithm, events: Events, operations: Operations, workers: int, devices: int):
    """events, operations: of the whole run. ValueError as of `check_schedule`."""
    check_schedule(algorithm, events, operations, workers)
    self.algorithm, self.events, self.operations = algorithm, events, operations
    self.workers, self.virtual, self.devices = workers, workers // devices, devices
    self._visit_steps = visit_step(algorithm.delay, events.round, algorithm.period)

  def visits(self, step: int) -> int:
    """Return the visits that bring the workers to `step` steps on average. ValueError beyond the schedule's end."""
    count, there = visits(self.algorithm, self.workers, step), len(self.events.worker)
    if count > there:
      raise ValueError(f"the schedule has {there} visits; invalid: must have {count} for step {step}")
    return count

  def seconds(self, step: int) -> float:
    """Return the virtual seconds after `step` steps of the workers on average. ValueError beyond the schedule's end."""
    count = self.visits(step)
    return float(self.events.served[count - 1]) if count else 0.0

  def calls(self, boundaries: Sequence[int], widest: int) -> list[SimulatorCall]:
    """Return the calls between successive steps in `boundaries`, from 0 on. ValueError beyond the schedule's end."""
    cuts = stops(self.operations, [self.visits(step) for step in boundaries[1:]])
    parts = waves(self.operations, cuts, widest)
    return [SimulatorCall(a, b, tuple(part)) for a, b, part in zip(boundaries[:-1], boundaries[1:], parts, strict=True)]

  def shape(self, calls: Sequence[SimulatorCall]) -> Shape:
    """Return the smallest shape that fits all calls."""
    rows = 1
    for call in calls:
      events = [event for wave in call.waves for event in wave.visits if self.has_steps(event)]
      rows = max(rows, *np.bincount(self.events.worker[events] // self.virtual), 0)
    most = max((w.last - w.first for call in calls for w in call.waves), default=1)
    return Shape(max(len(call.waves) for call in calls) or 1, most, int(rows))

  def arrays(self, call: SimulatorCall, shape: Shape) -> Arrays:
    """Return the call, padded to `shape`."""
    mode = np.full((self.workers, shape.waves), REST, np.int32)
    row, first = np.zeros_like(mode), np.zeros_like(mode)
    count = np.zeros(shape.waves, np.int32)
    size = (shape.waves, shape.operations)
    kind, who, peer, at, block = np.zeros((5, *size), np.int32)
    steps = Step(kind, who, peer, at, block, np.zeros(size))
    rounds: list[list[tuple[int, int]]] = [[] for _ in range(self.devices)]
    for k, wave in enumerate(call.waves):
      for event in wave.visits:
        worker = int(self.events.worker[event])
        mode[worker, k], first[worker, k] = self._mode(event), self._first(event)
        if self.has_steps(event):
          mine = rounds[worker // self.virtual]
          row[worker, k] = len(mine)
          mine.append((worker, self._first(event)))
      count[k] = wave.last - wave.first
      part = slice(wave.first, wave.last)
      event = self.operations.event[part]
      steps.kind[k, : count[k]] = self.operations.kind[part]
      steps.worker[k, : count[k]] = self.operations.worker[part]
      steps.peer[k, : count[k]] = self.events.peer[event]
      steps.step[k, : count[k]] = self._visit_steps[event]
      steps.block[k, : count[k]] = self.operations.block[part]
      steps.weight[k, : count[k]] = self.operations.weight[part]
    return Arrays(mode, row, first, count, steps, rounds, shape.rows)

  def _first(self, event: int) -> int:
    return first_step(self.algorithm.delay, int(self.events.round[event]), self.algorithm.period)

  def _mode(self, event: int) -> int:
    if self.events.dropped[event]:
      return DROPPED
    if self.events.restarted[event]:
      return RESTART
    return FULL if self.has_steps(event) else REST

  def has_steps(self, event: int) -> bool:
    """Return whether steps precede the visit: not for a dropped worker, nor for the first request with a delay."""
    if self.events.dropped[event]:
      return False
    delayed = self.algorithm.delay > 0
    return not delayed or bool(self.events.round[event] > 0 and not self.events.restarted[event])
