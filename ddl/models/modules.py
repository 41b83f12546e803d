"""Adapters from Flax and Equinox modules to `ddl.api.Model`, and checks of data and model size."""

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen, nnx

from ddl import memory
from ddl.api import Model, Tree, channels_first
from ddl.errors import OptionError
from ddl.models.supervised import example, supervised

MOST_LAYERS = 1000  # deeper networks take an hour to trace and compile


def from_flax(module: linen.Module, meta: Mapping[str, Any], *, dense: bool = False) -> Model:
  """Build a model from a linen module that is called as module(x, train) -> [batch, ..., num_outputs].

  Collections other than "params" become `extra`, updated only in training. Dropout uses the loss's `key`. The loss
  and the other arguments are those of `supervised`.
  """

  def init(key: jax.Array) -> tuple[Tree, Tree]:
    variables = module.init(key, example(meta), train=False)
    return variables["params"], {name: tree for name, tree in variables.items() if name != "params"}

  def apply(params: Tree, extra: Tree, x: jax.Array, train: bool, key: Any) -> tuple[jax.Array, Tree]:
    variables = {"params": params, **extra}
    if not train:
      return module.apply(variables, x, train=False), extra  # pyright: ignore[reportReturnType]
    return module.apply(variables, x, train=True, rngs={"dropout": key}, mutable=list(extra))

  return supervised(init, apply, meta, dense)


def from_nnx(make: Callable[[nnx.Rngs], nnx.Module], meta: Mapping[str, Any], *, dense: bool = False) -> Model:
  """Build a model from a function that creates an nnx module, called as module(x) -> [batch, ..., num_outputs].

  `nnx.Param`s are trained; other variables (batch statistics) become `extra`, updated only in training. Random streams
  (dropout) restart from the loss's key at each step. `module.train()` and `module.eval()` switch modes. The loss and
  the other arguments are those of `supervised`.
  """

  def parts(module: nnx.Module) -> Any:
    return nnx.split(module, nnx.Param, nnx.RngState, ...)

  with jax.numpy_dtype_promotion("standard"):
    shapes = nnx.eval_shape(lambda: make(nnx.Rngs(0)))
  shapes.eval()
  tested, params_shape, rng_shape, extra_shape = parts(shapes)
  shapes.train()
  trained = parts(shapes)[0]

  def init(key: jax.Array) -> tuple[Tree, Tree]:
    with jax.numpy_dtype_promotion("standard"):
      _, params, _, extra = parts(make(nnx.Rngs(key)))
    return nnx.to_pure_dict(params), nnx.to_pure_dict(extra)

  def streams(key: Any) -> Any:
    keys = iter(range(len(jax.tree.leaves(rng_shape))))
    start = jax.random.key(0) if key is None else key

    def fresh(shape: Any) -> jax.Array:
      number = next(keys)
      if jnp.issubdtype(shape.dtype, jax.dtypes.prng_key):
        return jax.random.fold_in(start, number)
      return jnp.zeros(shape.shape, shape.dtype)

    return jax.tree.map(fresh, rng_shape)

  def apply(params: Tree, extra: Tree, x: jax.Array, train: bool, key: Any) -> tuple[jax.Array, Tree]:
    states = [jax.tree.map(lambda shape: shape, shapes) for shapes in (params_shape, extra_shape)]
    for state, values in zip(states, (params, extra), strict=True):
      nnx.replace_by_pure_dict(state, values)
    module: Any = nnx.merge(trained if train else tested, states[0], streams(key), states[1])
    out = module(x)
    return out, nnx.to_pure_dict(parts(module)[3]) if train else extra

  return supervised(init, apply, meta, dense)


def recomputed(block: type[linen.Module]) -> Any:
  """Wrap a module called as block(x, train) to recompute its activations in the backward pass (arXiv 1604.06174)."""
  return linen.remat(block, static_argnums=(2,))


def require_size(option: str, layers: int, parameters: int) -> None:
  """Raise ValueError if a network does not fit into memory or is too deep; this check does not trace the network.

  Args:
    option: what determines the number of layers, for errors, such as "gpt2.layers".
    layers: its value, at most MOST_LAYERS.
    parameters: a lower bound on the number of parameters, in float32.
  """
  memory.require(4 * parameters, f"a network with {option}={layers} ({parameters:,} parameters)")
  if layers > MOST_LAYERS:
    raise OptionError(option, f"at most {MOST_LAYERS}", layers)


def require(name: str, meta: Mapping[str, Any], *, text: bool = False, image: bool = False, side: int = 1) -> None:
  """Check that a model accepts this data: text, arrays, or images [height, width, channels] of at least side x side.

  Raises OptionError otherwise. Its advice lists models that accept the data, or says how to move the channels.
  """
  shape, language = tuple(meta["shape"]), meta["task"] == "language"
  what, others = f"{meta['task']} data with x of shape {list(shape)}", "linear, mlp"
  if language or (len(shape) == 3 and not image):
    others = "transformer, gpt2" if language else "linear, mlp, lenet, resnet20"
  if image and not language and channels_first(shape):
    raise OptionError(
      "images", "of shape [height, width, channels]", list(shape), "Move the channels with np.moveaxis(x, 1, -1)."
    )
  if text != language or (image and (len(shape) != 3 or min(shape[:2]) < side)):
    images = f"images [height, width, channels] of {side} x {side} or more"
    kind = "token sequences" if text else images if image else "numeric arrays"
    raise OptionError(f"data of {name}", kind, what, f"Models that fit: {others}.")


def from_equinox(make: Callable[[Any], Any], meta: Mapping[str, Any], *, dense: bool = False) -> Model:
  """Build a model from `make(key)`, which returns an Equinox module.

  The module is called on ONE example: module(x) -> [..., num_outputs]. Its floating-point arrays are trained, as {path
  in the module: array}. A module that takes `key` gets one per example in training. In evaluation, modules run in
  inference mode, without a key. The loss and the other arguments are those of `supervised`. Initializing the model
  raises OptionError if the module has state (`equinox.nn.State`).
  """
  import equinox as eqx

  def is_state(leaf: Any) -> bool:
    return isinstance(leaf, eqx.nn.StateIndex)

  def split(key: Any) -> tuple[Any, Any]:
    module = make(key)
    if any(map(is_state, jax.tree.leaves(module, is_leaf=is_state))):
      raise OptionError(
        "the module of from_equinox",
        "stateless",
        "one with equinox.nn.State",
        "For example, replace BatchNorm with GroupNorm.",
      )
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
    return jax.vmap(lambda row, row_key: module(row, key=row_key))(x, jax.random.split(key, len(x))), extra

  return supervised(init, apply, meta, dense)
