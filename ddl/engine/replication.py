"""Replication: a device stores one copy of each leaf that tracing shows to be equal on all workers.

Examples are synchronous SGD's model, EASGD's center and a mean in flight. Algorithms declare nothing: a function of
one worker is batched over the workers, and JAX determines which of its results depend on batched arguments.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax

from ddl.api import Algorithm, Tree
from ddl.engine.workers import AXIS, Workers


class Replication(NamedTuple):
  """Trees of bools: True for leaves with one copy per worker, False for one copy per device."""

  params: Tree
  state: Tree
  messages: tuple[Tree, ...]  # per exchange


def find_replication(algorithm: Algorithm, workers: Workers, params: Tree) -> tuple[Replication, tuple[Tree, ...]]:
  """Return which leaves may differ between workers, and the shapes of one worker's message for each exchange.

  A leaf may differ if it depends on a worker's gradients or on its rank.

  params: one worker's parameters, as arrays or shapes.
  """
  trace, group = _Trace(workers), workers.group
  per_worker = trace.mark(params, True)
  in_params = trace.mark(params, False)
  state, in_state = trace(lambda p: algorithm.init(group, p, jax.random.key(0)), (params, in_params))
  messages: list[tuple[Tree, Tree]] = [((), ())] * len(algorithm.exchanges)
  while True:
    before = (in_params, in_state, [marks for _, marks in messages])
    _, (p, s) = trace(
      lambda *args: algorithm.local(group, *args), (params, per_worker), (state, in_state), (params, in_params)
    )
    in_params, in_state = trace.join(in_params, p), trace.join(in_state, s)
    for i, exchange in enumerate(algorithm.exchanges):
      (shapes, _), (marks, s) = trace(
        lambda *args, e=exchange: e.launch(group, *args), (state, in_state), (params, in_params)
      )
      messages[i], in_state = (shapes, marks), trace.join(in_state, s)
      _, (p, s) = trace(
        lambda *args, e=exchange: e.merge(group, *args), messages[i], (state, in_state), (params, in_params)
      )
      in_params, in_state = trace.join(in_params, p), trace.join(in_state, s)
    if before == (in_params, in_state, [marks for _, marks in messages]):
      shapes, marks = zip(*messages, strict=True) if messages else ((), ())
      return Replication(in_params, in_state, marks), shapes


def axes(replication: Tree) -> Tree:
  """Return the `in_axes` or `out_axes` of a vmap over a device's workers."""
  return jax.tree.map(lambda per_worker: 0 if per_worker else None, replication)


def pack(tree: Tree, replication: Tree) -> Tree:
  """Add an axis to shared leaves, [...] -> [1, ...], so that all leaves can be sharded over the devices."""
  return jax.tree.map(lambda per_worker, x: x if per_worker else x[None], replication, tree)


def unpack(tree: Tree, replication: Tree) -> Tree:
  """Remove the axis that `pack` adds to shared leaves, [1, ...] -> [...]."""
  return jax.tree.map(lambda per_worker, x: x if per_worker else x[0], replication, tree)


class _Trace:
  """Traces one worker's functions, batched over the workers of a device."""

  def __init__(self, workers: Workers):
    self._workers = workers

  def __call__(self, fn: Callable[..., Tree], *marked: tuple[Tree, Tree]) -> tuple[Any, Any]:
    """Return (shapes, marks) of the result of `fn`; a mark is True if its leaf may differ between workers.

    marked: (shapes, marks) of each argument of `fn`.
    """
    differing: list[Tree] = []

    @jax.custom_batching.custom_vmap
    def note(result: Tree) -> Tree:
      return result

    @note.def_vmap
    def _(axis_size: int, differs: Any, result: Tree) -> tuple[Tree, Tree]:
      del axis_size
      differing.append(differs[0])
      return result, differs[0]

    virtual = self._workers.virtual
    in_axes = tuple(axes(marks) for _, marks in marked)
    args = [self._batched(shapes, marks) for shapes, marks in marked]
    lifted = jax.vmap(lambda *a: note(fn(*a)), in_axes, 0, axis_name=AXIS[1], axis_size=virtual)
    shapes = jax.make_jaxpr(lifted, axis_env=[(AXIS[0], self._workers.rows)], return_shape=True)(*args)[1]
    one = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape[1:], x.dtype), shapes)
    return one, differing[0] if differing else self.mark(one, False)

  def mark(self, tree: Tree, differs: bool) -> Tree:
    """Return a tree with the same mark for each leaf."""
    return jax.tree.map(lambda _: differs, tree)

  def join(self, a: Tree, b: Tree) -> Tree:
    """Combine two trees of marks by a logical or."""
    return jax.tree.map(lambda x, y: x or y, a, b)

  def _batched(self, tree: Tree, marks: Tree) -> Tree:
    virtual = self._workers.virtual
    return jax.tree.map(
      lambda per_worker, x: jax.ShapeDtypeStruct((virtual, *x.shape), x.dtype) if per_worker else x, marks, tree
    )
