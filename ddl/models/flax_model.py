"""Flax modules as `ddl.api.Model`: objective, figures per example, statistics, dropout."""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import linen as nn

from ddl.api import Batch, Model, Tree


def from_flax(module: nn.Module, meta: Mapping[str, Any], *, dense: bool) -> Model:
  """Return a model from a Flax linen module whose call is module(x, train) -> [batch, ..., num_outputs].

  Training loss: the mean over examples (language: and tokens) of -log softmax(z)_y, or for regression of
  1/2 |z - y|^2. Parameters are created in JAX's default float type (float32, float64 under
  jax_enable_x64), and floating inputs are cast to the parameters' type. The key of the loss feeds dropout alone.

  Args:
    module: the network; collections other than "params" become `extra`, updated in training only.
    meta: the data's `Data.meta` (task, shape of one x, num_outputs).
    dense: whether its gradients keep their speed under vmap and scan on a CPU.

  Returns:
    A `Model`; metrics are "loss" [batch] and, but for regression, "accuracy" [batch] (language: mean over tokens).
  """
  task = meta["task"]

  def init(key: jax.Array) -> tuple[Tree, Tree]:
    x = jnp.zeros((1, *meta["shape"]), jnp.int32 if task == "language" else jnp.float32)
    variables = jax.tree.map(lambda a: a.astype(jnp.result_type(float)), module.init(key, x, train=False))
    return variables["params"], {name: tree for name, tree in variables.items() if name != "params"}

  def losses(out: jax.Array, y: jax.Array) -> jax.Array:
    if task == "regression":
      residual = out - jnp.asarray(y, out.dtype).reshape(out.shape)
      return 0.5 * jnp.sum(residual**2, axis=-1)
    return optax.softmax_cross_entropy_with_integer_labels(out, jnp.asarray(y, jnp.int32))

  def apply(params: Tree, extra: Tree, batch: Batch, **kwargs: Any) -> Any:
    x = jnp.asarray(batch["x"], jnp.int32 if task == "language" else jax.tree.leaves(params)[0].dtype)
    # Flax's normalisations use promote_types(dtype, float32), which strict promotion refuses in float64.
    with jax.numpy_dtype_promotion("standard"):
      return module.apply({"params": params, **extra}, x, **kwargs)

  def loss(params: Tree, extra: Tree, batch: Batch, key: jax.Array) -> tuple[jax.Array, Tree]:
    out, extra = apply(params, extra, batch, train=True, rngs={"dropout": key}, mutable=list(extra))
    return losses(out, batch["y"]).mean(), extra

  def metrics(params: Tree, extra: Tree, batch: Batch) -> Mapping[str, jax.Array]:
    out = apply(params, extra, batch, train=False)
    figures = {"loss": losses(out, batch["y"])}
    if task != "regression":
      hit = jnp.argmax(out, axis=-1).astype(jnp.int32) == jnp.asarray(batch["y"], jnp.int32)
      figures["accuracy"] = hit.astype(out.dtype)
    return {name: value.reshape(value.shape[0], -1).mean(axis=1) for name, value in figures.items()}

  return Model(init, loss, metrics, dense)


def require(name: str, meta: Mapping[str, Any], *, text: bool = False, image: bool = False, side: int = 1) -> None:
  """Check that a model takes this data: text, arrays, or images [height, width, channels] of side x side or more.

  Raises:
    ValueError: if it does not; the line names the models that fit.
  """
  shape, language = tuple(meta["shape"]), meta["task"] == "language"
  what = f"{meta['task']} data with x of shape {list(shape)}"
  others = "transformer" if language else "linear, mlp"
  if not language and not image and len(shape) == 3:
    others = "linear, mlp, lenet, resnet20"
  if text != language:
    kind = "token sequences" if text else "numeric arrays"
    raise ValueError(f"{name}: takes {kind}, not {what}; models that fit: {others}")
  if image and len(shape) != 3:
    raise ValueError(f"{name}: takes images [height, width, channels], not {what}; models that fit: {others}")
  if image and min(shape[:2]) < side:
    raise ValueError(f"{name}: needs images of {side} x {side} or more, not {what}; models that fit: {others}")
