"""Compress the means and sums of an algorithm, whose state then also contains the compressor's memories."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, NoReturn

import jax
import jax.numpy as jnp

from ddl.api import Algorithm, Exchange, Tree
from ddl.group import Group, Present


class Compressor(NamedTuple):
  """A compressed mean of lists of arrays over the workers.

  Each worker stores a memory, such as the error that is fed back, for each mean of the algorithm.
  """

  name: str  # the wrapper's name
  init: Callable[[list[Any], Any], Tree]  # (arrays, key) -> memory; uses only shapes and types of the arrays
  mean: Callable[[Group, list[Any], Tree], tuple[list[Any], Tree]]  # (group, arrays, memory) -> (mean, memory)
  models: Callable[[int], bool] = lambda size: False  # parameters per model -> whether means of models are accurate


def unsent(arrays: Sequence[Any]) -> tuple[jax.Array | None, ...]:
  """Return a zero error memory for each array; None for arrays that are sent uncompressed."""
  return tuple(jnp.zeros_like(x) if compressible(x) else None for x in arrays)


def compressible(x: Any) -> bool:
  """Return whether an array is floating-point and not empty; others are sent uncompressed."""
  return x.size > 0 and jnp.issubdtype(x.dtype, jnp.floating)


class ErrorFeedbackState(NamedTuple):
  """A compressor's memories for each function of an algorithm: one per mean or sum, in the order of the calls."""

  local: tuple[Tree, ...]
  launch: tuple[tuple[Tree, ...], ...]  # per exchange, then per mean or sum
  merge: tuple[tuple[Tree, ...], ...]  # per exchange, then per mean or sum


class CompressedState(NamedTuple):
  algorithm: Tree
  memory: ErrorFeedbackState


def _rejected(operation: str) -> Callable[..., NoReturn]:
  """Return a method of `_Lossy` that raises ValueError for the collective `operation`."""

  def rejected(self: "_Lossy", *args: Any) -> NoReturn:
    raise ValueError(f"{self.name}.algorithm must use only `mean` and `sum` of its group, got `{operation}`.")

  return rejected


class _Lossy(Group):
  """A group that raises ValueError for all collectives except means and sums."""

  def __init__(self, group: Group, name: str):
    super().__init__(group.axes)
    if isinstance(group, _Lossy):
      raise ValueError(f"{group.name}.algorithm must be uncompressed, got a compressed algorithm.")
    if isinstance(group, Present):
      raise ValueError(f"the group of {name} must contain all workers, got one with absent workers.")
    self.group, self.name = group, name

  def size(self) -> int:
    return self.group.size()

  def index(self) -> jax.Array:
    return self.group.index()

  max, gather, reduce_scatter, shift, permute = map(_rejected, ("max", "gather", "reduce_scatter", "shift", "permute"))


class _Tracing(_Lossy):
  """A group that records the arrays of each mean and sum instead of communicating."""

  def __init__(self, group: Group, name: str):
    super().__init__(group, name)
    self.arrays: list[list[Any]] = []

  def sum(self, tree: Tree) -> Tree:
    self.arrays.append(jax.tree.leaves(tree))
    return tree

  def partial_sum(self, tree: Tree, member: Any, count: int) -> Tree:
    return self.sum(tree)  # without the mask, which would change the arrays

  mean = sum


class _Compressed(_Lossy):
  """A group that computes means with a compressor; `after` holds the updated memories."""

  def __init__(self, group: Group, compressor: Compressor, memory: tuple[Tree, ...]):
    super().__init__(group, compressor.name)
    self.compressor, self.before, self.after = compressor, memory, ()

  def mean(self, tree: Tree) -> Tree:
    leaves, structure = jax.tree.flatten(tree)
    mean, memory = self.compressor.mean(self.group, leaves, self.before[len(self.after)])
    self.after = (*self.after, memory)
    return structure.unflatten(mean)

  def sum(self, tree: Tree) -> Tree:
    return jax.tree.map(lambda x: x * self.size(), self.mean(tree))


