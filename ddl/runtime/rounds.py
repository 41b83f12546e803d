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
from ddl.runtime.workers import AXIS, Workers
from ddl.schedule import Due


class Carry(NamedTuple):
  """What goes from call to call. [copies, ...] is one copy per worker, or per device where all workers are equal."""

  params: Tree  # [copies, ...]
  state: Tree  # [copies, ...]
  extra: Tree  # [workers, ...]: the model's non-trained state
  message: Tree  # [workers, ...] if one is in flight between two calls, else ()


class How(NamedTuple):
  """How to run; the results agree up to the rounding of another order of operations."""

  gradients: Literal["unroll", "vmap", "map"]  # over a device's workers
  steps: Literal["unroll", "scan"]
  steps_per_call: int
  overlap: bool = True  # False: the steps after a launch wait for its message


class Copies(NamedTuple):
  """Whether workers need params and state of their own; False where tracing shows that all workers stay equal."""

  params: bool
  state: bool


def find_copies(algorithm: Algorithm, workers: Workers, state: Tree, params: Tree) -> Copies:
  """Traces `local` with params (and state) shared by all workers: so it may stay if no result differs between them.

  state, params: one worker's, as arrays or shapes.
  """

  def shared(state_axis: int | None) -> bool:
    def per_device(grads: Tree, state: Tree, params: Tree) -> Any:
      axes, out = (0, state_axis, None), (None, state_axis)
      return jax.vmap(algorithm.local, axes, out, axis_name=AXIS[1], axis_size=workers.virtual)(grads, state, params)

    def stack(tree: Tree) -> Tree:
      return jax.tree.map(lambda x: jax.ShapeDtypeStruct((workers.virtual, *x.shape), x.dtype), tree)

    whole = jax.vmap(per_device, in_axes=None, axis_name=AXIS[0], axis_size=workers.devices)
    try:
      jax.eval_shape(whole, stack(params), state if state_axis is None else stack(state), params)
    except ValueError:  # vmap: a result differs between workers, though out_axes says that none does
      return False
    return True

  if algorithm.launch is not None:
    return Copies(True, True)
  return Copies(False, False) if shared(None) else Copies(False, True) if shared(0) else Copies(True, True)


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
  how: How,
  copies: Copies,
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
    copies: from `find_copies`.
    free: whether a local step needs no other worker (not `communicates`).
    unit: what is due at each step, e.g. one round.
    repeat: number of units.

  Returns:
    call(carry, batches, step, key) -> (carry, losses). batches: [workers, repeat * len(unit), batch, ...]; step: [] the
    first step's number; key: the experiment's, as key data; losses: [repeat * len(unit)], means over the workers.
    The carry is donated.
  """
  in_params, in_state = (0 if copies.params else None), (0 if copies.state else None)
  value_and_grad = jax.value_and_grad(model.loss, has_aux=True)

  def everyone(fn: Callable[..., Any], in_axes: Any = 0, out_axes: Any = 0) -> Callable[..., Any]:
    return jax.vmap(fn, in_axes=in_axes, out_axes=out_axes, axis_name=AXIS[1], axis_size=workers.virtual)

  local = everyone(algorithm.local, (0, in_state, in_params), (in_params, in_state))
  launch = everyone(algorithm.launch) if algorithm.launch else None
  merge = everyone(algorithm.merge) if algorithm.merge else None

  def alone(params: Tree, state: Tree, extra: Tree, batches: Tree, keys: jax.Array) -> Any:
    """One worker's steps up to the next exchange. batches: [steps, batch, ...]."""

    def step(carry: Any, batch_and_key: Any) -> Any:
      params, state, extra = carry
      (loss, extra), grads = value_and_grad(params, extra, *batch_and_key)
      params, state = algorithm.local(grads, state, params)
      return (params, state, extra), loss

    return _loop(step, (params, state, extra), (batches, keys), how.steps)

  def together(params: Tree, state: Tree, extra: Tree, batches: Tree, keys: jax.Array) -> Any:
    """All workers step by step, for a local step that communicates. batches: [workers, steps, batch, ...]."""

    def step(carry: Any, batch_and_key: Any) -> Any:
      params, state, extra = carry
      (loss, extra), grads = _spread(value_and_grad, how.gradients, (in_params, 0, 0, 0))(params, extra, *batch_and_key)
      params, state = local(grads, state, params)
      return (params, state, extra), loss

    steps_first = jax.tree.map(lambda x: jnp.swapaxes(x, 0, 1), (batches, keys))
    carry, losses = _loop(step, (params, state, extra), steps_first, how.steps)
    return carry, losses.T

  def stretch(carry: Carry, batches: Tree, keys: jax.Array) -> tuple[Carry, jax.Array]:
    run = _spread(alone, how.gradients, 0) if free and copies.params else together
    (params, state, extra), losses = run(carry.params, carry.state, carry.extra, batches, keys)
    return Carry(params, state, extra, carry.message), losses

  def one_unit(carry: Carry, batches_and_keys: Any) -> tuple[Carry, jax.Array]:
    losses, first = [], 0
    for last, event in enumerate(unit):
      if event.launch:
        message = launch(carry.state, carry.params)
        if not how.overlap:
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
    carry = Carry(_unpack(carry.params, copies.params), _unpack(carry.state, copies.state), carry.extra, carry.message)
    ranks = lax.axis_index(AXIS[0]) * workers.virtual + jnp.arange(workers.virtual, dtype=jnp.int32)
    numbers = step + jnp.arange(repeat * len(unit), dtype=step.dtype)
    key = jax.random.wrap_key_data(key)
    keys = jax.vmap(lambda r: jax.vmap(lambda t: jax.random.fold_in(jax.random.fold_in(key, r), t))(numbers))(ranks)

    def units_first(x: jax.Array) -> jax.Array:
      return jnp.swapaxes(x.reshape(x.shape[0], repeat, len(unit), *x.shape[2:]), 0, 1)

    if repeat == 1:
      carry, losses = one_unit(carry, (batches, keys))
    else:
      carry, losses = _loop(one_unit, carry, jax.tree.map(units_first, (batches, keys)), how.steps)
      losses = jnp.swapaxes(losses, 0, 1).reshape(workers.virtual, -1)
    losses = everyone(lambda x: collectives.pmean(x, AXIS), out_axes=None)(losses)
    return Carry(_pack(carry.params, copies.params), _pack(carry.state, copies.state), *carry[2:]), losses

  lifted = workers.lift(device, (True, True, False, False), (True, False))
  return jax.jit(lifted, donate_argnums=0)


