"""Any collective algorithm as an optax transformation, for training loops that are not ours."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import lax

from ddl import collectives
from ddl.api import Algorithm, AxisName, Tree
from ddl.schedule import due


class AsOptaxState(NamedTuple):
  """State of `as_optax`; every leaf belongs to one worker."""

  count: jax.Array  # [] int32: steps taken
  algorithm: Tree
  message: Tree  # in flight, of the shapes that `launch` gives; () where none outlives a step


def as_optax(algorithm: Algorithm, axis_name: AxisName) -> optax.GradientTransformationExtraArgs:
  """The algorithm as `init` and `update`, one call of `update` per step and worker.

  `update(grads, state, params)` takes this worker's own gradients and gives new params - params. It must run where
  `axis_name` is bound: under `jax.vmap(axis_name=...)`, `jax.shard_map` or `jax.pmap`. So must `init` where the state
  depends on the number of workers (`sharded_sync_sgd`).

  Params that are set to a mean come out as old + (mean - old), hence equal between workers up to rounding only.

  Args:
    algorithm: from a factory of `ddl.algorithms`, made with the same `axis_name`.
    axis_name: the workers' named axis, or a tuple of axes.

  Returns:
    An optax transformation; `algorithm.evaluate(state.algorithm, params)` gives the consensus params.

  Raises:
    ValueError: if `update` gets no params, or the delay does not fit the period.
  """
  due(algorithm, 0)  # complains now rather than at the first step
  carried = algorithm.delay > 1
  alike = algorithm.launch is None or (
    algorithm.period == 1 and not algorithm.start and (algorithm.primed or not algorithm.delay)
  )

  def init(params: Tree) -> AsOptaxState:
    state = algorithm.init(params)
    # Its type must be the one that `update` gives back, so that the state can be a scan's carry.
    message = _varying((state, params))(_no_message(algorithm, axis_name, state, params)) if carried else ()
    return AsOptaxState(jnp.zeros((), jnp.int32), state, message)

  def update(updates: Tree, state: Any, params: Tree | None = None, **extra_args: Any) -> tuple[Tree, AsOptaxState]:
    del extra_args
    if params is None:
      raise ValueError("as_optax: update needs the params: tx.update(grads, state, params)")
    # The maximum makes the counter one value for all workers: a condition on a per-worker value would become a select
    # under vmap, and the collective would run at every step.
    now = due(algorithm, 0 if alike else collectives.pmax(state.count, axis_name))
    cond = _uniform_cond((updates, state, params))
    launch, merge = algorithm.launch or _never, algorithm.merge or _never
    inner, message = state.algorithm, state.message

    if algorithm.delay and not carried:
      message = _no_message(algorithm, axis_name, inner, params)
    if algorithm.delay:
      message = cond(now.launch, lambda i, x, m: launch(i, x), lambda i, x, m: m, inner, params, message)
    new, inner = algorithm.local(updates, inner, params)
    if algorithm.delay:
      new, inner = cond(now.merge, merge, lambda m, i, x: (x, i), message, inner, new)
    new, inner = cond(now.exchange, lambda i, x: merge(launch(i, x), i, x), lambda i, x: (x, i), inner, new)

    step = jax.tree.map(lambda x, old: x - old, new, params)
    return step, AsOptaxState(state.count + 1, inner, message if carried else ())

  return optax.GradientTransformationExtraArgs(init, update)


def _never(*_: Tree) -> Tree:
  raise AssertionError("an algorithm without launch and merge has nothing due")


def _no_message(algorithm: Algorithm, axis_name: AxisName, state: Tree, params: Tree) -> Tree:
  """Zeros of the shapes that `launch` gives, found without communicating."""
  launch = algorithm.launch or _never
  try:
    shapes = jax.eval_shape(launch, state, params)
  except NameError:  # `init` outside the axis: bind it with size 1, as a message's shape does not depend on p
    for name in reversed(collectives.axes(axis_name)):
      launch = jax.vmap(launch, axis_name=name, axis_size=1, in_axes=None, out_axes=0)
    depth = len(collectives.axes(axis_name))
    shapes = jax.tree.map(
      lambda s: jax.ShapeDtypeStruct(s.shape[depth:], s.dtype), jax.eval_shape(launch, state, params)
    )
  return jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), shapes)


def _uniform_cond(inputs: Tree) -> Callable[..., Any]:
  """A `lax.cond` whose branches agree in what varies over the workers, which `shard_map` checks by default."""
  cast = _varying(inputs)

  def cond(due_now: Any, yes: Callable[..., Tree], no: Callable[..., Tree], *operands: Tree) -> Tree:
    if isinstance(due_now, bool):
      return yes(*operands) if due_now else no(*operands)
    return lax.cond(due_now, lambda args: cast(yes(*args)), lambda args: cast(no(*args)), operands)

  return cond


def _varying(inputs: Tree) -> Callable[[Tree], Tree]:
  """Casts a tree's leaves to vary over all axes that some input varies over."""
  vary = frozenset().union(*(_varies(x) for x in jax.tree.leaves(inputs)))

  def cast(tree: Tree) -> Tree:
    return jax.tree.map(
      lambda x: lax.pcast(x, tuple(missing), to="varying") if (missing := vary - _varies(x)) else x, tree
    )

  return cast


def _varies(x: Any) -> frozenset[Any]:
  return jax.typeof(x).manual_axis_type.varying
