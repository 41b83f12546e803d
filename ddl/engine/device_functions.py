"""Lift the functions of an algorithm and a model from one worker to all workers of a device.

XLA:CPU has no fast path for convolution gradients inside a loop or under vmap over per-worker kernels, and a worker
that runs several successive steps keeps its parameters in the cache. So gradients can be unrolled over a device's
workers instead of vmapped, and steps can be unrolled instead of scanned. If local steps do not use the group, the loop
over workers is outside the loop over steps: each worker runs all steps up to the next exchange.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from ddl.api import Algorithm, Model, Tree
from ddl.engine.execution import ExecutionConfig
from ddl.engine.local_step import gradient_of, make_local_step, over_steps, over_workers
from ddl.engine.replication import Replication, axes
from ddl.engine.workers import AXIS, Workers

UNROLLED = 8  # maximum steps to unroll while a message is in flight: more take longer to compile and rarely hide more

Messages = tuple[tuple[Tree, ...], ...]  # [copies, ...] for each exchange and slot, messages in flight first


class Carry(NamedTuple):
  """The training state between two calls, with a copy of each leaf per worker, or per device if all workers agree."""

  params: Tree  # [copies, ...]
  state: Tree  # [copies, ...]
  extra: Tree  # [workers, ...]: the model's non-trained state
  messages: Messages


class DeviceFunctions:
  """Local steps, launches and merges of a device's workers; `i` is the index of an exchange."""

  def __init__(
    self,
    algorithm: Algorithm,
    model: Model,
    workers: Workers,
    execution: ExecutionConfig,
    replication: Replication,
    independent: bool,
  ):
    """Lift the functions. independent: whether local steps neither communicate nor depend on a worker's rank."""
    self.workers = workers
    make_steps = self._independent_steps if independent else self._joint_steps
    self._steps = make_steps(algorithm, model, execution, replication)
    unrolls = workers.platform != "cpu" and not workers.packs  # see `execution`
    unrolled = execution._replace(steps="unroll")
    self._unrolled = make_steps(algorithm, model, unrolled, replication) if unrolls else None
    in_params, in_state = axes(replication.params), axes(replication.state)
    self._launch, self._merge = [], []
    for exchange, in_message in zip(algorithm.exchanges, map(axes, replication.messages), strict=True):
      group = workers.overlapped_group if exchange.delay else workers.group
      launch, merge = partial(exchange.launch, group), partial(exchange.merge, group)
      self._launch.append(self.vmap_workers(launch, (in_state, in_params), (in_message, in_state)))
      self._merge.append(self.vmap_workers(merge, (in_message, in_state, in_params), (in_params, in_state)))
    self.mean = self.vmap_workers(workers.group.mean, (0,), None)  # mean over all workers: [virtual, ...] -> [...]

  def steps(self, carry: Carry, batches: Tree, keys: jax.Array, overlapped: bool = False) -> tuple[Carry, jax.Array]:
    """Run steps without exchanges on all `virtual` workers of a device; return the carry and losses [virtual, steps].

    batches: [virtual, steps, batch, ...]; keys: [virtual, steps]; overlapped: whether a message is in flight that the
    compiler should overlap with the steps.
    """
    if overlapped and self._unrolled and keys.shape[1] > UNROLLED:
      cut = slice(UNROLLED), slice(UNROLLED, None)
      first, rest = (jax.tree.map(lambda x, part=part: x[:, part], (batches, keys)) for part in cut)
      carry, before = self.steps(carry, *first, overlapped=True)
      carry, after = self.steps(carry, *rest)
      return carry, jnp.concatenate([before, after], axis=1)
    make = self._unrolled if overlapped and self._unrolled else self._steps
    (params, state, extra), losses = make(carry.params, carry.state, carry.extra, batches, keys)
    return Carry(params, state, extra, carry.messages), losses

  def launch(self, i: int, carry: Carry) -> tuple[Tree, Carry]:
    """Return the message of exchange i, [copies, ...], and the carry with the state after its launch."""
    message, state = self._launch[i](carry.state, carry.params)
    return message, carry._replace(state=state)

  def merge(self, i: int, message: Tree, carry: Carry) -> Carry:
    """Merge the message of exchange i."""
    params, state = self._merge[i](message, carry.state, carry.params)
    return carry._replace(params=params, state=state)

  def exchange(self, i: int, carry: Carry) -> Carry:
    """Launch exchange i and merge its message immediately."""
    return self.merge(i, *self.launch(i, carry))

  def vmap_workers(self, fn: Callable[..., Any], in_axes: Any, out_axes: Any) -> Callable[..., Any]:
    """Vectorize `fn` over the workers of a device; collectives in it span both axes of `AXIS`."""
    return jax.vmap(fn, in_axes, out_axes, axis_name=AXIS[1], axis_size=self.workers.virtual)

  def _joint_steps(
    self, algorithm: Algorithm, model: Model, execution: ExecutionConfig, replication: Replication
  ) -> Callable[..., Any]:
    """Return a function for local steps that use the group: it runs each step on all workers of a device at once."""
    in_params, in_state = axes(replication.params), axes(replication.state)
    per_worker = (replication.params, True, True, True)
    gradients = over_workers(gradient_of(model), execution.gradients, per_worker, True)
    update = self.vmap_workers(
      partial(algorithm.local, self.workers.group), (0, in_state, in_params), (in_params, in_state)
    )

    def step(carry: Any, batch_and_key: Any) -> tuple[Any, jax.Array]:
      params, state, extra = carry
      (loss, extra), grads = gradients(params, extra, *batch_and_key)
      params, state = update(grads, state, params)
      return (params, state, extra), loss

    def steps(params: Tree, state: Tree, extra: Tree, batches: Tree, keys: jax.Array) -> Any:
      steps_first = jax.tree.map(lambda x: jnp.swapaxes(x, 0, 1), (batches, keys))
      carry, losses = over_steps(step, (params, state, extra), steps_first, execution.steps)
      return carry, losses.T

    return steps

  def _independent_steps(
    self, algorithm: Algorithm, model: Model, execution: ExecutionConfig, replication: Replication
  ) -> Callable[..., Any]:
    """Return a function that runs all steps up to the next exchange, lifted as a whole to the workers of a device."""
    step = make_local_step(model, partial(algorithm.local, self.workers.group))

    def steps(params: Tree, state: Tree, extra: Tree, batches: Tree, keys: jax.Array) -> Any:
      """Run the steps of one worker. batches: [steps, batch, ...]."""
      return over_steps(step, (params, state, extra), (batches, keys), execution.steps)

    carried = (replication.params, replication.state, True)
    return over_workers(steps, execution.gradients, (*carried, True, True), (carried, True))