def _loop(step: Callable[..., Any], carry: Any, xs: Any, steps: str) -> tuple[Any, Any]:
  """`lax.scan`, or the same unrolled. xs: [steps, ...]."""
  count = jax.tree.leaves(xs)[0].shape[0]
  if steps == "scan" and count > 1:
    return lax.scan(step, carry, xs)
  out = []
  for i in range(count):
    carry, y = step(carry, jax.tree.map(lambda x, i=i: x[i], xs))
    out.append(y)
  return carry, jax.tree.map(lambda *y: jnp.stack(y), *out)


def _spread(fn: Callable[..., Any], mode: str, in_axes: Any) -> Callable[..., Any]:
  """`jax.vmap(fn, in_axes)` without named axes: as it is, as a loop, or unrolled into one copy per worker."""
  if mode == "vmap":
    return jax.vmap(fn, in_axes=in_axes)

  def run(*args: Any) -> Any:
    axes = (in_axes,) * len(args) if isinstance(in_axes, int) else in_axes
    count = next(x.shape[0] for a, axis in zip(args, axes, strict=True) if axis == 0 for x in jax.tree.leaves(a))

    def pick(i: Any) -> Any:
      return fn(*(a if axis is None else jax.tree.map(lambda x: x[i], a) for a, axis in zip(args, axes, strict=True)))

    if count == 1:
      return jax.tree.map(lambda x: x[None], pick(0))
    if mode == "map":
      return lax.map(pick, jnp.arange(count))
    return jax.tree.map(lambda *x: jnp.stack(x), *(pick(i) for i in range(count)))

  return run


def _unpack(tree: Tree, per_worker: bool) -> Tree:
  return tree if per_worker else jax.tree.map(lambda x: x[0], tree)


def _pack(tree: Tree, per_worker: bool) -> Tree:
  return tree if per_worker else jax.tree.map(lambda x: x[None], tree)
