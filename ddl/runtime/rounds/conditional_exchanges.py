"""Steps whose exchanges are decided at run time, by conditions on values that are equal on all devices.

One such function serves any steps of a run, where periods and pauses would make too many kinds of calls.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from ddl.api import Tree
from ddl.runtime.device_functions import Carry, DeviceFunctions
from ddl.schedule import Clock


class ConditionalExchanges:
  """The steps of a call whose schedule is an argument."""

  def __init__(self, functions: DeviceFunctions, clocks: list[Clock]):
    """clocks: of the algorithm's exchanges."""
    self.functions, self.clocks = functions, clocks
    self._delayed = [i for i, clock in enumerate(clocks) if clock.delay]
    self._prompt = [i for i, clock in enumerate(clocks) if not clock.delay]

  def run(self, longest: int, carry: Carry, inputs: Any, clock: Any) -> tuple[Carry, jax.Array]:
    """Make some steps; losses: [virtual, longest], of which those of the steps are set.

    Args:
      longest: most steps.
      carry: with `Clock.slots` slots for the messages of each exchange.
      inputs: batches [virtual, longest, batch, ...] and keys [virtual, longest].
      clock: steps to make [], messages in flight [exchanges], and [longest, exchanges] bool by the fields of `Due`.
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
    """Add slots: within a step one message more may be in flight than between two."""
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
    """Put a message into the first free slot."""
    message, carry = self.functions.launch(i, carry)
    slots = tuple(
      jax.tree.map(lambda new, old, k=k: jnp.where(in_flight[i] == k, new, old), message, slot)
      for k, slot in enumerate(carry.messages[i])
    )
    return _with_slots(carry, i, slots), in_flight.at[i].add(1)

  def _merge(self, i: int, carry: Carry, in_flight: jax.Array) -> tuple[Carry, jax.Array]:
    """Merge the message of the first slot, and move the others up."""
    oldest, *rest = carry.messages[i]
    carry = self.functions.merge(i, oldest, carry)
    return _with_slots(carry, i, (*rest, oldest)), in_flight.at[i].add(-1)

  def _exchange(self, i: int, carry: Carry, in_flight: jax.Array) -> tuple[Carry, jax.Array]:
    return self.functions.exchange(i, carry), in_flight


def _with_slots(carry: Carry, i: int, slots: tuple[Tree, ...]) -> Carry:
  return carry._replace(messages=(*carry.messages[:i], slots, *carry.messages[i + 1 :]))


def _when(flag: Any, fn: Callable[..., Any], *args: Any) -> Any:
  return lax.cond(flag, fn, lambda *args: args, *args)
