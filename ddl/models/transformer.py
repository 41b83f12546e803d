"""Decoder-only language model: pre-norm blocks, learned positions, causal attention, untied output layer."""

from collections.abc import Mapping
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn

from ddl import memory
from ddl.api import Model
from ddl.models.cpu import dot_general
from ddl.models.flax_model import from_flax, require

_Dense = partial(nn.Dense, dot_general=dot_general)


class _Block(nn.Module):
  heads: int
  mlp_ratio: int
  dropout: float

  @nn.compact
  def __call__(self, x: jax.Array, train: bool) -> jax.Array:
    batch, tokens, width = x.shape
    drop = nn.Dropout(self.dropout, deterministic=not train)
    qkv = _Dense(3 * width, name="qkv")(nn.LayerNorm()(x))
    q, k, v = (part.reshape(batch, tokens, self.heads, -1) for part in jnp.split(qkv, 3, axis=-1))
    scores = jnp.einsum("bqhd,bkhd->bhqk", q * q.shape[-1] ** -0.5, k)
    past = jnp.tril(jnp.ones((1, 1, tokens, tokens), bool))
    weights = jax.nn.softmax(jnp.where(past, scores, -jnp.inf), axis=-1)
    mixed = jnp.einsum("bhqk,bkhd->bqhd", weights, v).reshape(batch, tokens, width)
    x = x + drop(_Dense(width, name="attended")(mixed))
    h = nn.gelu(_Dense(self.mlp_ratio * width, name="up")(nn.LayerNorm()(x)))
    return x + drop(_Dense(width, name="down")(h))


class Transformer(nn.Module):
  """The network of `transformer`."""

  vocabulary: int
  layers: int
  width: int
  heads: int
  mlp_ratio: int
  dropout: float

  @nn.compact
  def __call__(self, x: jax.Array, train: bool) -> jax.Array:
    positions = self.param("positions", nn.initializers.normal(0.02), (1, x.shape[1], self.width), jnp.float32)
    x = nn.Embed(self.vocabulary, self.width, embedding_init=nn.initializers.normal(0.02))(x) + positions
    x = nn.Dropout(self.dropout, deterministic=not train)(x)
    for _ in range(self.layers):
      x = _Block(self.heads, self.mlp_ratio, self.dropout)(x, train)
    return _Dense(self.vocabulary)(nn.LayerNorm()(x))


def transformer(
  meta: Mapping[str, Any],
  *,
  layers: int = 2,
  width: int = 128,
  heads: int = 4,
  mlp_ratio: int = 4,
  dropout: float = 0.0,
) -> Model:
  """Per layer x <- x + attention(norm(x)), x <- x + W gelu(W norm(x)); logits [batch, tokens, vocabulary].

  gelu is the tanh form. The number of positions is that of meta["shape"].

  Raises:
    ValueError: if the data is not text, heads do not divide width, or the layers do not fit into the memory.
  """
  require("transformer", meta, text=True)
  if width % heads:
    raise ValueError(f"transformer: width is {width}; invalid: must be a multiple of {heads}, the heads")
  memory.require(4 * layers * (4 + 2 * mlp_ratio) * width**2, f"transformer of {layers} layers of width {width}")
  return from_flax(Transformer(meta["num_outputs"], layers, width, heads, mlp_ratio, dropout), meta, dense=True)
