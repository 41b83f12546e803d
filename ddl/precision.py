"""Types of numbers: a loss in bfloat16 from parameters in float32 (arXiv 1710.03740, 1905.12322), mixed ones packed."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree

from ddl.api import Batch, Model, Tree

PRECISIONS = ("float32", "bfloat16")


def cast(tree: Tree, dtype: Any) -> Tree:
  """Return the tree with its floating-point arrays in this type."""
  return jax.tree.map(lambda x: x.astype(dtype) if jnp.issubdtype(x.dtype, jnp.floating) else x, tree)


def wide(*dtypes: Any) -> Any:
  """Return the widest of these types, float32 at least."""
  return max(jnp.dtype("float32"), *dtypes, key=lambda dtype: dtype.itemsize)


def ravel(tree: Tree) -> tuple[jax.Array, Callable[[Any], Tree]]:
  """Return the arrays as one vector of the type that holds them all, and the inverse, which gives each its own type."""
  with jax.numpy_dtype_promotion("standard"):
    return ravel_pytree(tree)


def in_bfloat16(model: Model) -> Model:
  """Return the model with forward and backward pass in bfloat16, whose range is float32's: no loss scaling.

  Parameters, their gradients and the optimizer's state keep their type, in which workers send their messages too;
  what the members of a worker gather of parameters, and reduce of gradients, is in bfloat16. So do the loss, figures
  and the non-trained state (batch statistics), of which the latter is handed to the loss as it is.
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
