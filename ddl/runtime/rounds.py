"""A compiled call: some steps of every worker, with the algorithm's exchanges between them.

XLA:CPU has no fast path for convolution gradients inside a loop or under vmap over per-worker kernels, and a worker
that makes several steps in a row keeps its parameters in the cache. So gradients can be unrolled over a device's
workers instead of vmapped, steps can be unrolled instead of scanned, and where a local step does not communicate, a
worker makes all its steps up to the next exchange before the next worker does.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from ddl.api import Algorithm, Model, Tree
from ddl.group import Group
from ddl.runtime.calls import Kind
from ddl.runtime.execution import ExecutionConfig
from ddl.runtime.local_step import gradient_of, make_local_step, over_steps, over_workers
from ddl.runtime.replication import Replication, axes, pack, unpack
from ddl.runtime.workers import AXIS, Workers
from ddl.schedule import Due, Schedule


class Carry(NamedTuple):
  """The state between two calls. [copies, ...]: one copy per worker, or per device where all workers agree."""

  params: Tree  # [copies, ...]
  state: Tree  # [copies, ...]
  extra: Tree  # [workers, ...]: the model's non-trained state
  messages: tuple[tuple[Tree, ...], ...]  # [copies, ...] of each exchange, those under way first


class Rounds:
  """The compiled calls of one algorithm on one model and layout."""

  def __init__(
    self,
    algorithm: Algorithm,
    model: Model,
    workers: Workers,
    execution: ExecutionConfig,
    replication: Replication,
    independent: bool,
  ):
    """independent: whether a local step does not use the group."""
    self.workers, self.execution, self.replication = workers, execution, replication
    self.clocks = Schedule(algorithm.exchanges).clocks
    in_params, in_state, in_messages = (axes(tree) for tree in replication)
    group = Group(AXIS)
    update = partial(algorithm.local, group)
    gradient, step = gradient_of(model), make_local_step(model, update)
    local = self.vmap_workers(update, (0, in_state, in_params), (in_params, in_state))

    def steps_without_collectives(params: Tree, state: Tree, extra: Tree, batches: Tree, keys: jax.Array) -> Any:
      """Make one worker's steps up to the next exchange. batches: [steps, batch, ...]."""
      return over_steps(step, (params, state, extra), (batches, keys), execution.steps)

    def steps_with_collectives(params: Tree, state: Tree, extra: Tree, batches: Tree, keys: jax.Array) -> Any:
      """Make all workers' steps together, as local steps communicate. batches: [workers, steps, batch, ...]."""

      def one(carry: Any, batch_and_key: Any) -> Any:
        params, state, extra = carry
        each = over_workers(gradient, execution.gradients, (in_params, 0, 0, 0), 0)
        (loss, extra), grads = each(params, extra, *batch_and_key)
        params, state = local(grads, state, params)
        return (params, state, extra), loss

      steps_first = jax.tree.map(lambda x: jnp.swapaxes(x, 0, 1), (batches, keys))
      carry, losses = over_steps(one, (params, state, extra), steps_first, execution.steps)
      return carry, losses.T

    carried = (in_params, in_state, 0)
    of_all = over_workers(steps_without_collectives, execution.gradients, (*carried, 0, 0), (carried, 0))
    self._steps = of_all if independent else steps_with_collectives
    self._launch = [
      self.vmap_workers(partial(exchange.launch, group), (in_state, in_params), (in_message, in_state))
      for exchange, in_message in zip(algorithm.exchanges, in_messages, strict=True)
    ]
    self._merge = [
      self.vmap_workers(partial(exchange.merge, group), (in_message, in_state, in_params), (in_params, in_state))
      for exchange, in_message in zip(algorithm.exchanges, in_messages, strict=True)
    ]
    self._mean = self.vmap_workers(group.mean, (0,), None)

  def vmap_workers(self, fn: Callable[..., Any], in_axes: Any, out_axes: Any) -> Callable[..., Any]:
    """Lift `fn` of one worker to all workers of a device, bound to both axes."""
    return jax.vmap(fn, in_axes, out_axes, axis_name=AXIS[1], axis_size=self.workers.virtual)

  def make_call(self, kind: Kind) -> Callable[..., tuple[Carry, jax.Array]]:
    """Return the jitted function of a kind of calls.

    call(carry, batches, step, key, clock) -> (carry, losses). batches: [workers, steps, batch, ...]; step: [] the first
    step's number; key: the experiment's, as key data; losses: [steps], means over the workers. clock: for a kind
    without a unit (steps to make [], messages under way [exchanges], and [steps, exchanges] bool by the fields of
    `Due`), else (). The carry is donated.
    """
    lifted = self.workers.lift(partial(self._on_device, kind), (True, True, False, False, False), (True, False))
    return jax.jit(lifted, donate_argnums=0)

  def _on_device(self, kind: Kind, carry: Carry, batches: Tree, step: jax.Array, key: jax.Array, clock: Any) -> Any:
    packed = (self.replication.params, self.replication.state)
    (params, state), messages = unpack((carry.params, carry.state), packed), self._slots(unpack, carry.messages)
    carry = Carry(params, state, carry.extra, messages)
    count, virtual = jax.tree.leaves(batches)[0].shape[1], self.workers.virtual
    ranks = lax.axis_index(AXIS[0]) * virtual + jnp.arange(virtual, dtype=jnp.int32)
    numbers = step + jnp.arange(count, dtype=step.dtype)
    key = jax.random.wrap_key_data(key)
    keys = jax.vmap(lambda r: jax.vmap(lambda t: jax.random.fold_in(jax.random.fold_in(key, r), t))(numbers))(ranks)
    run = self._static_schedule if kind.unit else self._dynamic_schedule
    carry, losses = run(kind, carry, (batches, keys), clock)
    params, state = pack((carry.params, carry.state), packed)
    return Carry(params, state, carry.extra, self._slots(pack, carry.messages)), self._mean(losses)

  def _slots(self, fn: Callable[[Tree, Tree], Tree], messages: Any) -> Any:
    return tuple(
      tuple(fn(slot, copies) for slot in slots)
      for slots, copies in zip(messages, self.replication.messages, strict=True)
    )

  def _stretch(self, carry: Carry, batches: Tree, keys: jax.Array) -> tuple[Carry, jax.Array]:
    (params, state, extra), losses = self._steps(carry.params, carry.state, carry.extra, batches, keys)
    return Carry(params, state, extra, carry.messages), losses

  # ---- exchanges that are known at compile time

  def _static_schedule(self, kind: Kind, carry: Carry, batches_and_keys: Any, clock: Any) -> tuple[Carry, jax.Array]:
    del clock
    one = partial(self._unit, kind)
    if kind.repeat == 1:
      return one(carry, batches_and_keys)

    def units_first(x: jax.Array) -> jax.Array:
      return jnp.swapaxes(x.reshape(x.shape[0], kind.repeat, len(kind.unit), *x.shape[2:]), 0, 1)

    carry, losses = over_steps(one, carry, jax.tree.map(units_first, batches_and_keys), self.execution.steps)
    return carry, jnp.swapaxes(losses, 0, 1).reshape(self.workers.virtual, -1)

  def _unit(self, kind: Kind, carry: Carry, batches_and_keys: Any) -> tuple[Carry, jax.Array]:
    under_way = [list(slots[:n]) for slots, n in zip(carry.messages, kind.under_way, strict=True)]
    losses, first = [], 0
    for last, due in enumerate(kind.unit):
      for i in due.launch:
        message, state = self._launch[i](carry.state, carry.params)
        carry = carry._replace(state=state)
        if self.execution.overlap:  # the same boundary of fusion, so that both ways round alike
          message = lax.optimization_barrier(message)
        else:
          message, carry = lax.optimization_barrier((message, carry))
        under_way[i].append(message)
      after = kind.unit[last + 1] if last + 1 < len(kind.unit) else Due(launch=(0,))
      if due.merge or due.exchange or after.launch:  # make the steps since the last event
        part = jax.tree.map(lambda x, a=first, b=last + 1: x[:, a:b], batches_and_keys)
        carry, loss = self._stretch(carry, *part)
        losses.append(loss)
        first = last + 1
      for i in due.merge:
        params, state = self._merge[i](under_way[i].pop(0), carry.state, carry.params)
        carry = carry._replace(params=params, state=state)
      for i in due.exchange:
        carry, _ = self._exchange(i, carry, None)
    messages = tuple((*queue, *slots[len(queue) :]) for queue, slots in zip(under_way, carry.messages, strict=True))
    return carry._replace(messages=messages), jnp.concatenate(losses, axis=1)

  # ---- exchanges that are decided at run time, by conditions on values that are equal on all devices

  def _dynamic_schedule(self, kind: Kind, carry: Carry, batches_and_keys: Any, clock: Any) -> tuple[Carry, jax.Array]:
    steps, under_way, due = clock
    losses = jnp.zeros((self.workers.virtual, kind.longest), jnp.result_type(float))
    late = [i for i, clock in enumerate(self.clocks) if clock.delay]
    prompt = [i for i, clock in enumerate(self.clocks) if not clock.delay]

    def one(k: Any, state: tuple[Carry, jax.Array, jax.Array]) -> tuple[Carry, jax.Array, jax.Array]:
      carry, count, losses = state
      now = jax.tree.map(lambda x: x[k], due)
      room = [clock.capacity - clock.slots for clock in self.clocks]  # within a step there may be one more under way
      carry = carry._replace(
        messages=tuple(
          (*slots, *(self._empty(i, carry),) * n) for i, (slots, n) in enumerate(zip(carry.messages, room, strict=True))
        )
      )
      for i in late:
        carry, count = _when(now["launch"][i], partial(self._leave, i), carry, count)
      part = jax.tree.map(lambda x: lax.dynamic_slice_in_dim(x, k, 1, axis=1), batches_and_keys)
      carry, loss = self._stretch(carry, *part)
      for i in late:
        carry, count = _when(now["merge"][i], partial(self._arrive, i), carry, count)
      for i in prompt:
        carry, count = _when(now["exchange"][i], partial(self._exchange, i), carry, count)
      carry = carry._replace(
        messages=tuple(slots[: c.slots] for slots, c in zip(carry.messages, self.clocks, strict=True))
      )
      losses = lax.dynamic_update_slice_in_dim(losses, loss.astype(losses.dtype), k, axis=1)
      return carry, count, losses

    state = (carry, under_way, losses)
    carry, _, losses = one(0, state) if kind.longest == 1 else lax.fori_loop(0, steps, one, state)
    return carry, losses

  def _empty(self, i: int, carry: Carry) -> Tree:
    shapes, _ = jax.eval_shape(self._launch[i], carry.state, carry.params)
    return jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)

  def _leave(self, i: int, carry: Carry, count: jax.Array) -> tuple[Carry, jax.Array]:
    message, state = self._launch[i](carry.state, carry.params)
    slots = tuple(
      jax.tree.map(lambda new, old, k=k: jnp.where(count[i] == k, new, old), message, slot)
      for k, slot in enumerate(carry.messages[i])
    )
    return self._replaced(carry._replace(state=state), i, slots), count.at[i].add(1)

  def _arrive(self, i: int, carry: Carry, count: jax.Array) -> tuple[Carry, jax.Array]:
    message, *rest = carry.messages[i]
    params, state = self._merge[i](message, carry.state, carry.params)
    carry = carry._replace(params=params, state=state)
    return self._replaced(carry, i, (*rest, message)), count.at[i].add(-1)

  def _exchange(self, i: int, carry: Carry, count: Any) -> tuple[Carry, Any]:
    message, state = self._launch[i](carry.state, carry.params)
    params, state = self._merge[i](message, state, carry.params)
    return carry._replace(params=params, state=state), count

  def _replaced(self, carry: Carry, i: int, slots: tuple[Tree, ...]) -> Carry:
    return carry._replace(messages=(*carry.messages[:i], slots, *carry.messages[i + 1 :]))


def _when(flag: Any, fn: Callable[..., Any], *args: Any) -> Any:
  return lax.cond(flag, fn, lambda *args: args, *args)
