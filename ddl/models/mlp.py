"""Multi-layer perceptron with relu."""

from collections.abc import Mapping
from typing import Any

import jax
from flax import linen as nn

from ddl.api import Model
from ddl.models.flax_model import from_flax, require


class _MLP(nn.Module):
  outputs: int
  hidden: tuple[int, ...]
  dropout: float

  @nn.compact
  def __call__(self, x: jax.Array, train: bool) -> jax.Array:
    x = x.reshape(x.shape[0], -1)
    for width in self.hidden:
      x = nn.relu(nn.Dense(width)(x))
      x = nn.Dropout(self.dropout, deterministic=not train)(x)
    return nn.Dense(self.outputs)(x)


def mlp(meta: Mapping[str, Any], *, hidden: tuple[int, ...] = (64, 64), dropout: float = 0.0) -> Model:
  """x <- dropout(relu(W x + b)) for each hidden width, then z = W x + b.

  Raises:
    ValueError: if the data is text.
  """
  require("mlp", meta)
  return from_flax(_MLP(meta["num_outputs"], tuple(hidden), dropout), meta, dense=True)
