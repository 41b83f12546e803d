"""A run as a sequence of compiled calls: set-up, input, and the loop that every experiment shares."""

import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ddl import collectives
from ddl.api import Algorithm, Model, Tree
from ddl.runtime import rounds, traffic
from ddl.runtime.plan import Call, plan
from ddl.runtime.prefetch import prefetch
from ddl.runtime.workers import AXIS, Workers
from ddl.schedule import in_flight

Feed = Callable[[int, int], dict[str, np.ndarray]]  # (first step, steps) -> [local workers, steps, batch, ...]


class Consensus(NamedTuple):
  """What is tested, equal on all devices."""

  params: Tree  # `evaluate` of the algorithm
  extra: Tree  # the workers' mean
  distance: jax.Array  # []: root mean square over the workers of |x_i - mean x|


class Trainer:
  """One algorithm on one model and layout; compiles each kind of call once, for any number of runs."""

  def __init__(self, algorithm: Algorithm, model: Model, workers: Workers, how: rounds.How):
    """`algorithm` made with `axis_name=AXIS`.

    Raises:
      ValueError: if the model's non-trained state changes its shape, or the delay does not fit the period.
    """
    self.algorithm, self.model, self.workers, self.how = algorithm, model, workers, how
    params, _ = jax.eval_shape(model.init, jax.random.key(0))
    axes = list(zip(AXIS, (workers.devices, workers.virtual), strict=True))
    state = jax.make_jaxpr(algorithm.init, axis_env=axes, return_shape=True)(params)[1]
    self.copies = rounds.find_copies(algorithm, workers, state, params)
    self.free = not rounds.communicates(algorithm, state, params)
    shapes = jax.make_jaxpr(algorithm.init, axis_env=[(AXIS[0], workers.count), (AXIS[1], 1)], return_shape=True)
    self.meter = traffic.meter(algorithm, shapes(params)[1], params, workers.count)
    self.compile_seconds = 0.0
    self._calls: dict[Any, Any] = {}
    self._consensus = jax.jit(workers.lift(self._consensus_of, True, False))
    self._start = jax.jit(workers.lift(self._start_of, (False, False), True))

  def start(self, key: jax.Array) -> rounds.Carry:
    """The carry before the first step: every worker with the model that `key` gives."""
    params, extra = jax.jit(self.model.init)(key)
    return self._start(self.workers.replicate(params), self.workers.replicate(extra))

  def shapes(self, carry: rounds.Carry, step: int) -> rounds.Carry:
    """Shapes and shardings of the carry before `step`, given one without a message: what a checkpoint restores."""
    message = ()
    if in_flight(self.algorithm, step):
      lifted = self.workers.lift(jax.vmap(self.algorithm.launch, axis_name=AXIS[1]), (True, True), True)
      message = jax.eval_shape(lifted, carry.state, carry.params)
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
    """Makes the calls, one more each time that the iterator is advanced; the next ones' input is prepared meanwhile.

    Yields (call, carry after it, losses [steps] on the device). A yielded carry is gone once the next call is made.
    """
    key = self.workers.replicate(jax.random.key_data(key))
    for call, batches in prefetch(calls, lambda c: self.workers.put(feed(c.first, c.steps))):
      step = self.workers.replicate(np.int32(call.first))
      carry, losses = self.compiled(call, carry, batches, step, key)(carry, batches, step, key)
      yield call, carry, losses

  def compiled(self, call: Call, *args: Any) -> Callable[..., tuple[rounds.Carry, jax.Array]]:
    """The executable of a call, compiled when first asked for."""
    avals = jax.tree.map(lambda x: (x.shape, x.dtype), args)
    kind = (call.unit, call.repeat, jax.tree.structure(args), *jax.tree.leaves(avals))
    if kind not in self._calls:
      began = time.perf_counter()
      fn = rounds.make_call(
        self.algorithm, self.model, self.workers, self.how, self.copies, self.free, call.unit, call.repeat
      )
      self._calls[kind] = fn.lower(*args).compile()
      self.compile_seconds += time.perf_counter() - began
    return self._calls[kind]

  def _start_of(self, params: Tree, extra: Tree) -> rounds.Carry:
    virtual = self.workers.virtual

    def everyone(tree: Tree, per_worker: bool) -> Tree:
      return jax.tree.map(lambda x: jnp.broadcast_to(x[None], (virtual if per_worker else 1, *x.shape)), tree)

    init = jax.vmap(lambda _: self.algorithm.init(params), axis_name=AXIS[1])
    state = init(jnp.arange(virtual))
    if not self.copies.state:
      state = jax.tree.map(lambda x: x[:1], state)
    return rounds.Carry(everyone(params, self.copies.params), state, everyone(extra, True), ())

  def _consensus_of(self, carry: rounds.Carry) -> Consensus:
    def one(params: Tree, state: Tree, extra: Tree) -> Consensus:
      gaps = jax.tree.map(lambda x, m: jnp.sum(jnp.square(x - m)), params, collectives.pmean(params, AXIS))
      square = collectives.pmean(sum(jax.tree.leaves(gaps)), AXIS)
      return Consensus(self.algorithm.evaluate(state, params), _mean(extra), jnp.sqrt(square))

    def everyone(tree: Tree, per_worker: bool) -> Tree:
      if per_worker:
        return tree
      return jax.tree.map(lambda x: jnp.broadcast_to(x, (self.workers.virtual, *x.shape[1:])), tree)

    params, state = everyone(carry.params, self.copies.params), everyone(carry.state, self.copies.state)
    tested = jax.vmap(one, axis_name=AXIS[1])(params, state, carry.extra)
    return jax.tree.map(lambda x: x[0], tested)


def _mean(extra: Tree) -> Tree:
  """The workers' mean of floating-point leaves; of others (counters) the largest."""

  def leaf(x: jax.Array) -> jax.Array:
    return (collectives.pmean if jnp.issubdtype(x.dtype, jnp.floating) else collectives.pmax)(x, AXIS)

  return jax.tree.map(leaf, extra)
