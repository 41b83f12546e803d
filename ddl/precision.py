"""Mixed precision, and flattening of trees into vectors.

Forward and backward passes run in bfloat16, and parameters stay in float32 (arXiv 1710.03740, arXiv 1905.12322).
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree

from ddl.api import Batch, Model, Tree

PRECISIONS = ("float32", "bfloat16")


def cast(tree: Tree, dtype: Any) -> Tree:
  """Cast a tree's floating-point arrays to `dtype`."""
  return jax.tree.map(lambda x: x.astype(dtype) if jnp.issubdtype(x.dtype, jnp.floating) else x, tree)


def wide(*dtypes: Any) -> Any:
  """Return the widest of these types, at least float32."""
  return max(jnp.dtype("float32"), *dtypes, key=lambda dtype: dtype.itemsize)


def ravel(tree: Tree) -> tuple[jax.Array, Callable[[Any], Tree]]:
  """Concatenate the arrays into one vector of their common type; return it and the inverse function.

  The inverse restores shapes and types.
  """
  with jax.numpy_dtype_promotion("standard"):
    return ravel_pytree(tree)


def in_bfloat16(model: Model) -> Model:
  """Return a model whose forward and backward passes run in bfloat16.

  Loss scaling is not needed, because bfloat16 has the range of float32.

  Parameters, gradients and optimizer state keep their type, as do the messages between workers. All-gathers of
  parameters and reductions of gradients among the devices of one worker use bfloat16. The loss and non-trained state
  (batch statistics) keep their types too; metrics are float32. The model receives the non-trained state without a cast.
  """

  def low(x: Tree) -> Tree:
    return cast(x, jnp.bfloat16)

  def loss(params: Tree, extra: Tree, batch: Batch, key: Any) -> tuple[Any, Tree]:
    kind = wide(jax.tree.leaves(params)[0].dtype)
    value, after = model.loss(low(params), extra, low(dict(batch)), key)
    return value.astype(kind), jax.tree.map(lambda new, old: new.astype(old.dtype), after, extra)

  def metrics(params: Tree, extra: Tree, batch: Batch) -> Any:
    assert model.metrics
    return cast(model.metrics(low(params), extra, low(dict(batch))), jnp.float32)

  tested = metrics if model.metrics else None
  return model._replace(loss=loss, metrics=tested, compute_dtype=jnp.bfloat16)
