"""The local step (loss, gradient, update) that all runtimes use, and loops over steps and over a device's workers."""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from ddl.api import Batch, Model, Tree
from ddl.engine.replication import axes

Local = Callable[[Tree, Tree, Tree], tuple[Tree, Tree]]  # (grads, state, params) -> (params, state)


def gradient_of(model: Model) -> Callable[..., tuple[tuple[Any, Tree], Tree]]:
  """Return a function (params, extra, batch, key) -> ((loss, extra), grads) that averages over microbatches.

  Microbatch i of k > 1 contains examples i, i + k, i + 2k, ..., so that it is spread over all devices of a worker. Its
  key is fold_in(key, i), and it receives the `extra` (batch statistics) of the previous microbatch.
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
  """Return a function ((params, state, extra), (batch, key)) -> ((params, state, extra), loss), for `lax.scan`."""
  gradient = gradient_of(model)

  def step(carry: Any, batch_and_key: Any) -> tuple[Any, Any]:
    params, state, extra = carry
    (loss, extra), grads = gradient(params, extra, *batch_and_key)
    params, state = local(grads, state, params)
    return (params, state, extra), loss

  return step


def over_steps(step: Callable[..., Any], carry: Any, xs: Any, how: str) -> tuple[Any, Any]:
  """Return the result of `lax.scan(step, carry, xs)`, from a scan or an unrolled loop. how: "scan" or "unroll"."""
  count = jax.tree.leaves(xs)[0].shape[0]
  if how == "scan" and count > 1:
    return lax.scan(step, carry, xs)
  out = []
  for i in range(count):
    carry, y = step(carry, jax.tree.map(lambda x, i=i: x[i], xs))
    out.append(y)
  return carry, jax.tree.map(lambda *y: jnp.stack(y), *out)


def over_workers(
  fn: Callable[..., Any], how: str, per_worker_in: tuple[Tree, ...], per_worker_out: Tree
) -> Callable[..., Any]:
  """Lift `fn` from one worker to all workers of a device: by a vmap without a named axis, a loop, or unrolling.

  Args:
    fn: function of one worker.
    how: "vmap", "map" or "unroll".
    per_worker_in: a prefix tree per argument: True for leaves [workers, ...], False for leaves that the workers share.
    per_worker_out: a prefix tree for the result, with the same meaning; shared leaves come from the last worker.
  """
  if how == "vmap":
    return jax.vmap(fn, axes(per_worker_in), axes(per_worker_out))

  def run(*args: Any) -> Any:
    per_worker = jax.tree.broadcast(per_worker_in, args)
    count = next(x.shape[0] for differs, x in zip(*map(jax.tree.leaves, (per_worker, args)), strict=True) if differs)

    def pick(i: Any) -> Any:
      return fn(*jax.tree.map(lambda differs, x: x[i] if differs else x, per_worker, args))

    if how == "map" and count > 1:
      result = lax.map(pick, jnp.arange(count))
      return jax.tree.map(
        lambda differs, x: x if differs else x[-1], jax.tree.broadcast(per_worker_out, result), result
      )
    results = [pick(i) for i in range(count)]
    return jax.tree.map(
      lambda differs, *x: jnp.stack(x) if differs else x[-1], jax.tree.broadcast(per_worker_out, results[0]), *results
    )

  return run
