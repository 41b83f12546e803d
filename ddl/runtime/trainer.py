"""A run as a sequence of compiled calls: set-up, input, and the loop that every experiment shares."""

import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ddl import group
from ddl.api import Algorithm, Model, Tree
from ddl.runtime import traffic
from ddl.runtime.calls import Call, Kind, plan
from ddl.runtime.consensus import Consensus, agree
from ddl.runtime.execution import ExecutionConfig
from ddl.runtime.replication import axes, find_replication, pack, unpack
from ddl.runtime.rounds import Carry, Rounds
from ddl.runtime.workers import AXIS, Workers
from ddl.schedule import Due, Schedule

Feed = Callable[[int, int], dict[str, np.ndarray]]  # (first step, steps) -> [local workers, steps, batch, ...]


class Trainer:
  """One algorithm on one model and layout; compiles each kind of call once, for any number of runs."""

  def __init__(self, algorithm: Algorithm, model: Model, workers: Workers, execution: ExecutionConfig):
    """Raises ValueError if a clock of the algorithm does not fit."""
    self.schedule = Schedule(algorithm.exchanges)
    self.algorithm, self.model, self.workers, self.execution = algorithm, model, workers, execution
    params, _ = jax.eval_shape(model.init, jax.random.key(0))
    self.traffic = traffic.of(algorithm, params, workers.count)
    self.replication, self._messages = find_replication(algorithm, workers, params)
    self.rounds = Rounds(algorithm, model, workers, execution, self.replication, not self.traffic.local_asks)
    self.compile_seconds = 0.0
    self._calls: dict[Any, Any] = {}
    self._consensus = jax.jit(workers.lift(self._consensus_of, True, False))
    self._start = jax.jit(workers.lift(self._start_of, (False, False, False), True))

  def start(self, key: jax.Array) -> Carry:
    """The carry before the first step: every worker with the model that `key` gives. ValueError if it does not fit."""
    shapes = jax.eval_shape(self.model.init, key)
    self.workers.check_memory(jax.eval_shape(self._start, *shapes, jax.random.key_data(key)), shapes[0])
    params, extra = jax.jit(self.model.init)(key)
    everywhere = self.workers.replicate
    return self._start(everywhere(params), everywhere(extra), everywhere(jax.random.key_data(key)))

  def shapes(self, carry: Carry) -> Carry:
    """Shapes and shardings of a carry like this one: what a checkpoint restores."""
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=self.workers.split), carry)

  def consensus(self, carry: Carry) -> Consensus:
    """The model to test, and how far the workers are from their mean. Leaves the carry alone."""
    return self._consensus(carry._replace(messages=()))

  def plan(self, first: int, last: int, every: int) -> list[Call]:
    """The calls of a run from step `first` to `last` that pauses at the multiples of `every`."""
    longest = self.execution.steps_per_call
    return plan(self.schedule, first, last, every, longest, longest if self.execution.steps == "scan" else 1)

  def run(self, carry: Carry, calls: list[Call], feed: Feed, key: jax.Array) -> Iterator[tuple[Call, Carry, jax.Array]]:
    """Makes the calls, one more each time that the iterator is advanced.

    A call is only dispatched here, so that the next one's input is prepared while it runs; a thread for it costs a CPU
    a tenth. At most two are under way: with many, XLA:CPU's collectives can wait for each other for ever.

    Yields (call, carry after it, losses on the device). A yielded carry is gone once the next call is made.
    """
    key = self.workers.replicate(jax.random.key_data(key))
    before_last = last = None
    for call in calls:
      batches = self.workers.put(_padded(feed(call.first, call.steps), call))
      step, clock = self.workers.replicate((np.int32(call.first), _clock(call)))
      jax.block_until_ready(before_last)
      carry, losses = self.compiled(call.kind, carry, batches, step, key, clock)(carry, batches, step, key, clock)
      before_last, last = last, losses
      yield call, carry, losses

  def losses(self, call: Call, losses: jax.Array) -> np.ndarray:
    """A call's losses on the host: [steps]. Waits for the call."""
    return np.asarray(losses.addressable_data(0))[: call.steps]

  def nbytes(self, call: Call) -> float:
    """Bytes that a worker sends in a call."""
    return self.traffic.nbytes(call.due)

  def compiled(self, kind: Kind, *args: Any) -> Callable[..., tuple[Carry, jax.Array]]:
    """The executable of a kind of calls, compiled when first asked for."""
    avals = jax.tree.map(lambda x: (x.shape, x.dtype), args)
    key = (kind, jax.tree.structure(args), *jax.tree.leaves(avals))
    if key not in self._calls:
      began = time.perf_counter()
      with warnings.catch_warnings():
        # A slot that is only read, or only written, leaves a donated buffer that serves for nothing.
        warnings.filterwarnings("ignore", message="Some donated buffers were not usable")
        self._calls[key] = self.rounds.make_call(kind).lower(*args).compile()
      self.compile_seconds += time.perf_counter() - began
    return self._calls[key]

  def _start_of(self, params: Tree, extra: Tree, key: jax.Array) -> Carry:
    """On one device, from one model. Of what all workers agree on there is one copy."""
    virtual, copies = self.workers.virtual, self.replication

    def several(tree: Tree, own: Tree) -> Tree:
      return jax.tree.map(lambda own, x: jnp.broadcast_to(x, (virtual if own else 1, *x.shape)), own, tree)

    key = jax.random.fold_in(jax.random.wrap_key_data(key), 1)
    init = self.rounds.everyone(
      lambda params: self.algorithm.init(group.Group(AXIS), params, key), None, axes(copies.state)
    )
    empty = tuple(
      (several(jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes), own),) * clock.slots
      for shapes, own, clock in zip(self._messages, copies.messages, self.schedule.clocks, strict=True)
    )
    everybody = jax.tree.map(lambda _: True, extra)
    return Carry(several(params, copies.params), pack(init(params), copies.state), several(extra, everybody), empty)

  def _consensus_of(self, carry: Carry) -> Consensus:
    everyone, (own_params, own_state, _) = group.Group(AXIS), self.replication

    def one(params: Tree, state: Tree, extra: Tree) -> Consensus:
      return Consensus(self.algorithm.evaluate(everyone, state, params), *agree(everyone, params, extra))

    params, state = unpack(carry.params, own_params), unpack(carry.state, own_state)
    tested = self.rounds.everyone(one, (axes(own_params), axes(own_state), 0), 0)(params, state, carry.extra)
    return jax.tree.map(lambda x: x[0], tested)


def _padded(batches: dict[str, np.ndarray], call: Call) -> dict[str, np.ndarray]:
  """[workers, steps, ...] -> the steps that the executable has room for."""
  if call.kind.unit or call.steps == call.kind.longest:
    return batches
  rest = call.kind.longest - call.steps
  return {k: np.concatenate([x, np.repeat(x[:, -1:], rest, axis=1)], axis=1) for k, x in batches.items()}


def _clock(call: Call) -> Any:
  """What a call without a unit is told at run time, see `Rounds.make_call`."""
  if call.kind.unit:
    return ()
  due = np.zeros((3, call.kind.longest, len(call.under_way)), bool)
  for k, now in enumerate(call.due):
    for kind, ids in enumerate(now):
      due[kind, k, list(ids)] = True
  return np.int32(call.steps), np.array(call.under_way, np.int32), dict(zip(Due._fields, due, strict=True))
