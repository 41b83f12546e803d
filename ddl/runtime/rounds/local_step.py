"""The local step of every runtime (loss, gradient, update), and its repetition over steps and a device's workers."""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from ddl.api import Batch, Model, Tree

Local = Callable[[Tree, Tree, Tree], tuple[Tree, Tree]]  # (grads, state, params) -> (params, state)


def gradient_of(model: Model) -> Callable[..., tuple[tuple[Any, Tree], Tree]]:
  """(params, extra, batch, key) -> ((loss, extra), grads), the means over `model.microbatches`.

  Microbatch i of k has examples i, i + k, i + 2k, ..., so that each of a worker's devices has a part of each. Its key
  is fold_in(key, i), and it gets the `extra` (batch statistics) of the one before it.
  """
  whole, k = jax.value_and_grad(model.loss, has_aux=True), model.microbatches
  if k == 1:
    return whole

  def gradient(params: Tree, extra: Tree, batch: Batch, key: Any) -> tuple[tuple[Any, Tree], Tree]:
    parts = jax.tree.map(lambda x: jnp.swapaxes(x.reshape(-1, k, *x.shape[1:]), 0, 1), dict(batch))
    keys = jax.vmap(partial(jax.random.fold_in, key))(jnp.arange(k))

    def add(carry: Any, part: Any) -> tuple[Any, None]:
      extra, sums = carry
      (loss, extra), grads = whole(params, extra, *part)
      return (extra, jax.tree.map(jnp.add, sums, (loss, grads))), None

    (loss, _), grads = jax.eval_shape(whole, params, extra, jax.tree.map(lambda x: x[0], parts), key)
    zeros = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), (loss, grads))
    loops = model.dense or jax.default_backend() != "cpu"
    (extra, sums), _ = over_steps(add, (extra, zeros), (parts, keys), "scan" if loops else "unroll")
    loss, grads = jax.tree.map(lambda x: x / k, sums)
    return (loss, extra), grads

  return gradient


def make_local_step(model: Model, local: Local) -> Callable[[Any, Any], tuple[Any, Any]]:
  """step((params, state, extra), (batch, key)) -> ((params, state, extra), loss), as `lax.scan` takes it."""
  gradient = gradient_of(model)

  def step(carry: Any, batch_and_key: Any) -> tuple[Any, Any]:
    params, state, extra = carry
    (loss, extra), grads = gradient(params, extra, *batch_and_key)
    params, state = local(grads, state, params)
    return (params, state, extra), loss

  return step


def over_steps(step: Callable[..., Any], carry: Any, xs: Any, how: str) -> tuple[Any, Any]:
  """Run `lax.scan`, or the same unrolled. xs: [steps, ...]; how: "scan" or "unroll"."""
  count = jax.tree.leaves(xs)[0].shape[0]
  if how == "scan" and count > 1:
    return lax.scan(step, carry, xs)
  out = []
  for i in range(count):
    carry, y = step(carry, jax.tree.map(lambda x, i=i: x[i], xs))
    out.append(y)
  return carry, jax.tree.map(lambda *y: jnp.stack(y), *out)


def over_workers(fn: Callable[..., Any], how: str, in_axes: tuple[Any, ...], out_axes: Any) -> Callable[..., Any]:
  """Return `jax.vmap(fn, in_axes, out_axes)` without a named axis, as a loop, or unrolled, one copy per worker.

  how: "vmap", "map" or "unroll". A result whose out_axes is None is equal for all workers; the last one's is taken.
  """
  if how == "vmap":
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
    if how == "map":
      return each_leaf(out_axes, lax.map(pick, jnp.arange(count)), lambda own, x: x if own else x[-1])
    results = [pick(i) for i in range(count)]
    stacked = iter(zip(*(jax.tree.leaves(r) for r in results), strict=True))
    return each_leaf(out_axes, results[-1], lambda own, x: jnp.stack(next(stacked)) if own else (next(stacked), x)[1])

  return run
