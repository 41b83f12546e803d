"""Compiled calls: one call runs consecutive steps of all workers, with the algorithm's exchanges between them.

The exchanges of a call are fixed at compile time, or decided at run time by conditions on values that are equal on all
devices. If a run would require too many compiled functions, its rarer calls share one function that decides exchanges
at run time.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from ddl.api import Tree
from ddl.engine.calls import Kind
from ddl.engine.device_functions import Carry, DeviceFunctions
from ddl.engine.execution import ExecutionConfig
from ddl.engine.keys import step_keys
from ddl.engine.local_step import over_steps
from ddl.engine.replication import Replication, pack, unpack
from ddl.schedule import Clock, Due


class ConditionalExchanges:
  """Calls whose exchanges are decided at run time, by an argument that lists those due at each step."""

  def __init__(self, functions: DeviceFunctions, clocks: list[Clock]):
    """Set the clocks of the algorithm's exchanges."""
    self.functions, self.clocks = functions, clocks
    self._delayed = [i for i, clock in enumerate(clocks) if clock.delay]
    self._prompt = [i for i, clock in enumerate(clocks) if not clock.delay]

  def run(self, longest: int, carry: Carry, inputs: Any, clock: Any) -> tuple[Carry, jax.Array]:
    """Run up to `longest` steps of a device's `virtual` workers; return (carry, losses [virtual, longest]).

    The losses are padded with zeros.

    Args:
      longest: maximum number of steps.
      carry: the state before the first step, with `Clock.slots` message slots for each exchange.
      inputs: batches [virtual, longest, batch, ...] and keys [virtual, longest].
      clock: (number of steps [], number of messages in flight [exchanges], due), where `due` has a bool array
        [longest, exchanges] for each field of `Due`.
    """
    steps, in_flight, due = clock
    losses = jnp.zeros((self.functions.workers.virtual, longest), jnp.result_type(float))

    def step(k: Any, state: tuple[Carry, jax.Array, jax.Array]) -> tuple[Carry, jax.Array, jax.Array]:
      carry, in_flight, losses = state
      now = jax.tree.map(lambda x: x[k], due)
      carry = self._with_room(carry)
      for i in self._delayed:
        carry, in_flight = _when(now["launch"][i], partial(self._launch, i), carry, in_flight)
      part = jax.tree.map(lambda x: lax.dynamic_slice_in_dim(x, k, 1, axis=1), inputs)
      carry, loss = self.functions.steps(carry, *part)
      for i in self._delayed:
        carry, in_flight = _when(now["merge"][i], partial(self._merge, i), carry, in_flight)
      for i in self._prompt:
        carry, in_flight = _when(now["exchange"][i], partial(self._exchange, i), carry, in_flight)
      carry = self._without_room(carry)
      losses = lax.dynamic_update_slice_in_dim(losses, loss.astype(losses.dtype), k, axis=1)
      return carry, in_flight, losses

    state = (carry, in_flight, losses)
    carry, _, losses = step(0, state) if longest == 1 else lax.fori_loop(0, steps, step, state)
    return carry, losses

  def _with_room(self, carry: Carry) -> Carry:
    """Add message slots: more messages may be in flight during a step than between two steps."""
    room = [clock.capacity - clock.slots for clock in self.clocks]
    messages = enumerate(zip(carry.messages, room, strict=True))
    return carry._replace(messages=tuple((*slots, *(self._empty(i, carry),) * n) for i, (slots, n) in messages))

  def _without_room(self, carry: Carry) -> Carry:
    messages = zip(carry.messages, self.clocks, strict=True)
    return carry._replace(messages=tuple(slots[: clock.slots] for slots, clock in messages))

  def _empty(self, i: int, carry: Carry) -> Tree:
    shapes, _ = jax.eval_shape(partial(self.functions.launch, i), carry)
    return jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)

  def _launch(self, i: int, carry: Carry, in_flight: jax.Array) -> tuple[Carry, jax.Array]:
    """Launch exchange i and store its message in the first free slot."""
    message, carry = self.functions.launch(i, carry)
    slots = tuple(
      jax.tree.map(lambda new, old, k=k: jnp.where(in_flight[i] == k, new, old), message, slot)
      for k, slot in enumerate(carry.messages[i])
    )
    return _with_slots(carry, i, slots), in_flight.at[i].add(1)

  def _merge(self, i: int, carry: Carry, in_flight: jax.Array) -> tuple[Carry, jax.Array]:
    """Merge the message in the first slot, and move the other messages forward by one slot."""
    oldest, *rest = carry.messages[i]
    carry = self.functions.merge(i, oldest, carry)
    return _with_slots(carry, i, (*rest, oldest)), in_flight.at[i].add(-1)

  def _exchange(self, i: int, carry: Carry, in_flight: jax.Array) -> tuple[Carry, jax.Array]:
    return self.functions.exchange(i, carry), in_flight


