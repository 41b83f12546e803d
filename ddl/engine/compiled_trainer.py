"""The trainer of a collective algorithm: it trains by a sequence of calls of compiled programs."""

import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ddl.api import Algorithm, Model, Tree
from ddl.contract import of_collective, of_model
from ddl.engine import background_sends, traffic
from ddl.engine.calls import Call, Kind, plan_parts
from ddl.engine.consensus import Consensus, agree, unstacked
from ddl.engine.device_functions import Carry, DeviceFunctions
from ddl.engine.execution import ExecutionConfig, compiled, describe_layout, layout_of, options
from ddl.engine.injected import RunKey, Values
from ddl.engine.keys import algorithm_key, worker_keys
from ddl.engine.placement import Placement, shardings
from ddl.engine.replication import axes, find_replication, pack, unpack
from ddl.engine.rounds import Rounds
from ddl.engine.trainer import Feed, SingleRunTrainer
from ddl.engine.workers import Workers, placed
from ddl.schedule import Due, Schedule, check_in_flight


class CompiledTrainer(SingleRunTrainer):
  """Trainer of a collective algorithm for one model and one mapping of workers to devices.

  Implements `ddl.engine.trainer.Trainer`, also for batches of runs. Each kind of call is compiled at its first use.
  """

  portable = True

  def __init__(self, algorithm: Algorithm, model: Model, workers: Workers, execution: ExecutionConfig):
    """Determine the replication of each leaf and the traffic of each exchange.

    Raises:
      ValueError: if the period, delay or offset of an exchange is invalid, an exchange can have too many messages in
        flight, or the sharding does not fit the model.
    """
    algorithm, model = of_collective(algorithm), of_model(model)
    self.schedule = Schedule(algorithm.exchanges)
    self.placement = Placement(model, workers, execution.sharding)
    self.algorithm, self.model, self.workers, self.execution = algorithm, self.placement.model, workers, execution
    params, extra = jax.eval_shape(model.init, jax.random.key(0))
    self.traffic = traffic.of(algorithm, params, workers.count)
    self.replication, self._messages = find_replication(algorithm, workers, params)
    for clock, message in zip(self.schedule.clocks, self._messages, strict=True):
      check_in_flight(clock, message)
    independent = not self.traffic.local_uses_group
    self.functions = DeviceFunctions(algorithm, self.model, workers, execution, self.replication, independent)
    start = workers.lift(self._start_of, (False, False, False, False), True)
    carry = jax.eval_shape(start, params, extra, jax.random.key_data(jax.random.key(0)), None)
    self._carry: Carry = self.placement.carry(carry)
    split, everywhere, in_place = workers.split(), workers.everywhere, shardings(self.placement.params)
    copies = self.replication
    queues = tuple(
      (per_worker,) * len(slots) for per_worker, slots in zip(copies.messages, self._carry.messages, strict=True)
    )
    self.per_worker = Carry(copies.params, copies.state, jax.tree.map(lambda _: True, extra), queues)
    self.rounds = Rounds(self.functions, self.schedule.clocks, execution, self.replication, shardings(self._carry))
    in_background = background_sends.is_needed(algorithm, workers, independent)
    self._background = background_sends.BackgroundCalls(self.rounds, algorithm, params) if in_background else None
    self.fed = workers.local
    self.layout = layout_of(workers, execution)
    if workers.members > 1:
      self.layout |= {"members": workers.members, "sharding": self.placement.sharding}
    self._compile_seconds = 0.0
    self._calls: dict[Any, Any] = {}
    self._init = jax.jit(
      lambda key: self.model.init(jax.random.wrap_key_data(key)), out_shardings=(in_place, everywhere)
    )
    self._start = jax.jit(start, out_shardings=shardings(self._carry))
    consensus = Consensus(in_place, everywhere, everywhere)  # pyright: ignore[reportArgumentType]
    self._consensus = jax.jit(workers.lift(self._consensus_of, True, False), out_shardings=consensus)
    of_batch = workers.lift(jax.vmap(self._consensus_of, 1), True, False)
    self._consensuses = jax.jit(lambda carry: unstacked(of_batch(carry)), out_shardings=everywhere)
    self._join = jax.jit(lambda *x: jax.tree.map(lambda *y: jnp.stack(y, 1), *x), out_shardings=split)
    self._part = jax.jit(lambda x, run: jax.tree.map(lambda y: y[:, run], x), out_shardings=split)

  @property
  def compile_seconds(self) -> float:
    """Return the seconds spent compiling so far."""
    return self._compile_seconds + (self._background.compile_seconds if self._background else 0.0)

  @property
  def carry(self) -> Carry:
    """Return the shapes and shardings of the carry."""
    return self._carry

  def start(self, key: Any) -> Carry:
    """Return the initial carry for a random key or a `RunKey`. Raises ValueError if it does not fit into memory."""
    self.workers.check_memory(self._carry, self.placement.params)
    key, values = key if isinstance(key, RunKey) else RunKey(key, None)
    values = values and {name: np.asarray(value, jnp.result_type(float)) for name, value in values.items()}
    return self._start(*self._init(data := self._key(key)), data, self.workers.replicate(values))

  def start_from(self, params: Tree, extra: Tree, key: jax.Array) -> Carry:
    """Return the initial carry for a model given as host arrays. key: a random key."""
    return self._start(*self.workers.replicate((params, extra)), self._key(key), None)

  def _key(self, key: jax.Array) -> jax.Array:
    return self.workers.replicate(jax.random.key_data(key))

  def join(self, carries: Sequence[Carry]) -> Carry:
    """Combine carries of runs into the carry of a batch, [workers, runs, ...]; return a single one unchanged."""
    return carries[0] if len(carries) == 1 else self._join(*carries)

  def part(self, carry: Carry, run: int) -> Carry:
    """Return the carry of one run of a batch."""
    return self._part(carry, run) if self._is_batch(carry) else carry

  def _is_batch(self, carry: Carry) -> bool:
    return jax.tree.leaves(carry.params)[0].ndim > jax.tree.leaves(self._carry.params)[0].ndim

  def saved(self, carry: Carry) -> Carry:
    """Return the carry in the form of a checkpoint, with one copy of each leaf on which all workers agree.

    Any devices can restore it.
    """
    return jax.tree.map(lambda per_worker, x: x if per_worker else self.placement.one_copy(x), self.per_worker, carry)

  def saved_shapes(self, key: jax.Array, step: int) -> Carry:
    """Return the shapes, types and shardings of the carry in a checkpoint."""
    del step
    saved = self.saved(self.start(key))
    return placed(saved, shardings(saved))

  def restored(self, saved: Carry, step: int = 0) -> Carry:
    """Convert the carry in a checkpoint to a carry of this trainer."""
    del step
    return jax.tree.map(lambda per_worker, x: x if per_worker else self.placement.copies(x), self.per_worker, saved)

  def consensus(self, carry: Carry) -> Consensus:
    """Return the model to evaluate and the workers' distance from their mean; the carry stays valid."""
    return self._consensus(carry._replace(messages=()))

  def consensuses(self, carry: Carry) -> list[Consensus]:
    """Return the consensus of each run of a batch."""
    return self._consensuses(carry._replace(messages=())) if self._is_batch(carry) else [self.consensus(carry)]

  def plan(self, first: int, last: int, every: int) -> list[Call]:
    """Return the calls that run steps first..last-1, with a boundary at each multiple of `every`."""
    return self.plan_parts([(first, last)], every)

  def plan_parts(self, parts: Sequence[tuple[int, int]], every: int) -> list[Call]:
    """Return the calls of several parts of a run; see `ddl.engine.calls.plan_parts`."""
    longest = self.execution.steps_per_call
    return plan_parts(self.schedule, parts, every, longest, longest if self.execution.steps == "scan" else 1)

  def run(
    self, carry: Carry, calls: list[Call], feed: Feed, key: jax.Array, ids: Sequence[int] = ()
  ) -> Iterator[tuple[Call, Carry, jax.Array]]:
    """Run the calls and yield (call, carry after it, losses on the device).

    A yielded carry may be donated to the next call. Each iteration prepares the input of a call while the previous
    call runs, and then dispatches the new call. A thread for the inputs would slow down training on a CPU by a tenth.
    At most two calls run at a time, because the collectives of more can deadlock on XLA:CPU.

    For several runs at once, the carry is that of `join`, batches are [local workers, runs, steps, batch, ...], and
    there is one key per run. One dispatch serves all runs; each has the same result as when run separately, up to
    rounding.

    ids: worker IDs, from which the keys are derived; by default the positions in the mesh.
    """
    batched = key.ndim > 0
    local = self.workers.local
    keys = self.workers.put(np.asarray(worker_keys(key, [ids[i] for i in local] if ids else local)))
    before_last = last = None
    for call in calls:
      batches = self.workers.put(_padded(feed(call.first, call.steps), call, 2 if batched else 1), self.placement.batch)
      step, clock = self.workers.replicate((np.int32(call.first), _clock(call)))
      jax.block_until_ready(before_last)
      args = carry, batches, step, keys, clock
      carry, losses = self.compiled(call.kind, *args, batched=batched)(*args)
      before_last, last = last, losses
      yield call, carry, losses

  def losses(self, call: Call, losses: jax.Array) -> np.ndarray:
    """Wait for the call and return its losses on the host: [steps], or [runs, steps]."""
    return np.asarray(losses.addressable_data(0))[..., : call.steps]

  def nbytes(self, call: Call) -> float:
    """Return a lower bound on the bytes that a worker sends in a call."""
    return self.traffic.nbytes(call.due)

  def describe(self) -> str:
    """Describe workers, devices and execution in one line."""
    w, note = self.workers, self.placement.rules.note
    members = f" of {w.members} members ({self.placement.sharding}{note and ': '}{note})" if w.members > 1 else ""
    overlap = "on" if self.execution.overlap else "off"
    copies = "one model per worker"
    if not any(jax.tree.leaves(self.replication.params)):
      copies = f"one model per {'device' if w.members == 1 else 'row of members'}, as all workers have equal models"
    return f"{describe_layout(w, self.execution, members)}, overlap {overlap}; {copies}"

  def compiled(self, kind: Kind, *args: Any, batched: bool = False) -> Callable[..., tuple[Carry, jax.Array]]:
    """Return the executable for calls of this kind, compiled at first use. args: its arguments, as for `lowered`."""
    if self._background and kind.unit and not batched:
      return self._background.make_call(kind)
    avals = jax.tree.map(lambda x: (x.shape, x.dtype), args)
    key = (kind, batched, jax.tree.structure(args), *jax.tree.leaves(avals))
    if key not in self._calls:
      began = time.perf_counter()
      self._calls[key] = compiled(self.lowered(kind, *args, batched=batched), options(self.workers.device))
      self._compile_seconds += time.perf_counter() - began
    return self._calls[key]

  def lowered(self, kind: Kind, *args: Any, batched: bool = False) -> jax.stages.Lowered:
    """Lower the function that runs calls of this kind. args: its arguments, as arrays or shapes with shardings."""
    with warnings.catch_warnings():
      # A message slot that is only read or only written leaves a donated buffer unused.
      warnings.filterwarnings("ignore", message="Some donated buffers were not usable")
      return self.rounds.make_call(kind, batched).lower(*args)

  def shapes(self, call: Call, batch: Tree) -> tuple[Any, ...]:
    """Return the arguments of a call as shapes with shardings. batch: shapes [batch, ...] of one worker and step."""
    steps, everywhere = call.kind.longest or call.steps, self.workers.everywhere
    batches = jax.tree.map(lambda x: jax.ShapeDtypeStruct((self.workers.count, steps, *x.shape), x.dtype), batch)
    keys = jax.eval_shape(lambda: worker_keys(jax.random.key(0), range(self.workers.count)))
    step, clock = placed((jax.ShapeDtypeStruct((), np.int32), jax.eval_shape(lambda: _clock(call))), everywhere)
    batches, keys = placed(batches, self.workers.split(self.placement.batch)), placed(keys, self.workers.split())
    return self._carry, batches, step, keys, clock

  def _start_of(self, params: Tree, extra: Tree, key: jax.Array, values: Values | None) -> Carry:
    """Return a device's initial carry from one model, with one copy of each leaf on which all workers agree.

    values: hyperparameters of an algorithm from `inject`; None: the values that it was built with.
    """
    virtual, copies = self.workers.virtual, self.replication

    def several(tree: Tree, per_worker: Tree) -> Tree:
      return jax.tree.map(
        lambda per_worker, x: jnp.broadcast_to(x, (virtual if per_worker else 1, *x.shape)), per_worker, tree
      )

    key = algorithm_key(jax.random.wrap_key_data(key))
    run_key: Any = key if values is None else RunKey(key, values)
    init = self.functions.vmap_workers(
      lambda params: self.algorithm.init(self.workers.group, params, run_key), None, axes(copies.state)
    )
    empty = tuple(
      (several(jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes), per_worker),) * clock.slots
      for shapes, per_worker, clock in zip(self._messages, copies.messages, self.schedule.clocks, strict=True)
    )
    all_workers = jax.tree.map(lambda _: True, extra)
    return Carry(several(params, copies.params), pack(init(params), copies.state), several(extra, all_workers), empty)

  def _consensus_of(self, carry: Carry) -> Consensus:
    everyone, (of_params, of_state, _) = self.workers.group, self.replication

    def one(params: Tree, state: Tree, extra: Tree) -> Consensus:
      return Consensus(self.algorithm.evaluate(everyone, state, params), *agree(everyone, params, extra))

    params, state = unpack(carry.params, of_params), unpack(carry.state, of_state)
    tested = self.functions.vmap_workers(one, (axes(of_params), axes(of_state), 0), 0)(params, state, carry.extra)
    return jax.tree.map(lambda x: x[0], tested)


def _padded(batches: dict[str, np.ndarray], call: Call, axis: int) -> dict[str, np.ndarray]:
  """Pad the step axis to the number of steps of the executable."""
  if call.kind.unit or call.steps == call.kind.longest:
    return batches
  rest = call.kind.longest - call.steps
  return {k: np.concatenate([x, np.repeat(x.take([-1], axis), rest, axis)], axis) for k, x in batches.items()}


def _clock(call: Call) -> Any:
  """Return the argument `clock` of the function that `Rounds.make_call` returns."""
  if call.kind.unit:
    return ()
  due = np.zeros((3, call.kind.longest, len(call.in_flight)), bool)
  for k, now in enumerate(call.due):
    for kind, ids in enumerate(now):
      due[kind, k, list(ids)] = True
  return np.int32(call.steps), np.array(call.in_flight, np.int32), dict(zip(Due._fields, due, strict=True))
