"""Server algorithms in virtual time: the exact order of a schedule, at the speed of data-parallel training.

The same interface as `Trainer`, so that experiments have one loop. Workers are spread over devices and virtual
workers. Every device holds the server and carries out all its operations, as its own workers need the replies. The
server holds the parameters as one vector where that is faster (`execution.packs`) and its rule works coordinate by
coordinate (`flat_params.divides`).
"""

import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from ddl.api import Model, ServerAlgorithm, Tree
from ddl.events.operations import COLLECT, DROP, LOOK, READ, Operations
from ddl.events.record import Events
from ddl.group import Group
from ddl.runtime.consensus import Consensus, agree
from ddl.runtime.execution import ExecutionConfig, packs
from ddl.runtime.flat_params import divides, packed
from ddl.runtime.traffic import visit_nbytes
from ddl.runtime.virtual.server_state import Sent, ServerState, from_blocks, make_serving, open_server
from ddl.runtime.virtual.wave_plan import Arrays, Shape, SimulatorCall, WavePlan
from ddl.runtime.worker_round import DROPPED, Worker, make_worker_round
from ddl.runtime.workers import AXIS, Workers, nbytes

RoundFeed = Callable[
  [Sequence[tuple[int, int]], int], dict[str, np.ndarray]
]  # ([(worker, first step)], steps) -> [rounds, steps, ...]


class SimulatorCarry(NamedTuple):
  """The state between two calls."""

  worker: Worker  # [workers, ...]
  server_state: ServerState  # [devices, ...]


