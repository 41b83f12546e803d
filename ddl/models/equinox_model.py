"""Equinox modules as `ddl.api.Model`; Equinox is imported only by who uses it."""

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import jax

from ddl.api import Model, Tree
from ddl.models.supervised import supervised


def from_equinox(make: Callable[[Any], Any], meta: Mapping[str, Any], *, dense: bool = False) -> Model:
  """Return a model from a function key -> Equinox module, whose call on ONE example is module(x) -> [..., num_outputs].

  Floating-point arrays are trained, as {path in the module: array}. A call that takes `key` gets one per example in
  training, and inference mode in tests. The loss and the other arguments are those of `supervised`.

  Raises:
    ValueError: for a module with state (`equinox.nn.State`), which this does not carry.
  """
  import equinox as eqx

  def split(key: Any) -> tuple[Any, Any]:
    module = make(key)
    if any(isinstance(each, eqx.nn.StateIndex) for each in jax.tree.leaves(module, is_leaf=_is_index(eqx))):
      raise ValueError("from_equinox: the module has state (such as BatchNorm); use layers without, such as GroupNorm")
    return eqx.partition(module, eqx.is_inexact_array)

  def named(params: Any) -> dict[str, Any]:
    return {jax.tree_util.keystr(path).lstrip("."): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(params)}

  def init(key: jax.Array) -> tuple[Tree, Tree]:
    return named(split(key)[0]), {}

  def apply(params: Tree, extra: Tree, x: jax.Array, train: bool, key: Any) -> tuple[jax.Array, Tree]:
    shapes, static = eqx.filter_eval_shape(split, jax.random.key(0))
    names, structure = list(named(shapes)), jax.tree.structure(shapes)
    module = eqx.combine(jax.tree.unflatten(structure, [params[name] for name in names]), static)
    if not train or "key" not in inspect.signature(module.__call__).parameters:
      return jax.vmap(eqx.nn.inference_mode(module, value=not train))(x), extra
    return jax.vmap(lambda each, own: module(each, key=own))(x, jax.random.split(key, len(x))), extra

  return supervised(init, apply, meta, dense)


def _is_index(eqx: Any) -> Callable[[Any], bool]:
  return lambda each: isinstance(each, eqx.nn.StateIndex)
