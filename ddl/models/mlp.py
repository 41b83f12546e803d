"""Linear models and multi-layer perceptrons."""

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any

import jax
from flax import linen as nn

from ddl.api import Model
from ddl.models.modules import MOST_LAYERS, from_flax, require, require_size
from ddl.ranges import Fraction, PositiveInt, checked
from ddl.sharding import WHOLE, columns, named, pairs


class _Linear(nn.Module):
  outputs: int
  bias: bool

  @nn.compact
  def __call__(self, x: jax.Array, train: bool) -> jax.Array:
    x = x.reshape(x.shape[0], -1)
    return nn.Dense(self.outputs, use_bias=self.bias, kernel_init=nn.initializers.zeros)(x)


def linear(meta: Mapping[str, Any]) -> Model:
  """Build a linear model z = W x + b from W = 0; ValueError for text.

  Regression has no b, so that W is comparable to meta["optimum"] [features, outputs].
  """
  require("linear", meta)
  return from_flax(_Linear(meta["num_outputs"], meta["task"] != "regression"), meta, dense=True)


class _MLP(nn.Module):
  outputs: int
  hidden: tuple[int, ...]
  dropout: float
  activation: Callable[[jax.Array], jax.Array] = nn.relu

  @nn.compact
  def __call__(self, x: jax.Array, train: bool) -> jax.Array:
    x = x.reshape(x.shape[0], -1)
    for i, width in enumerate(self.hidden):
      x = self.activation(_dense(x, i, width))
      x = nn.Dropout(self.dropout, deterministic=not train)(x)
    return _dense(x, len(self.hidden), self.outputs)


def _dense(x: jax.Array, i: int, width: int) -> jax.Array:
  name = f"Dense_{i}"
  return named(nn.Dense(width, name=name)(named(x, f"{name}/in")), f"{name}/out")


@checked
def mlp(meta: Mapping[str, Any], *, hidden: tuple[PositiveInt, ...] = (64, 64), dropout: Fraction = 0.0) -> Model:
  """Build a multi-layer perceptron: x <- dropout(relu(W x + b)) for each hidden width, then z = W x + b.

  ValueError for text, or layers that exceed the memory.
  """
  require("mlp", meta)
  _require_size("mlp", meta, hidden, layers=len(hidden))
  return _split(_MLP(meta["num_outputs"], tuple(hidden), dropout), meta)


@checked
def cd_dnn(meta: Mapping[str, Any], *, width: PositiveInt = 2048, layers: PositiveInt = 7) -> Model:
  """Build the speech network of Das et al. 2016, arXiv 1602.06709: x <- sigmoid(W x + b) for each hidden layer.

  45,122,648 parameters for 429 inputs and 9304 classes. ValueError for text, or layers that exceed the memory.
  """
  require("cd_dnn", meta)
  _require_size("cd_dnn", meta, (width,) * min(layers, MOST_LAYERS + 1), layers=layers)
  return _split(_MLP(meta["num_outputs"], (width,) * layers, 0.0, nn.sigmoid), meta)


def _require_size(name: str, meta: Mapping[str, Any], hidden: Sequence[int], *, layers: int) -> None:
  widths = [math.prod(meta["shape"]), *hidden, meta["num_outputs"]]
  require_size(name, sum((before + 1) * after for before, after in pairwise(widths)), layers=layers)


def _split(module: _MLP, meta: Mapping[str, Any]) -> Model:
  names = [f"Dense_{i}" for i in range(len(module.hidden) + 1)]
  rules = {"tensor": pairs(names), "hybrid": columns(names, batch=WHOLE)}
  return from_flax(module, meta, dense=True)._replace(rules=rules)