class Simulator:
  """One server algorithm on one model and layout, for any number of schedules."""

  def __init__(
    self,
    algorithm: ServerAlgorithm,
    model: Model,
    workers: Workers,
    execution: ExecutionConfig,
    events: Events,
    operations: Operations,
    widest: int | None = None,
  ):
    """events, operations: the schedule. widest: most visits of a wave, by default as many as there are workers."""
    self.model, self.workers, self.execution = model, workers, execution
    params, extra = jax.eval_shape(model.init, jax.random.key(0))
    self.algorithm = packed(algorithm, params) if packs(params) and divides(algorithm, params) else algorithm
    self.widest = widest or workers.count
    self.compile_seconds = 0.0
    self._shape: Shape | None = None
    self.kinds, self.blocks = frozenset[int](), 0
    self._compiled: dict[Any, Any] = {}
    self.follow(events, operations)
    self._consensus = jax.jit(workers.lift(self._consensus_of, True, False))
    self._message, self._reply = visit_nbytes(algorithm, params)
    self._extra = nbytes(extra)

  def follow(self, events: Events, operations: Operations) -> None:
    """Follow this schedule from now on. What is compiled is used again if the calls fit.

    Raises:
      ValueError: one line, for a schedule of another number of workers, or without the peers of a gossip algorithm.
    """
    self.plans = WavePlan(self.algorithm, events, operations, self.workers.count, self.workers.devices)
    kinds = frozenset(int(k) for k in np.unique(operations.kind))
    blocks = int(operations.block.max(initial=0)) + 1
    if (kinds, blocks) != (self.kinds, self.blocks):
      self._shape = None
      self._start = jax.jit(self.workers.lift(self._start_of, (False, False), True))
    self.events, self.operations, self.kinds, self.blocks = events, operations, kinds, blocks

  def start(self, key: jax.Array) -> SimulatorCarry:
    """Return the carry before the first step: every worker and the server with the model that `key` gives.

    Raises:
      ValueError: if it does not fit into the devices' memory.
    """
    shapes = jax.eval_shape(self.model.init, key)
    self.workers.check_memory(jax.eval_shape(self._start, *shapes), shapes[0])
    params, extra = jax.jit(self.model.init)(key)
    return self._start(self.workers.replicate(params), self.workers.replicate(extra))

  def shapes(self, carry: SimulatorCarry) -> SimulatorCarry:
    """Return the shapes and shardings of the carry, for the restore of a checkpoint."""
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=self.workers.split), carry)

  def consensus(self, carry: SimulatorCarry) -> Consensus:
    """Return the model to test and the workers' distance from their mean. The carry stays valid."""
    return self._consensus(carry)

  def plan(self, first: int, last: int, every: int) -> list[SimulatorCall]:
    """Return the calls from step `first` on of a run from step 0 to `last` that pauses at the multiples of `every`.

    Raises:
      ValueError: one line, if the schedule ends before.
    """
    longest, boundaries = max(self.execution.steps_per_call, 1), [0]
    while boundaries[-1] < last:
      at = boundaries[-1]
      boundaries.append(min(last, (at // every + 1) * every, at + longest))
    calls = self.plans.calls(boundaries, self.widest)
    needed = self.plans.shape(calls)
    if self._shape is None or any(n > have for n, have in zip(needed, self._shape, strict=True)):
      self._shape = Shape(*(-(-n * 9 // 32) * 4 for n in needed))  # an eighth more, for the next schedule
    return [call for call in calls if call.first >= first]

  def run(
    self, carry: SimulatorCarry, calls: list[SimulatorCall], feed: RoundFeed, key: jax.Array
  ) -> Iterator[tuple[SimulatorCall, SimulatorCarry, jax.Array]]:
    """Dispatch the calls, one for each step of the iterator, at most two at a time (see `Trainer.run`).

    Yields (call, carry after it, losses [workers, waves, period]). The next call donates a yielded carry.
    """
    key = self.workers.replicate(jax.random.key_data(key))
    before_last = last = None
    for call in calls:
      if self._shape is None:
        raise ValueError("a simulator plans its calls before it runs them")
      arrays = self.plans.arrays(call, self._shape)
      batches, rounds = self.workers.put(self._rows(arrays, feed)), self.workers.put(self._own(arrays))
      server = self.workers.replicate((np.int32(len(call.waves)), arrays.count, arrays.steps))
      jax.block_until_ready(before_last)
      args = (carry, batches, rounds, server, key)
      carry, losses = self._executable(args)(*args)
      before_last, last = last, losses
      yield call, carry, losses

  def losses(self, call: SimulatorCall, losses: jax.Array) -> np.ndarray:
    """Return the losses of the steps that were made: [steps made]."""
    made = np.zeros(losses.shape[:2], bool)
    for k, wave in enumerate(call.waves):
      for event in wave.visits:
        made[self.events.worker[event], k] = self.plans.has_steps(event)
    return np.asarray(losses)[made].ravel()

  def nbytes(self, call: SimulatorCall) -> float:
    """Return the bytes that a worker sends and receives in a call, on average over the workers."""
    visits = [event for wave in call.waves for event in wave.visits if not self.events.dropped[event]]
    if self.algorithm.arrivals.peers != "none":
      visits = [event for event in visits if self.events.peer[event] >= 0]
    done = np.concatenate([np.arange(wave.first, wave.last) for wave in call.waves] or [np.arange(0)])
    read = self.operations.event[done[self.operations.kind[done] == READ]]
    dropped = np.count_nonzero(self.events.dropped[read])  # a quorum answers these too
    extra = self._extra if COLLECT in self.kinds else 0  # sent along with a quorum's messages and replies
    total = len(visits) * (self._message + self._reply + extra) + dropped * (self._reply + extra)
    return total / self.workers.count

  def virtual_seconds(self, step: int) -> float:
    """Return the virtual seconds after `step` steps of the workers on average. ValueError beyond the schedule's end."""
    return self.plans.seconds(step)

  def _rows(self, arrays: Arrays, feed: RoundFeed) -> dict[str, np.ndarray]:
    """Return the batches of this process's devices: [devices, rows, period, batch, ...]."""
    parts = []
    for device in sorted({worker // self.workers.virtual for worker in self.workers.local}):
      rounds = arrays.rounds[device] or [(device * self.workers.virtual, 0)]
      rows = feed(rounds, self.algorithm.period)
      short = arrays.most_rows - len(rounds)
      parts.append({k: np.concatenate([x, np.repeat(x[:1], short, axis=0)]) if short else x for k, x in rows.items()})
    return {k: np.stack([part[k] for part in parts]) for k in parts[0]}

  def _own(self, arrays: Arrays) -> tuple[np.ndarray, ...]:
    mine = self.workers.local
    return arrays.mode[mine], arrays.row[mine], arrays.first[mine]

  def _executable(self, args: Any) -> Callable[..., tuple[SimulatorCarry, jax.Array]]:
    kind = (self._shape, self.kinds, self.blocks)
    if kind not in self._compiled:
      began = time.perf_counter()
      lifted = self.workers.lift(self._call, (True, True, True, False, False), (True, False))
      self._compiled[kind] = jax.jit(lifted, donate_argnums=0).lower(*args).compile()
      self.compile_seconds += time.perf_counter() - began
    return self._compiled[kind]

  def _call(self, carry: SimulatorCarry, batches: Tree, rounds: Any, server: Any, key: jax.Array) -> Any:
    """Some waves on one device."""
    virtual, period = self.workers.virtual, self.algorithm.period
    apart = self.execution.gradients == "unroll"  # each worker's arrays are their own, so that none are copied together
    rank = lax.axis_index(AXIS[0]) * virtual
    key, batches = jax.random.wrap_key_data(key), jax.tree.map(lambda x: x[0], batches)
    worker_round = make_worker_round(self.algorithm, self.model, self.execution.steps, DROP in self.kinds)
    serve = make_serving(self.algorithm, self.kinds, self.blocks)

    def one(i: Any, mode: Any, row: Any, first: Any, worker: Worker, reply: Tree, fresh: Tree) -> Any:
      def take() -> Any:
        numbers = first + jnp.arange(period, dtype=first.dtype)
        keys = jax.vmap(lambda t: jax.random.fold_in(jax.random.fold_in(key, rank + i), t))(numbers)
        return jax.tree.map(lambda x: x[row], batches), keys

      return worker_round(mode, worker, reply, fresh, take)

    def wave(k: Any, carry: tuple[Any, ServerState, jax.Array]) -> Any:
      workers, state, all_losses = carry
      (mode, row, first), (count, steps) = jax.tree.map(lambda x: x[k], inputs)
      replies, fresh = self._replies(workers, state, rank), state.fresh if jax.tree.leaves(state.fresh) else None
      if not apart:
        own = jax.tree.map(lambda x: x[:virtual], fresh)
        args = (jnp.arange(virtual, dtype=rank.dtype), mode, row, first, workers, replies, own)
        batched = self.execution.gradients == "vmap"
        workers, losses = jax.vmap(one)(*args) if batched else lax.map(lambda a: one(*a), args)
      else:
        done = []
        for i in range(virtual):
          reply, own = jax.tree.map(lambda x, i=i: x[i], (replies, fresh))
          done.append(one(i, mode[i], row[i], first[i], workers[i], reply, own))
        workers, losses = tuple(w for w, _ in done), jnp.stack([x for _, x in done])
      messages = _of_each(workers, self._message_of)
      if self.workers.devices > 1:  # XLA copies what one device gathers
        messages = jax.tree.map(lambda x: lax.all_gather(x, AXIS[0], tiled=True), messages)
      state = serve(state, messages, steps, count, rank)
      if DROP in self.kinds:
        workers = _replace_extra(workers, mode, state.extra)
      return workers, state, all_losses.at[k].set(losses.astype(all_losses.dtype))

    workers: Any = carry.worker
    if apart:
      workers = tuple(jax.tree.map(lambda x, i=i: x[i], workers) for i in range(virtual))
    state = jax.tree.map(lambda x: x[0], carry.server_state)
    waves, *tasks = server
    inputs = (jax.tree.map(lambda x: jnp.moveaxis(x, 1, 0), rounds), tasks)
    losses = jnp.zeros((len(tasks[0]), virtual, period), jnp.result_type(float))
    workers, state, losses = lax.fori_loop(0, waves, wave, (workers, state, losses))
    if apart:
      workers = jax.tree.map(lambda *x: jnp.stack(x), *workers)
    losses = lax.all_gather(jnp.moveaxis(losses, 0, 1), AXIS[0], tiled=True)
    return SimulatorCarry(workers, jax.tree.map(lambda x: x[None], state)), losses

  def _replies(self, workers: Any, state: ServerState, rank: Any) -> Tree:
    """Return the replies of each worker's last visit: [virtual, ...]."""
    rule, virtual = self.algorithm.lock_free, self.workers.virtual
    if rule is None or LOOK not in self.kinds:
      return jax.tree.map(lambda x: x[:virtual], state.replies)
    message = _of_each(workers, self._request_of)  # of its last visit, as its state has not changed since
    mine = lax.dynamic_slice_in_dim(state.seen, rank, virtual)
    seen = jax.vmap(lambda x: from_blocks(x, state.server))(mine)
    return jax.vmap(rule.reply)(message, seen)

  def _request_of(self, worker: Worker) -> Tree:
    return self.algorithm.request(worker.state, worker.params)

  def _message_of(self, worker: Worker) -> Tree:
    message = self._request_of(worker)
    return Sent(message, worker.extra) if COLLECT in self.kinds else message

  def _start_of(self, params: Tree, extra: Tree) -> SimulatorCarry:
    virtual = self.workers.virtual
    state, _, _ = self.algorithm.init(params)
    worker = Worker(params, state, extra)
    count, blocks = self.workers.count, self.blocks
    server = open_server(self.algorithm, params, extra, self.kinds, virtual + 1, count, blocks)
    several = jax.tree.map(lambda x: jnp.broadcast_to(x, (virtual, *x.shape)), worker)
    return SimulatorCarry(several, jax.tree.map(lambda x: x[None], server))

  def _consensus_of(self, carry: SimulatorCarry) -> Consensus:
    lifted = jax.vmap(partial(agree, Group(AXIS)), axis_name=AXIS[1], axis_size=self.workers.virtual)
    extra, distance = jax.tree.map(lambda x: x[0], lifted(carry.worker.params, carry.worker.extra))
    server = jax.tree.map(lambda x: x[0], carry.server_state.server)
    return Consensus(self.algorithm.evaluate(server), extra, distance)


def _of_each(workers: Any, fn: Callable[[Worker], Tree]) -> Tree:
  """Return fn of each worker, [virtual, ...]; workers: stacked, or a tuple."""
  if isinstance(workers, Worker):
    return jax.vmap(fn)(workers)
  return jax.tree.map(lambda *x: jnp.stack(x), *map(fn, workers))


def _replace_extra(workers: Any, mode: Any, extra: Tree) -> Any:
  """Give the mean `extra` of the served workers to those that a quorum has dropped."""

  def one(worker: Worker, mode: Any) -> Worker:
    return worker._replace(
      extra=jax.tree.map(lambda mean, own: jnp.where(mode == DROPPED, mean, own), extra, worker.extra)
    )

  if isinstance(workers, Worker):
    return jax.vmap(one)(workers, mode)
  return tuple(one(worker, mode[i]) for i, worker in enumerate(workers))
