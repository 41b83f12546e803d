"""The local step of every runtime: loss, gradient, update."""

from collections.abc import Callable
from typing import Any

import jax

from ddl.api import Model, Tree

Local = Callable[[Tree, Tree, Tree], tuple[Tree, Tree]]  # (grads, state, params) -> (params, state)


def gradient_of(model: Model) -> Callable[..., tuple[tuple[Any, Tree], Tree]]:
  """(params, extra, batch, key) -> ((loss, extra), grads)."""
  return jax.value_and_grad(model.loss, has_aux=True)


def make_local_step(model: Model, local: Local) -> Callable[[Any, Any], tuple[Any, Any]]:
  """step((params, state, extra), (batch, key)) -> ((params, state, extra), loss), as `lax.scan` takes it."""
  gradient = gradient_of(model)

  def step(carry: Any, batch_and_key: Any) -> tuple[Any, Any]:
    params, state, extra = carry
    (loss, extra), grads = gradient(params, extra, *batch_and_key)
    params, state = local(grads, state, params)
    return (params, state, extra), loss

  return step
