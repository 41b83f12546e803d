"""One compiled call: some steps of every worker, with the algorithm's exchanges between them.

Two XLA:CPU facts shape this file: convolution gradients inside a loop or under vmap over per-worker kernels lose their
fast path, and a worker whose steps follow each other keeps its parameters in the cache. So gradients can be unrolled
over a device's workers instead of vmapped, steps can be unrolled instead of scanned, and where a local step does not
communicate a worker takes all its steps up to the next exchange before the next worker does.
"""

from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from ddl import collectives
from ddl.api import Algorithm, Model, Tree
from ddl.runtime.replication import Replication, axes, pack, unpack
from ddl.runtime.workers import AXIS, Workers
from ddl.schedule import Due


class Carry(NamedTuple):
  """What goes from call to call. [copies, ...] is one copy per worker, or per device where all workers agree."""

  params: Tree  # [copies, ...]
  state: Tree  # [copies, ...]
  extra: Tree  # [workers, ...]: the model's non-trained state
  message: Tree  # [copies, ...] if one is in flight between two calls, else ()


class ExecutionConfig(NamedTuple):
  """How to run; the results agree up to the rounding of another order of operations."""

  gradients: Literal["unroll", "vmap", "map"]  # over a device's workers
  steps: Literal["unroll", "scan"]
  steps_per_call: int
  overlap: bool = True  # False: the steps after a launch wait for its message


def communicates(algorithm: Algorithm, state: Tree, params: Tree) -> bool:
  """Whether `local` uses the workers' axis: tracing it where no axis is bound tells."""
  try:
    jax.eval_shape(algorithm.local, params, state, params)
  except NameError:
    return True
  return False


def make_call(
  algorithm: Algorithm,
  model: Model,
  workers: Workers,
  how: ExecutionConfig,
  copies: Replication,
  free: bool,
  unit: Sequence[Due],
  repeat: int,
) -> Callable[..., tuple[Carry, jax.Array]]:
  """The jitted function of `repeat` times the steps in `unit`.

  Args:
    algorithm: made with axis_name=AXIS.
    model: its loss is differentiated.
    workers: where they live.
    how: how to run.
    copies: from `find_replication`.
    free: whether a local step needs no other worker (not `communicates`).
    unit: what is due at each step, e.g. one round.
    repeat: number of units.

  Returns:
    call(carry, batches, step, key) -> (carry, losses). batches: [workers, repeat * len(unit), batch, ...]; step: [] the
    first step's number; key: the experiment's, as key data; losses: [repeat * len(unit)], means over the workers.
    The carry is donated.
  """
  in_params, in_state, in_message = (axes(c) for c in copies)
  value_and_grad = jax.value_and_grad(model.loss, has_aux=True)

  def everyone(fn: Callable[..., Any], in_axes: Any, out_axes: Any) -> Callable[..., Any]:
    return jax.vmap(fn, in_axes, out_axes, axis_name=AXIS[1], axis_size=workers.virtual)

  local = everyone(algorithm.local, (0, in_state, in_params), (in_params, in_state))
  if algorithm.launch and algorithm.merge:
    launch = everyone(algorithm.launch, (in_state, in_params), in_message)
    merge = everyone(algorithm.merge, (in_message, in_state, in_params), (in_params, in_state))

  def alone(params: Tree, state: Tree, extra: Tree, batches: Tree, keys: jax.Array) -> Any:
    """One worker's steps up to the next exchange. batches: [steps, batch, ...]."""

    def step(carry: Any, batch_and_key: Any) -> Any:
      params, state, extra = carry
      (loss, extra), grads = value_and_grad(params, extra, *batch_and_key)
      params, state = algorithm.local(grads, state, params)
      return (params, state, extra), loss

    return loop(step, (params, state, extra), (batches, keys), how.steps)

  def together(params: Tree, state: Tree, extra: Tree, batches: Tree, keys: jax.Array) -> Any:
    """All workers step by step, for a local step that communicates. batches: [workers, steps, batch, ...]."""

    def step(carry: Any, batch_and_key: Any) -> Any:
      params, state, extra = carry
      each = _spread(value_and_grad, how.gradients, (in_params, 0, 0, 0), 0)
      (loss, extra), grads = each(params, extra, *batch_and_key)
      params, state = local(grads, state, params)
      return (params, state, extra), loss

    steps_first = jax.tree.map(lambda x: jnp.swapaxes(x, 0, 1), (batches, keys))
    carry, losses = loop(step, (params, state, extra), steps_first, how.steps)
    return carry, losses.T

  def stretch(carry: Carry, batches: Tree, keys: jax.Array) -> tuple[Carry, jax.Array]:
    run = together
    if free:
      run = _spread(alone, how.gradients, (in_params, in_state, 0, 0, 0), ((in_params, in_state, 0), 0))
    (params, state, extra), losses = run(carry.params, carry.state, carry.extra, batches, keys)
    return Carry(params, state, extra, carry.message), losses

  def one_unit(carry: Carry, batches_and_keys: Any) -> tuple[Carry, jax.Array]:
    losses, first = [], 0
    for last, event in enumerate(unit):
      if event.launch:
        message = launch(carry.state, carry.params)
        if how.overlap:  # the same end to what is fused, so that both ways round alike
          message = lax.optimization_barrier(message)
        else:
          message, carry = lax.optimization_barrier((message, carry))
        carry = carry._replace(message=message)
      after = unit[last + 1] if last + 1 < len(unit) else Due(launch=True)
      if event.merge or event.exchange or after.launch:  # the steps since the last event form a stretch
        part = jax.tree.map(lambda x, a=first, b=last + 1: x[:, a:b], batches_and_keys)
        carry, loss = stretch(carry, *part)
        losses.append(loss)
        first = last + 1
      if event.merge:
        params, state = merge(carry.message, carry.state, carry.params)
        carry = Carry(params, state, carry.extra, ())
      if event.exchange:
        message = launch(carry.state, carry.params)
        params, state = merge(message, carry.state, carry.params)
        carry = carry._replace(params=params, state=state)
    return carry, jnp.concatenate(losses, axis=1)

  def device(carry: Carry, batches: Tree, step: jax.Array, key: jax.Array) -> tuple[Carry, jax.Array]:
    message = unpack(carry.message, copies.message) if jax.tree.leaves(carry.message) else ()
    carry = Carry(unpack(carry.params, copies.params), unpack(carry.state, copies.state), carry.extra, message)
    ranks = lax.axis_index(AXIS[0]) * workers.virtual + jnp.arange(workers.virtual, dtype=jnp.int32)
    numbers = step + jnp.arange(repeat * len(unit), dtype=step.dtype)
    key = jax.random.wrap_key_data(key)
    keys = jax.vmap(lambda r: jax.vmap(lambda t: jax.random.fold_in(jax.random.fold_in(key, r), t))(numbers))(ranks)

    def units_first(x: jax.Array) -> jax.Array:
      return jnp.swapaxes(x.reshape(x.shape[0], repeat, len(unit), *x.shape[2:]), 0, 1)

    if repeat == 1:
      carry, losses = one_unit(carry, (batches, keys))
    else:
      carry, losses = loop(one_unit, carry, jax.tree.map(units_first, (batches, keys)), how.steps)
      losses = jnp.swapaxes(losses, 0, 1).reshape(workers.virtual, -1)
    losses = everyone(lambda x: collectives.pmean(x, AXIS), 0, None)(losses)
    message = pack(carry.message, copies.message) if jax.tree.leaves(carry.message) else ()
    return Carry(pack(carry.params, copies.params), pack(carry.state, copies.state), carry.extra, message), losses

  lifted = workers.lift(device, (True, True, False, False), (True, False))
  return jax.jit(lifted, donate_argnums=0)


