"""A network as `ddl.api.Model`: its objective by the task of the data, and figures per example."""

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import optax

from ddl.api import Batch, Model, Tree

Apply = Callable[[Tree, Tree, jax.Array, bool, Any], tuple[jax.Array, Tree]]


def supervised(init: Callable[[Any], tuple[Tree, Tree]], apply: Apply, meta: Mapping[str, Any], dense: bool) -> Model:
  """Return the model of a network.

  Training loss: the mean over examples (language: and tokens) of -log softmax(z)_y, or for regression of
  1/2 |z - y|^2. Parameters are created in JAX's default float type (float32, float64 under
  jax_enable_x64), and floating inputs are cast to the parameters' type.

  Args:
    init: key -> (params, extra).
    apply: (params, extra, x [batch, ...], train, key) -> (z [batch, ..., num_outputs], extra); key: None in tests.
    meta: the data's `Data.meta` (task, shape of one x, num_outputs).
    dense: whether its gradients keep their speed under vmap and scan on a CPU.

  Returns:
    A `Model`; metrics are "loss" [batch] and, but for regression, "accuracy" [batch] (language: mean over tokens).
  """
  task = meta["task"]

  def typed_init(key: jax.Array) -> tuple[Tree, Tree]:
    return jax.tree.map(lambda a: a.astype(jnp.result_type(float)), init(key))

  def losses(out: jax.Array, y: jax.Array) -> jax.Array:
    if task == "regression":
      residual = out - jnp.asarray(y, out.dtype).reshape(out.shape)
      return 0.5 * jnp.sum(residual**2, axis=-1)
    return optax.softmax_cross_entropy_with_integer_labels(out, jnp.asarray(y, jnp.int32))

  def outputs(params: Tree, extra: Tree, batch: Batch, train: bool, key: Any) -> tuple[jax.Array, Tree]:
    x = jnp.asarray(batch["x"], jnp.int32 if task == "language" else jax.tree.leaves(params)[0].dtype)
    # The normalisations of libraries use promote_types(dtype, float32), which strict promotion refuses in float64.
    with jax.numpy_dtype_promotion("standard"):
      return apply(params, extra, x, train, key)

  def loss(params: Tree, extra: Tree, batch: Batch, key: jax.Array) -> tuple[jax.Array, Tree]:
    out, extra = outputs(params, extra, batch, True, key)
    return losses(out, batch["y"]).mean(), extra

  def metrics(params: Tree, extra: Tree, batch: Batch) -> Mapping[str, jax.Array]:
    out, _ = outputs(params, extra, batch, False, None)
    figures = {"loss": losses(out, batch["y"])}
    if task != "regression":
      hit = jnp.argmax(out, axis=-1).astype(jnp.int32) == jnp.asarray(batch["y"], jnp.int32)
      figures["accuracy"] = hit.astype(out.dtype)
    return {name: value.reshape(value.shape[0], -1).mean(axis=1) for name, value in figures.items()}

  return Model(typed_init, loss, metrics, dense)


def example(meta: Mapping[str, Any]) -> jax.Array:
  """Return one x of the data as zeros: [1, ...]."""
  return jnp.zeros((1, *meta["shape"]), jnp.int32 if meta["task"] == "language" else jnp.float32)
