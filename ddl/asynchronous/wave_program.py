"""Split a schedule into calls of a compiled program, and define this program, which runs the waves of a call."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from ddl.api import Model, ServerAlgorithm, Tree
from ddl.asynchronous.server_state import (
  SentMessage,
  ServerOperations,
  ServerState,
  from_blocks,
  make_serving,
  open_server,
)
from ddl.asynchronous.worker_round import (
  DROPPED,
  FULL,
  REST,
  RESTART,
  Worker,
  first_step,
  make_worker_round,
  visit_step,
)
from ddl.engine.consensus import Consensus, agree
from ddl.engine.keys import step_key
from ddl.engine.workers import AXIS, Workers
from ddl.events.operations import COLLECT, DROP, LOOK, Operations, Wave, stops, waves
from ddl.events.record import Events
from ddl.events.schedule import check_schedule, visits_until
from ddl.group import Group


class SimulatorCall(NamedTuple):
  """A call of the compiled program: the waves that advance the workers, on average, from step `first` to `end`."""

  first: int
  end: int
  waves: tuple[Wave, ...]

  @property
  def steps(self) -> int:
    """Return the number of steps per worker, on average."""
    return self.end - self.first


class Shape(NamedTuple):
  """The shape to which all calls are padded, so that one executable suffices."""

  waves: int
  operations: int  # per wave
  rows: int  # worker rounds with steps, per device


class Arrays(NamedTuple):
  """The arrays that describe a call to the compiled program."""

  mode: np.ndarray  # [workers, waves] int32: REST, FULL, DROPPED or RESTART
  row: np.ndarray  # [workers, waves] int32: index of the round among its device's batches
  first: np.ndarray  # [workers, waves] int32: the round's first step
  period: np.ndarray  # [workers, waves] int32: the number of steps in the worker's rounds
  count: np.ndarray  # [waves] int32: number of operations
  steps: ServerOperations  # the server operations [waves, operations]
  rounds: list[list[tuple[int, int]]]  # per device, in the order of `row`: (worker, first step)
  most_rows: int  # number of rows to which the batches of each device are padded


class WavePlan:
  """Plan of a simulated run: its calls, and the arrays of each call."""

  def __init__(self, algorithm: ServerAlgorithm, events: Events, operations: Operations, workers: int, devices: int):
    """Plan the whole run from its events and operations. Raises ValueError as `check_schedule` does."""
    check_schedule(algorithm, events, operations, workers)
    self.algorithm, self.events, self.operations = algorithm, events, operations
    self.workers, self.virtual, self.devices = workers, workers // devices, devices
    self._visit_steps = visit_step(algorithm.delay, events.round, events.period)
    self._first = first_step(algorithm.delay, events.round, events.period)
    # Whether steps precede the visit: not if it is dropped or, with a delay, if it is the first one after a (re)start.
    self.has_steps = ~(events.dropped | ((algorithm.delay > 0) & ((events.round == 0) | events.restarted)))
    self._mode = np.select([events.dropped, events.restarted, self.has_steps], [DROPPED, RESTART, FULL], REST)

  def visits(self, step: int) -> int:
    """Return the number of visits after which the workers have finished `step` steps on average.

    Raises ValueError beyond the schedule's end.
    """
    return visits_until(self.algorithm, self.events, self.workers, step)

  def seconds(self, step: int) -> float:
    """Return the virtual time, in seconds, at which the workers have finished `step` steps on average.

    Raises ValueError beyond the schedule's end.
    """
    count = self.visits(step)
    return float(self.events.served[count - 1]) if count else 0.0

  def calls(self, boundaries: Sequence[int], widest: int) -> list[SimulatorCall]:
    """Return one call per pair of successive `boundaries`. Raises ValueError beyond the schedule's end.

    boundaries: steps per worker on average; the first one is 0. widest: maximum number of visits per wave.
    """
    cuts = stops(self.operations, [self.visits(step) for step in boundaries[1:]])
    parts = waves(self.operations, cuts, widest)
    return [SimulatorCall(a, b, tuple(part)) for a, b, part in zip(boundaries[:-1], boundaries[1:], parts, strict=True)]

  def shape(self, calls: Sequence[SimulatorCall]) -> Shape:
    """Return the smallest shape that fits all calls."""
    rows = 1
    for call in calls:
      events = [event for wave in call.waves for event in wave.visits if self.has_steps[event]]
      rows = max(rows, *np.bincount(self.events.worker[events] // self.virtual), 0)
    most = max((w.last - w.first for call in calls for w in call.waves), default=1)
    return Shape(max(len(call.waves) for call in calls) or 1, most, int(rows))

  def arrays(self, call: SimulatorCall, shape: Shape) -> Arrays:
    """Return the arrays of a call, padded to `shape`."""
    mode = np.full((self.workers, shape.waves), REST, np.int32)
    row, first, period = np.zeros((3, *mode.shape), np.int32)
    count, size = np.zeros(shape.waves, np.int32), (shape.waves, shape.operations)
    kind, who, peer, at, block = np.zeros((5, *size), np.int32)
    steps = ServerOperations(kind, who, peer, at, block, np.zeros(size))
    rounds: list[list[tuple[int, int]]] = [[] for _ in range(self.devices)]
    for k, wave in enumerate(call.waves):
      for event in wave.visits:
        worker = int(self.events.worker[event])
        mode[worker, k], first[worker, k] = self._mode[event], self._first[event]
        period[worker, k] = self.events.period[event]
        if self.has_steps[event]:
          device_rounds = rounds[worker // self.virtual]
          row[worker, k] = len(device_rounds)
          device_rounds.append((worker, int(self._first[event])))
      count[k] = wave.last - wave.first
      part, order = slice(wave.first, wave.last), self.operations
      event = order.event[part]
      visits = self.events.peer[event], self._visit_steps[event]
      columns = (order.kind[part], order.worker[part], *visits, order.block[part], order.weight[part])
      for array, column in zip(steps, columns, strict=True):
        array[k, : count[k]] = column
    return Arrays(mode, row, first, period, count, steps, rounds, shape.rows)


class SimulatorCarry(NamedTuple):
  """The state of the simulation between two calls."""

  worker: Worker  # [workers, ...]
  server_state: ServerState  # [devices, ...]


class WaveProgram(NamedTuple):
  """The functions that each device runs to execute a schedule."""

  algorithm: ServerAlgorithm
  model: Model
  workers: Workers
  gradients: str  # as in `ExecutionConfig`
  steps: str  # as in `ExecutionConfig`
  kinds: frozenset[int]  # the kinds of server operations in the schedule
  blocks: int  # number of blocks of a lock-free center
  varies: bool  # whether workers have different periods

  def start(self, params: Tree, extra: Tree) -> SimulatorCarry:
    """Return a device's initial carry; the server and all workers start from these parameters and `extra`."""
    virtual = self.workers.virtual
    state, _, _ = self.algorithm.init(params)
    worker = Worker(params, state, extra)
    server = open_server(self.algorithm, params, extra, self.kinds, virtual + 1, self.workers.count, self.blocks)
    several = jax.tree.map(lambda x: jnp.broadcast_to(x, (virtual, *x.shape)), worker)
    return SimulatorCarry(several, jax.tree.map(lambda x: x[None], server))

  def call(self, carry: SimulatorCarry, batches: Tree, rounds: Any, server: Any, key: jax.Array) -> Any:
    """Execute the waves of a call; return (carry, losses [workers, waves, period]).

    rounds: (mode, row, first, period) of `Arrays`; server: (number of waves, count, steps), the last two from `Arrays`.
    """
    virtual, period = self.workers.virtual, self.algorithm.period
    unrolled = self.gradients == "unroll"  # keep each worker's arrays separate, to avoid copies
    rank = lax.axis_index(AXIS[0]) * virtual
    key, batches = jax.random.wrap_key_data(key), jax.tree.map(lambda x: x[0], batches)
    worker_round = make_worker_round(self.algorithm, self.model, self.steps, DROP in self.kinds, self.varies)
    serve = make_serving(self.algorithm, self.kinds, self.blocks)

    def run_round(i: Any, mode: Any, row: Any, first: Any, count: Any, worker: Worker, reply: Tree, fresh: Tree) -> Any:
      def take() -> Any:
        numbers = first + jnp.arange(period, dtype=first.dtype)
        keys = jax.vmap(lambda t: step_key(key, rank + i, t))(numbers)
        return jax.tree.map(lambda x: x[row], batches), keys

      return worker_round(mode, first, count, worker, reply, fresh, take)

    def wave(k: Any, carry: tuple[Any, ServerState, jax.Array]) -> Any:
      workers, state, all_losses = carry
      (mode, row, first, size), (count, steps) = jax.tree.map(lambda x: x[k], inputs)
      replies, fresh = self._replies(workers, state, rank), state.fresh if jax.tree.leaves(state.fresh) else None
      if unrolled:
        results = []
        for i in range(virtual):
          reply, restart = jax.tree.map(lambda x, i=i: x[i], (replies, fresh))
          results.append(run_round(i, mode[i], row[i], first[i], size[i], workers[i], reply, restart))
        workers, losses = tuple(worker for worker, _ in results), jnp.stack([loss for _, loss in results])
      else:
        local = jax.tree.map(lambda x: x[:virtual], fresh)
        args = (jnp.arange(virtual, dtype=rank.dtype), mode, row, first, size, workers, replies, local)
        mapped = (
          jax.vmap(run_round) if self.gradients == "vmap" else lambda *args: lax.map(lambda a: run_round(*a), args)
        )
        workers, losses = mapped(*args)
      messages = _of_each(workers, self._message_of)
      if self.workers.devices > 1:  # on one device XLA would copy the arrays
        messages = jax.tree.map(lambda x: lax.all_gather(x, AXIS[0], tiled=True), messages)
      state = serve(state, messages, steps, count, rank)
      if DROP in self.kinds:
        workers = _replace_extra(workers, mode, state.extra)
      return workers, state, all_losses.at[k].set(losses.astype(all_losses.dtype))

    workers: Any = carry.worker
    if unrolled:
      workers = tuple(jax.tree.map(lambda x, i=i: x[i], workers) for i in range(virtual))
    state = jax.tree.map(lambda x: x[0], carry.server_state)
    waves, *tasks = server
    inputs = (jax.tree.map(lambda x: jnp.moveaxis(x, 1, 0), rounds), tasks)
    losses = jnp.zeros((len(tasks[0]), virtual, period), jnp.result_type(float))
    workers, state, losses = lax.fori_loop(0, waves, wave, (workers, state, losses))
    if unrolled:
      workers = jax.tree.map(lambda *x: jnp.stack(x), *workers)
    losses = lax.all_gather(jnp.moveaxis(losses, 0, 1), AXIS[0], tiled=True)
    return SimulatorCarry(workers, jax.tree.map(lambda x: x[None], state)), losses

  def consensus(self, carry: SimulatorCarry) -> Consensus:
    """Return the model to evaluate and the workers' distance from their mean."""
    lifted = jax.vmap(partial(agree, Group(AXIS)), axis_name=AXIS[1], axis_size=self.workers.virtual)
    extra, distance = jax.tree.map(lambda x: x[0], lifted(carry.worker.params, carry.worker.extra))
    server = jax.tree.map(lambda x: x[0], carry.server_state.server)
    return Consensus(self.algorithm.evaluate(server), extra, distance)

  def _replies(self, workers: Any, state: ServerState, rank: Any) -> Tree:
    """Return the replies to the last visits of this device's workers: [virtual, ...]."""
    rule, virtual = self.algorithm.lock_free, self.workers.virtual
    if rule is None or LOOK not in self.kinds:
      return jax.tree.map(lambda x: x[:virtual], state.replies)
    message = _of_each(workers, self._request_of)  # that of the last visit, as the worker is unchanged
    mine = lax.dynamic_slice_in_dim(state.seen, rank, virtual)
    seen = jax.vmap(lambda x: from_blocks(x, state.server))(mine)
    return jax.vmap(rule.reply)(message, seen)

  def _request_of(self, worker: Worker) -> Tree:
    return self.algorithm.request(worker.state, worker.params)

  def _message_of(self, worker: Worker) -> Tree:
    message = self._request_of(worker)
    return SentMessage(message, worker.extra) if COLLECT in self.kinds else message


def _of_each(workers: Any, fn: Callable[[Worker], Tree]) -> Tree:
  """Apply `fn` to each worker and stack the results: [virtual, ...]. workers: a stacked `Worker` or a tuple of them."""
  if isinstance(workers, Worker):
    return jax.vmap(fn)(workers)
  return jax.tree.map(lambda *x: jnp.stack(x), *map(fn, workers))


def _replace_extra(workers: Any, mode: Any, extra: Tree) -> Any:
  """Replace the `extra` of the workers dropped by a quorum with the mean over the served workers."""

  def replace(worker: Worker, mode: Any) -> Worker:
    replaced = jax.tree.map(lambda mean, x: jnp.where(mode == DROPPED, mean, x), extra, worker.extra)
    return worker._replace(extra=replaced)

  if isinstance(workers, Worker):
    return jax.vmap(replace)(workers, mode)
  return tuple(replace(worker, mode[i]) for i, worker in enumerate(workers))