def loop(step: Callable[..., Any], carry: Any, xs: Any, steps: str) -> tuple[Any, Any]:
  """`lax.scan`, or the same unrolled. xs: [steps, ...]."""
  count = jax.tree.leaves(xs)[0].shape[0]
  if steps == "scan" and count > 1:
    return lax.scan(step, carry, xs)
  out = []
  for i in range(count):
    carry, y = step(carry, jax.tree.map(lambda x, i=i: x[i], xs))
    out.append(y)
  return carry, jax.tree.map(lambda *y: jnp.stack(y), *out)


def _spread(fn: Callable[..., Any], mode: str, in_axes: tuple[Any, ...], out_axes: Any) -> Callable[..., Any]:
  """`jax.vmap(fn, in_axes, out_axes)` without a named axis: as it is, as a loop, or unrolled, one copy per worker.

  A result whose out_axes is None is the same for all workers: the last one's.
  """
  if mode == "vmap":
    return jax.vmap(fn, in_axes, out_axes)

  def each_leaf(prefix: Any, tree: Tree, fn: Callable[[bool, Any], Any]) -> Tree:
    full = jax.tree.broadcast(prefix, tree, is_leaf=lambda x: x is None)
    return jax.tree.map(lambda axis, x: fn(axis == 0, x), full, tree, is_leaf=lambda x: x is None)

  def run(*args: Any) -> Any:
    sizes: list[int] = []
    each_leaf(in_axes, args, lambda own, x: sizes.append(x.shape[0]) if own else None)
    count = sizes[0]

    def pick(i: Any) -> Any:
      return fn(*each_leaf(in_axes, args, lambda own, x: x[i] if own else x))

    if count == 1:
      return each_leaf(out_axes, pick(0), lambda own, x: x[None] if own else x)
    if mode == "map":
      return each_leaf(out_axes, lax.map(pick, jnp.arange(count)), lambda own, x: x if own else x[-1])
    results = [pick(i) for i in range(count)]
    stacked = iter(zip(*(jax.tree.leaves(r) for r in results), strict=True))
    return each_leaf(out_axes, results[-1], lambda own, x: jnp.stack(next(stacked)) if own else (next(stacked), x)[1])

  return run
