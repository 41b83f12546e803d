"""A run as a sequence of compiled calls: set-up, input, and the loop that every experiment shares."""

import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ddl import collectives
from ddl.api import Algorithm, Model, Tree
from ddl.runtime import rounds, traffic
from ddl.runtime.calls import Call, plan
from ddl.runtime.replication import axes, find_replication, pack, unpack
from ddl.runtime.workers import AXIS, Workers
from ddl.schedule import due, in_flight

Feed = Callable[[int, int], dict[str, np.ndarray]]  # (first step, steps) -> [local workers, steps, batch, ...]


class Consensus(NamedTuple):
  """What is tested, equal on all devices."""

  params: Tree  # `evaluate` of the algorithm
  extra: Tree  # the workers' mean
  distance: jax.Array  # []: root mean square over the workers of |x_i - mean x|


class Trainer:
  """One algorithm on one model and layout; compiles each kind of call once, for any number of runs."""

  def __init__(self, algorithm: Algorithm, model: Model, workers: Workers, how: rounds.ExecutionConfig):
    """`algorithm` made with `axis_name=AXIS`.

    Raises:
      ValueError: if the delay does not fit the period.
    """
    due(algorithm, 0)  # complains now rather than at the first step
    self.algorithm, self.model, self.workers, self.how = algorithm, model, workers, how
    params, _ = jax.eval_shape(model.init, jax.random.key(0))
    axis_env = [(AXIS[0], workers.count), (AXIS[1], 1)]
    state = jax.make_jaxpr(algorithm.init, axis_env=axis_env, return_shape=True)(params)[1]
    self.copies = find_replication(algorithm, workers, params)
    self.free = not rounds.communicates(algorithm, state, params)
    self.meter = traffic.meter(algorithm, state, params, workers.count)
    self.compile_seconds = 0.0
    self._calls: dict[Any, Any] = {}
    self._consensus = jax.jit(workers.lift(self._consensus_of, True, False))
    self._start = jax.jit(workers.lift(self._start_of, (False, False), True))

  def start(self, key: jax.Array) -> rounds.Carry:
    """The carry before the first step: every worker with the model that `key` gives. ValueError if it does not fit."""
    shapes = jax.eval_shape(self.model.init, key)
    self.workers.check_memory(jax.eval_shape(self._start, *shapes), shapes[0])
    params, extra = jax.jit(self.model.init)(key)
    return self._start(self.workers.replicate(params), self.workers.replicate(extra))

  def shapes(self, carry: rounds.Carry, step: int) -> rounds.Carry:
    """Shapes and shardings of the carry before `step`, given one without a message: what a checkpoint restores."""
    message = ()
    if in_flight(self.algorithm, step):
      message = jax.eval_shape(self.workers.lift(self._message_of, (True, True), True), carry.params, carry.state)
    return jax.tree.map(
      lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=self.workers.split), carry._replace(message=message)
    )

  def consensus(self, carry: rounds.Carry) -> Consensus:
    """The model to test, and how far the workers are from their mean. Leaves the carry alone."""
    return self._consensus(carry._replace(message=()))

  def plan(self, first: int, last: int, every: int) -> list[Call]:
    """The calls of a run from step `first` to `last` that pauses at the multiples of `every`."""
    return plan(self.algorithm, first, last, every, self.how.steps_per_call)

  def run(
    self, carry: rounds.Carry, calls: list[Call], feed: Feed, key: jax.Array
  ) -> Iterator[tuple[Call, rounds.Carry, jax.Array]]:
    """Makes the calls, one more each time that the iterator is advanced.

    A call is only dispatched here, so that the next one's input is prepared while it runs; a thread for it costs a CPU
    a tenth. At most two are under way: with many, XLA:CPU's collectives can wait for each other for ever.

    Yields (call, carry after it, losses [steps] on the device). A yielded carry is gone once the next call is made.
    """
    key = self.workers.replicate(jax.random.key_data(key))
    before_last = last = None
    for call in calls:
      batches, step = self.workers.put(feed(call.first, call.steps)), self.workers.replicate(np.int32(call.first))
      jax.block_until_ready(before_last)
      carry, losses = self.compiled(call, carry, batches, step, key)(carry, batches, step, key)
      before_last, last = last, losses
      yield call, carry, losses

  def losses(self, call: Call, losses: jax.Array) -> np.ndarray:
    """A call's losses on the host: [steps]. Waits for the call."""
    del call
    return np.asarray(losses)

  def nbytes(self, call: Call) -> float:
    """Bytes that a worker sends in a call."""
    return self.meter.of(call.unit).nbytes * call.repeat

  def compiled(self, call: Call, *args: Any) -> Callable[..., tuple[rounds.Carry, jax.Array]]:
    """The executable of a call, compiled when first asked for."""
    avals = jax.tree.map(lambda x: (x.shape, x.dtype), args)
    kind = (call.unit, call.repeat, jax.tree.structure(args), *jax.tree.leaves(avals))
    if kind not in self._calls:
      began = time.perf_counter()
      fn = rounds.make_call(
        self.algorithm, self.model, self.workers, self.how, self.copies, self.free, call.unit, call.repeat
      )
      with warnings.catch_warnings():
        # A call that only merges takes a message and gives none back, so that this buffer serves for nothing.
        warnings.filterwarnings("ignore", message="Some donated buffers were not usable")
        self._calls[kind] = fn.lower(*args).compile()
      self.compile_seconds += time.perf_counter() - began
    return self._calls[kind]

  def _start_of(self, params: Tree, extra: Tree) -> rounds.Carry:
    def everyone(tree: Tree, copies: Tree) -> Tree:
      return jax.tree.map(lambda own, x: jnp.broadcast_to(x, (self._virtual if own else 1, *x.shape)), copies, tree)

    init = jax.vmap(self.algorithm.init, None, axes(self.copies.state), axis_name=AXIS[1], axis_size=self._virtual)
    state = pack(init(params), self.copies.state)
    return rounds.Carry(
      everyone(params, self.copies.params), state, everyone(extra, jax.tree.map(lambda _: True, extra)), ()
    )

  def _message_of(self, params: Tree, state: Tree) -> Tree:
    in_params, in_state, out = (axes(c) for c in self.copies)
    assert self.algorithm.launch
    launch = jax.vmap(self.algorithm.launch, (in_state, in_params), out, axis_name=AXIS[1], axis_size=self._virtual)
    message = launch(unpack(state, self.copies.state), unpack(params, self.copies.params))
    return pack(message, self.copies.message)

  def _consensus_of(self, carry: rounds.Carry) -> Consensus:
    def one(params: Tree, state: Tree, extra: Tree) -> Consensus:
      gaps = jax.tree.map(lambda x, m: jnp.sum(jnp.square(x - m)), params, collectives.pmean(params, AXIS))
      square = collectives.pmean(sum(jax.tree.leaves(gaps)), AXIS)
      return Consensus(self.algorithm.evaluate(state, params), mean_extra(extra), jnp.sqrt(square))

    in_axes = (axes(self.copies.params), axes(self.copies.state), 0)
    params, state = unpack(carry.params, self.copies.params), unpack(carry.state, self.copies.state)
    tested = jax.vmap(one, in_axes, 0, axis_name=AXIS[1], axis_size=self._virtual)(params, state, carry.extra)
    return jax.tree.map(lambda x: x[0], tested)

  @property
  def _virtual(self) -> int:
    return self.workers.virtual


def mean_extra(extra: Tree) -> Tree:
  """The workers' mean of floating-point leaves; of others (counters) the largest."""

  def leaf(x: jax.Array) -> jax.Array:
    return (collectives.pmean if jnp.issubdtype(x.dtype, jnp.floating) else collectives.pmax)(x, AXIS)

  return jax.tree.map(leaf, extra)