def _with_slots(carry: Carry, i: int, slots: tuple[Tree, ...]) -> Carry:
  return carry._replace(messages=(*carry.messages[:i], slots, *carry.messages[i + 1 :]))


def _when(flag: Any, fn: Callable[..., Any], *args: Any) -> Any:
  return lax.cond(flag, fn, lambda *args: args, *args)


Inputs = tuple[Tree, jax.Array]  # batches [virtual, steps, batch, ...] and keys [virtual, steps] of a device's workers


class Rounds:
  """The compiled calls of one algorithm for one model and one mapping of workers to devices."""

  def __init__(
    self, functions: DeviceFunctions, clocks: list[Clock], execution: ExecutionConfig, replication: Replication,
    shardings: Carry,
  ):  # fmt: skip
    """Create the calls. clocks: one per exchange of the algorithm; shardings: those of the carry."""
    self.functions, self.workers, self._shardings = functions, functions.workers, shardings
    self.execution, self.replication = execution, replication
    self._conditional = ConditionalExchanges(functions, clocks)

  def make_call(self, kind: Kind, batched: bool = False) -> Callable[..., tuple[Carry, jax.Array]]:
    """Return the jitted function for calls of this kind: call(carry, batches, step, keys, clock) -> (carry, losses).

    The call donates the carry. batches: [workers, steps, batch, ...]; step: [] the first step; keys: [workers], as key
    data; losses: [steps], means over the workers; clock: as in `ConditionalExchanges.run` if `kind.unit` is empty,
    else ().

    batched: whether the call trains several runs at once: carry [workers, runs, ...], batches
    [workers, runs, steps, batch, ...], keys [workers, runs], losses [runs, steps].
    """
    call = partial(self._on_device, kind)
    if batched:
      call = jax.vmap(call, (1, 1, None, 1, None), (1, 0))
    lifted = self.workers.lift(call, (True, True, False, True, False), (True, False))
    carry_sharding = self.workers.split() if batched else self._shardings
    return jax.jit(lifted, donate_argnums=0, out_shardings=(carry_sharding, self.workers.everywhere))

  def _on_device(
    self, kind: Kind, carry: Carry, batches: Tree, step: jax.Array, keys: jax.Array, clock: Any
  ) -> tuple[Carry, jax.Array]:
    """Run a device's part of the call; leaves shared by all workers are [1, ...] in `carry` and [...] in the steps."""
    carry = self._each_leaf(unpack, carry)
    inputs = batches, step_keys(keys, step, jax.tree.leaves(batches)[0].shape[1])
    if kind.unit:
      carry, losses = self._units(kind, carry, inputs)
    else:
      carry, losses = self._conditional.run(kind.longest, carry, inputs, clock)
    return self._each_leaf(pack, carry), self.functions.mean(losses)

  def _each_leaf(self, fn: Callable[[Tree, Tree], Tree], carry: Carry) -> Carry:
    """Apply `pack` or `unpack` to all leaves that workers may share."""
    copies = self.replication
    params, state = fn((carry.params, carry.state), (copies.params, copies.state))
    messages = tuple(
      tuple(fn(slot, per_worker) for slot in slots)
      for slots, per_worker in zip(carry.messages, copies.messages, strict=True)
    )
    return Carry(params, state, carry.extra, messages)

  def _units(self, kind: Kind, carry: Carry, inputs: Inputs) -> tuple[Carry, jax.Array]:
    """Run the unit `kind.repeat` times; return (carry, losses [virtual, steps])."""
    unit = partial(self._unit, kind)
    if kind.repeat == 1:
      return unit(carry, inputs)

    def units_first(x: jax.Array) -> jax.Array:
      """Reshape [virtual, repeat * steps, ...] -> [repeat, virtual, steps, ...]."""
      return jnp.swapaxes(x.reshape(x.shape[0], kind.repeat, len(kind.unit), *x.shape[2:]), 0, 1)

    carry, losses = over_steps(unit, carry, jax.tree.map(units_first, inputs), self.execution.steps)
    return carry, jnp.swapaxes(losses, 0, 1).reshape(self.workers.virtual, -1)

  def _unit(self, kind: Kind, carry: Carry, inputs: Inputs) -> tuple[Carry, jax.Array]:
    """Run the steps of `kind.unit`; return (carry, losses [virtual, steps])."""

    def steps(carry: Carry, first: int, last: int, overlapped: bool) -> tuple[Carry, jax.Array]:
      part = jax.tree.map(lambda x: x[:, first:last], inputs)
      return self.functions.steps(carry, *part, overlapped=overlapped)

    carry, losses = over_unit(kind, carry, steps, self._launch, self.functions.merge, self.functions.exchange)
    return carry, jnp.concatenate(losses, axis=1)

  def _launch(self, i: int, carry: Carry) -> tuple[Tree, Carry]:
    message, carry = self.functions.launch(i, carry)
    if self.execution.overlap:  # a fusion boundary as in the other case, so that both round equally
      return lax.optimization_barrier(message), carry
    return lax.optimization_barrier((message, carry))  # following steps wait for the message


