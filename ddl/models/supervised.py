"""Build a `ddl.api.Model` from a network: the training loss for the data's task, and metrics per example."""

import math
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import optax

from ddl.api import Batch, Model, Tree
from ddl.errors import OptionError
from ddl.precision import wide

TESTED = 2**15, 2**28  # maximum numbers of tokens and logits that text metrics evaluate at a time
MANY = 100  # minimum number of classes for a top-5 accuracy
Apply = Callable[[Tree, Tree, jax.Array, bool, Any], tuple[jax.Array, Tree]]


def supervised(init: Callable[[Any], tuple[Tree, Tree]], apply: Apply, meta: Mapping[str, Any], dense: bool) -> Model:
  """Build a model from a network, with the loss and metrics for the task of the data.

  The training loss is the mean over examples (and tokens, for text) of -log softmax(z)_y; for regression, of
  1/2 |z - y|^2. Parameters are created in JAX's default float type (float32, or float64 under jax_enable_x64), and
  floating-point inputs are cast to the parameters' type.

  The metrics are "loss" [batch] and, except for regression, "accuracy" [batch]; for classification with at least 100
  classes also "accuracy_top5" [batch]. For text they are means over tokens, computed on parts of the batch to bound the
  memory.

  Args:
    init: key -> (params, extra).
    apply: (params, extra, x [batch, ...], train, key) -> (z [batch, ..., num_outputs], extra); without training,
      key is None.
    meta: the metadata of the data set (`Data.meta`).
    dense: whether gradients stay fast under vmap and scan on a CPU (`Model.dense`).
  """
  task = meta["task"]

  def typed_init(key: jax.Array) -> tuple[Tree, Tree]:
    return jax.tree.map(lambda a: a.astype(jnp.result_type(float)), init(key))

  def losses(out: jax.Array, y: jax.Array) -> jax.Array:
    out = out.astype(wide(out.dtype))  # a softmax in bfloat16 is too inaccurate
    _check_targets(task, out, y)
    if task == "regression":
      residual = out - jnp.asarray(y, out.dtype).reshape(out.shape)
      return 0.5 * jnp.sum(residual**2, axis=-1)
    return optax.softmax_cross_entropy_with_integer_labels(out, jnp.asarray(y, jnp.int32))

  def outputs(params: Tree, extra: Tree, batch: Batch, train: bool, key: Any) -> tuple[jax.Array, Tree]:
    if special := [key for key in batch if "mask" in key or "weight" in key]:
      raise OptionError(
        "batches", "dicts without masks or weights", f"one with '{special[0]}'", "This model's loss would ignore it."
      )
    x = jnp.asarray(batch["x"], jnp.int32 if task == "language" else jax.tree.leaves(params)[0].dtype)
    # Normalization layers use promote_types(dtype, float32), which strict promotion rejects in float64.
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
      figures["accuracy"] = hit.astype(wide(out.dtype))
    if task == "classification" and meta["num_outputs"] >= MANY:
      best = jax.lax.top_k(out, 5)[1] == jnp.asarray(batch["y"], jnp.int32)[:, None]
      figures["accuracy_top5"] = best.any(axis=-1).astype(wide(out.dtype))
    return {name: value.reshape(value.shape[0], -1).mean(axis=1) for name, value in figures.items()}

  def in_parts(params: Tree, extra: Tree, batch: Batch) -> Mapping[str, jax.Array]:
    size, length = len(batch["y"]), math.prod(batch["y"].shape[1:])
    part = max(1, min(TESTED[0] // length, TESTED[1] // (length * meta["num_outputs"])))
    if size <= part:
      return metrics(params, extra, batch)
    count = -(-size // part)

    def cut(x: Any) -> jax.Array:
      return jnp.pad(x, [(0, count * part - size), *[(0, 0)] * (x.ndim - 1)]).reshape(count, part, *x.shape[1:])

    parts = {name: cut(x) for name, x in batch.items()}
    figures = jax.lax.map(lambda part: metrics(params, extra, part), parts)
    return {name: value.reshape(-1)[:size] for name, value in figures.items()}

  return Model(typed_init, loss, in_parts if task == "language" else metrics, dense)


def _check_targets(task: str, out: jax.Array, y: Any) -> None:
  """Raise OptionError if y does not have the shape and type that outputs [batch, ..., num_outputs] need."""
  shape, wanted = tuple(y.shape), out.shape[:-1]
  noun = {"regression": "targets", "language": "tokens"}.get(task, "labels")
  if task == "regression":
    if shape != out.shape and not (shape == wanted and out.shape[-1] == 1):
      raise OptionError(f"{noun} y", f"of the outputs' shape {list(out.shape)}", list(shape))
  elif shape == out.shape and shape != wanted:
    raise OptionError(
      f"{noun} y",
      f"class numbers of shape {list(wanted)}",
      f"shape {list(shape)}",
      "If y is one-hot, use y.argmax(axis=-1).",
    )
  elif shape != wanted:
    raise OptionError(f"{noun} y", f"of shape {list(wanted)}", list(shape))
  elif not jnp.issubdtype(y.dtype, jnp.integer):
    raise OptionError(f"{noun} y", "integers", y.dtype)


def example(meta: Mapping[str, Any]) -> jax.Array:
  """Return a batch of one input, [1, ...], filled with zeros."""
  return jnp.zeros((1, *meta["shape"]), jnp.int32 if meta["task"] == "language" else jnp.float32)
