"""Run server algorithms in virtual time, in the exact order of a schedule and as fast as data-parallel training.

Each device runs one or more (virtual) workers. It also holds a copy of the server and executes all server operations,
because its workers need the replies. The server stores the parameters as one vector if this is faster
(`execution.packs`) and its functions are known to be element-wise (`flat_params.is_elementwise`).
"""

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import numpy as np

from ddl.api import Model, ServerAlgorithm
from ddl.asynchronous.flat_params import check_lock_free, is_elementwise, packed
from ddl.asynchronous.wave_program import Arrays, Shape, SimulatorCall, SimulatorCarry, WavePlan, WaveProgram
from ddl.contract import of_model, of_server
from ddl.engine.consensus import Consensus
from ddl.engine.execution import ExecutionConfig, compiled, describe_layout, layout_of, packs
from ddl.engine.placement import shardings
from ddl.engine.traffic import relayed_nbytes, visit_nbytes
from ddl.engine.trainer import SingleRunTrainer
from ddl.engine.workers import Workers, nbytes, placed
from ddl.events.operations import COLLECT, READ, Operations
from ddl.events.record import Events

# ([(worker, first step)] of some rounds, steps per round) -> their batches by name, [rounds, steps, ...]
RoundFeed = Callable[[Sequence[tuple[int, int]], int], dict[str, np.ndarray]]