def compressed(algorithm: Algorithm, compressor: Compressor) -> Algorithm:
  """Compress every mean and sum of an algorithm's `local`, `launch` and `merge`; `evaluate` stays exact.

  Each mean has its own memory. `init` calls these functions once, with the params as gradients, to record the means.
  Integer and empty arrays are sent unchanged.

  Raises:
    ValueError: from `init`, if the algorithm uses other collectives, is already compressed, or averages the params
      themselves with a compressor that is not accurate for models; also if workers are absent.
  """

  def init(group: Group, params: Tree, key: Any) -> CompressedState:
    state = algorithm.init(group, params, key)
    keys = iter(jax.random.split(jax.random.fold_in(key, 1), 1 + 2 * len(algorithm.exchanges)))
    model, averaged = {id(x): x.size for x in jax.tree.leaves(params)}, set[int]()

    def memory(fn: Callable[..., Tree], *args: Tree) -> tuple[tuple[Tree, ...], Tree]:
      tracing, memory_key = _Tracing(group, compressor.name), next(keys)
      result = fn(tracing, *args)  # not jax.eval_shape: the memories must vary over the workers in JAX's types
      averaged.update(id(x) for arrays in tracing.arrays for x in arrays)
      return tuple(compressor.init(x, jax.random.fold_in(memory_key, i)) for i, x in enumerate(tracing.arrays)), result

    local, _ = memory(algorithm.local, jax.tree.map(jnp.copy, params), state, params)
    launch, merge = [], []
    for exchange in algorithm.exchanges:
      sends, (message, _) = memory(exchange.launch, state, params)
      launch.append(sends)
      merge.append(memory(exchange.merge, message, state, params)[0])
    if averaged & model.keys() and not compressor.models(sum(model.values())):
      raise ValueError(
        f"{compressor.name}.algorithm must average gradients or differences, got one that averages models. "
        "For example, replace local_sgd by diloco with outer_learning_rate=1 and outer_momentum=0, which is equivalent."
      )
    return CompressedState(state, ErrorFeedbackState(local, tuple(launch), tuple(merge)))

  def local(group: Group, grads: Tree, state: CompressedState, params: Tree) -> tuple[Tree, CompressedState]:
    lossy = _Compressed(group, compressor, state.memory.local)
    params, inner = algorithm.local(lossy, grads, state.algorithm, params)
    return params, CompressedState(inner, state.memory._replace(local=lossy.after))

  def exchange(i: int, e: Exchange) -> Exchange:
    def launch(group: Group, state: CompressedState, params: Tree) -> tuple[Tree, CompressedState]:
      lossy = _Compressed(group, compressor, state.memory.launch[i])
      message, inner = e.launch(lossy, state.algorithm, params)
      memories = (*state.memory.launch[:i], lossy.after, *state.memory.launch[i + 1 :])
      return message, CompressedState(inner, state.memory._replace(launch=memories))

    def merge(group: Group, message: Tree, state: CompressedState, params: Tree) -> tuple[Tree, CompressedState]:
      lossy = _Compressed(group, compressor, state.memory.merge[i])
      params, inner = e.merge(lossy, message, state.algorithm, params)
      memories = (*state.memory.merge[:i], lossy.after, *state.memory.merge[i + 1 :])
      return params, CompressedState(inner, state.memory._replace(merge=memories))

    return e._replace(launch=launch, merge=merge)

  def evaluate(group: Group, state: CompressedState, params: Tree) -> Tree:
    return algorithm.evaluate(group, state.algorithm, params)

  exchanges = tuple(exchange(i, e) for i, e in enumerate(algorithm.exchanges))
  return Algorithm(init, local, exchanges, evaluate, regrouped(algorithm), algorithm.takes_step)


def regrouped(algorithm: Algorithm) -> Callable[[Tree], Tree] | None:
  """Return `regroup` for a wrapper whose state has a field `algorithm`, or None if the algorithm has no `regroup`."""
  regroup = algorithm.regroup
  return regroup and (lambda state: state._replace(algorithm=regroup(state.algorithm)))