def over_unit(
  kind: Kind, carry: Carry, steps: Callable[..., Any], launch: Callable[..., Any], merge: Callable[..., Carry],
  exchange: Callable[..., Carry],
) -> tuple[Carry, list[Any]]:  # fmt: skip
  """Run the steps of `kind.unit` with its exchanges; return (carry with messages in flight, losses).

  steps(carry, first, last, overlapped) -> (carry, losses) runs steps first..last-1 without exchanges; overlapped:
  whether a message is in flight. launch(i, carry) -> (message, carry), merge(i, message, carry) -> carry and
  exchange(i, carry) -> carry run exchange i. The returned losses are a list with one entry per call of `steps`.
  """
  in_flight = [list(slots[:count]) for slots, count in zip(carry.messages, kind.in_flight, strict=True)]
  losses, first = [], 0  # first: the first step that has not run yet
  for step, due in enumerate(kind.unit):
    for i in due.launch:
      message, carry = launch(i, carry)
      in_flight[i].append(message)  # oldest first
    after = kind.unit[step + 1] if step + 1 < len(kind.unit) else LAST
    if due.merge or due.exchange or after.launch:  # run the steps since the last exchange
      carry, loss = steps(carry, first, step + 1, any(in_flight))
      losses.append(loss)
      first = step + 1
    for i in due.merge:
      carry = merge(i, in_flight[i].pop(0), carry)
    for i in due.exchange:
      carry = exchange(i, carry)
  messages = tuple((*queue, *slots[len(queue) :]) for queue, slots in zip(in_flight, carry.messages, strict=True))
  return carry._replace(messages=messages), losses


LAST = Due(launch=(0,))  # stands for the step after a unit, so that the remaining steps run