class Simulator(SingleRunTrainer):
  """A trainer (`ddl.engine.trainer.Trainer`) that runs a server algorithm on a schedule of events."""

  def __init__(
    self, algorithm: ServerAlgorithm, model: Model, workers: Workers, execution: ExecutionConfig, events: Events,
    operations: Operations, widest: int | None = None,
  ):  # fmt: skip
    """Set the algorithm, the model and the schedule.

    widest: maximum number of visits per wave (see `ddl.events.operations`); by default, the number of workers.
    """
    self.model, self.workers, self.execution = (model := of_model(model)), workers, execution
    params, extra = jax.eval_shape(model.init, jax.random.key(0))
    check_lock_free(algorithm, params)
    algorithm = of_server(algorithm, params)
    self.is_packed = packs(params) and is_elementwise(algorithm, params)  # whether the server stores one vector
    self.algorithm = packed(algorithm, params) if self.is_packed else algorithm
    self.widest = widest or workers.count
    self.fed, self.layout = workers.local, layout_of(workers, execution)
    self.compile_seconds = 0.0
    self._shape: Shape | None = None
    self._program: WaveProgram | None = None
    self._compiled: dict[Any, Any] = {}
    self.follow(events, operations)
    self._message, self._reply = visit_nbytes(algorithm, params)
    self._relayed, self._extra = relayed_nbytes(algorithm, params), nbytes(extra)

  def follow(self, events: Events, operations: Operations) -> None:
    """Set the schedule.

    A program compiled for an earlier schedule is reused if both schedules have the same kinds of operations and the
    new one fits into the program's `Shape`.

    Raises ValueError for a schedule with another number of workers, with other periods than the algorithm allows, or
    without the peers that a gossip algorithm needs.
    """
    self.plans = WavePlan(self.algorithm, events, operations, self.workers.count, self.workers.devices)
    kinds = frozenset(int(k) for k in np.unique(operations.kind))
    blocks = int(operations.block.max(initial=0)) + 1
    self.events, self.operations, self._quorum = events, operations, COLLECT in kinds
    kind = kinds, blocks, bool((events.period < self.algorithm.period).any())
    if self._program and kind == self._kind:
      return
    self._shape, gradients, steps = None, self.execution.gradients, self.execution.steps
    self._kind, self._program = kind, WaveProgram(self.algorithm, self.model, self.workers, gradients, steps, *kind)
    self._start = jax.jit(self.workers.lift(self._program.start, (False, False), True))
    self._consensus = jax.jit(self.workers.lift(self._program.consensus, True, False))

  def start(self, key: jax.Array) -> SimulatorCarry:
    """Return the initial carry for a random key. Raises ValueError if the carry exceeds the devices' memory."""
    shapes = jax.eval_shape(self.model.init, key)
    carry = placed(jax.eval_shape(self._start, *shapes), self.workers.split())
    self.workers.check_memory(carry, placed(shapes[0], self.workers.everywhere))
    params, extra = jax.jit(self.model.init)(key)
    return self._start(self.workers.replicate(params), self.workers.replicate(extra))

  def saved(self, carry: SimulatorCarry) -> SimulatorCarry:
    """Return the carry to save in a checkpoint; only a run with the same workers and devices can restore it."""
    return carry

  def saved_shapes(self, key: jax.Array, step: int) -> SimulatorCarry:
    """Return the shapes, types and shardings of the carry in a checkpoint."""
    del step
    carry = self.start(key)
    return placed(carry, shardings(carry))

  def restored(self, saved: SimulatorCarry, step: int = 0) -> SimulatorCarry:
    """Convert the carry in a checkpoint to a carry of this trainer."""
    del step
    return saved

  def consensus(self, carry: SimulatorCarry) -> Consensus:
    """Return the model to evaluate and the workers' distance from their mean; the carry stays valid."""
    return self._consensus(carry)

  def plan(self, first: int, last: int, every: int) -> list[SimulatorCall]:
    """Return the calls that advance the run from step `first` to `last`; none crosses a multiple of `every`."""
    longest, boundaries = max(self.execution.steps_per_call, 1), [0]
    while boundaries[-1] < last:
      at = boundaries[-1]
      boundaries.append(min(last, (at // every + 1) * every, at + longest))
    calls = self.plans.calls(boundaries, self.widest)
    needed = self.plans.shape(calls)
    if self._shape is None or any(n > have for n, have in zip(needed, self._shape, strict=True)):
      self._shape = Shape(*(-(-n * 9 // 32) * 4 for n in needed))  # an eighth larger, to fit other schedules
    return [call for call in calls if call.first >= first]

  def run(
    self, carry: SimulatorCarry, calls: list[SimulatorCall], feed: RoundFeed, key: jax.Array
  ) -> Iterator[tuple[SimulatorCall, SimulatorCarry, jax.Array]]:
    """Run the calls and yield (call, carry after it, losses [workers, waves, period]).

    One call is dispatched per iteration, and at most two are in flight (see `CompiledTrainer.run`). A yielded carry is
    donated to the next call.
    """
    key = self.workers.replicate(jax.random.key_data(key))
    before_last = last = None
    for call in calls:
      if self._shape is None:
        raise ValueError("Simulator.plan must be called before Simulator.run.")
      arrays = self.plans.arrays(call, self._shape)
      mine = self.workers.local
      rounds = self.workers.put(tuple(x[mine] for x in (arrays.mode, arrays.row, arrays.first, arrays.period)))
      batches = self.workers.put(self._rows(arrays, feed))
      server = self.workers.replicate((np.int32(len(call.waves)), arrays.count, arrays.steps))
      jax.block_until_ready(before_last)
      args = (carry, batches, rounds, server, key)
      carry, losses = self._executable(args)(*args)
      before_last, last = last, losses
      yield call, carry, losses

  def losses(self, call: SimulatorCall, losses: jax.Array) -> np.ndarray:
    """Return the losses of all steps of all workers in a call, as a vector."""
    has_step, number = np.zeros(losses.shape, bool), np.arange(self.algorithm.period)
    for k, wave in enumerate(call.waves):
      events = list(wave.visits)
      steps = np.where(self.plans.has_steps[events], self.events.period[events], 0)
      has_step[self.events.worker[events], k] = number < steps[:, None]
    return np.asarray(losses)[has_step]

  def nbytes(self, call: SimulatorCall) -> float:
    """Return the bytes that a worker sends and receives in a call, with those between servers: a mean over workers."""
    visits = [event for wave in call.waves for event in wave.visits if not self.events.dropped[event]]
    if self.algorithm.arrivals.peers != "none":
      visits = [event for event in visits if self.events.peer[event] >= 0]
    done = np.concatenate([np.arange(wave.first, wave.last) for wave in call.waves] or [np.arange(0)])
    read = self.operations.event[done[self.operations.kind[done] == READ]]
    dropped = np.count_nonzero(self.events.dropped[read])  # a quorum also replies to dropped workers
    extra = self._extra if self._quorum else 0  # part of a quorum's messages and replies
    total = len(visits) * (self._message + self._reply + self._relayed + extra) + dropped * (self._reply + extra)
    return total / self.workers.count

  def virtual_seconds(self, step: int) -> float:
    """Return the virtual time, in seconds, at which the workers have finished `step` steps on average.

    Raises ValueError beyond the schedule's end.
    """
    return self.plans.seconds(step)

  def describe(self) -> str:
    """Describe the devices, the execution options and the number of visits in one line."""
    return f"{describe_layout(self.workers, self.execution)}, virtual time: {len(self.events.worker)} visits"

  def _rows(self, arrays: Arrays, feed: RoundFeed) -> dict[str, np.ndarray]:
    """Return the batches of this process's devices: [devices, rows, period, batch, ...]; a row is a worker round."""
    parts = []
    for device in sorted({worker // self.workers.virtual for worker in self.workers.local}):
      rounds = arrays.rounds[device] or [(device * self.workers.virtual, 0)]
      rows = feed(rounds, self.algorithm.period)
      short = arrays.most_rows - len(rounds)
      parts.append({k: np.concatenate([x, np.repeat(x[:1], short, axis=0)]) if short else x for k, x in rows.items()})
    return {k: np.stack([part[k] for part in parts]) for k in parts[0]}

  def _executable(self, args: Any) -> Callable[..., tuple[SimulatorCarry, jax.Array]]:
    assert self._program
    kind = (self._shape, *self._kind)
    if kind not in self._compiled:
      started = time.perf_counter()
      lifted = self.workers.lift(self._program.call, (True, True, True, False, False), (True, False))
      self._compiled[kind] = compiled(jax.jit(lifted, donate_argnums=0).lower(*args))
      self.compile_seconds += time.perf_counter() - started
    return self._compiled[kind]
