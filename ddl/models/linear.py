"""Linear model: least squares on regression data, softmax regression on classes."""

from collections.abc import Mapping
from typing import Any

import jax
from flax import linen as nn

from ddl.api import Model
from ddl.models.flax_model import from_flax, require


class _Linear(nn.Module):
  outputs: int
  bias: bool

  @nn.compact
  def __call__(self, x: jax.Array, train: bool) -> jax.Array:
    del train
    x = x.reshape(x.shape[0], -1)
    return nn.Dense(self.outputs, use_bias=self.bias, kernel_init=nn.initializers.zeros)(x)


def linear(meta: Mapping[str, Any]) -> Model:
  """z = W x + b from W = 0; regression has no b, so that W is comparable to meta["optimum"] [features, outputs].

  Raises:
    ValueError: if the data is text.
  """
  require("linear", meta)
  return from_flax(_Linear(meta["num_outputs"], meta["task"] != "regression"), meta, dense=True)
