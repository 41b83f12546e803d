"""Linear models and multi-layer perceptrons."""

import math
from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import Any

import jax
from flax import linen as nn

from ddl.api import Model
from ddl.models.modules import MOST_LAYERS, from_flax, require, require_size
from ddl.ranges import Fraction, PositiveInt, checked
from ddl.sharding import WHOLE, columns, named, pairs


class _MLP(nn.Module):
  outputs: int
  hidden: tuple[int, ...] = ()
  dropout: float = 0.0
  activation: Callable[[jax.Array], jax.Array] = nn.relu
  bias: bool = True
  kernel_init: Any = nn.initializers.lecun_normal()

  @nn.compact
  def __call__(self, x: jax.Array, train: bool) -> jax.Array:
    def dense(x: jax.Array, i: int, width: int) -> jax.Array:
      layer = nn.Dense(width, self.bias, kernel_init=self.kernel_init, name=f"Dense_{i}")
      return named(layer(named(x, f"Dense_{i}/in")), f"Dense_{i}/out")

    x = x.reshape(x.shape[0], -1)
    for i, width in enumerate(self.hidden):
      x = nn.Dropout(self.dropout, deterministic=not train)(self.activation(dense(x, i, width)))
    return dense(x, len(self.hidden), self.outputs)


def linear(meta: Mapping[str, Any]) -> Model:
  """Build a linear model z = W x + b, initialized to W = 0. Raises ValueError for text.

  For regression b is omitted, so that W is comparable to meta["optimum"], of shape [features, outputs].
  """
  require("linear", meta)
  bias = meta["task"] != "regression"
  return from_flax(_MLP(meta["num_outputs"], bias=bias, kernel_init=nn.initializers.zeros), meta, dense=True)


@checked
def mlp(meta: Mapping[str, Any], *, hidden: tuple[PositiveInt, ...] = (64, 64), dropout: Fraction = 0.0) -> Model:
  """Build a multi-layer perceptron: x <- dropout(relu(W x + b)) for each hidden width, then z = W x + b.

  Raises ValueError for text, for more than 1000 hidden layers, or if the layers do not fit into memory.
  """
  return _split("mlp", _MLP(meta["num_outputs"], tuple(hidden), dropout), meta, "len(mlp.hidden)", len(hidden))


@checked
def cd_dnn(meta: Mapping[str, Any], *, width: PositiveInt = 2048, layers: PositiveInt = 7) -> Model:
  """Build the speech network of Das et al. 2016, arXiv 1602.06709: x <- sigmoid(W x + b) for each hidden layer.

  It has 45,122,648 parameters for 429 inputs and 9304 classes. Raises ValueError for text, for more than 1000
  hidden layers, or if the layers do not fit into memory.
  """
  hidden = (width,) * min(layers, MOST_LAYERS + 1)  # more layers are an error
  return _split("cd_dnn", _MLP(meta["num_outputs"], hidden, activation=nn.sigmoid), meta, "cd_dnn.layers", layers)


def _split(name: str, module: _MLP, meta: Mapping[str, Any], option: str, layers: int) -> Model:
  """Check the size of an MLP and build its model, with sharding rules that split the layers over a worker's devices.

  option, layers: see `require_size`.
  """
  require(name, meta)
  widths = [math.prod(meta["shape"]), *module.hidden, module.outputs]
  parameters = sum((before + 1) * after for before, after in pairwise(widths))
  require_size(option, layers, parameters)
  names = [f"Dense_{i}" for i in range(len(module.hidden) + 1)]
  rules = {"tensor": pairs(names), "hybrid": columns(names, batch=WHOLE)}
  return from_flax(module, meta, dense=True)._replace(rules=rules)
