"""Decoder-only transformers: pre-norm blocks with causal attention, and GPT-2 as trained by nanoGPT."""

from collections.abc import Mapping
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn
from jax.sharding import PartitionSpec

from ddl.api import Model
from ddl.errors import OptionError
from ddl.models.cpu import dot_general
from ddl.models.modules import from_flax, recomputed, require, require_size
from ddl.ranges import Fraction, PositiveInt, checked
from ddl.sharding import MEMBER, SPLIT, WHOLE, Rules, named

_Dense = partial(nn.Dense, dot_general=dot_general)


class Block(nn.Module):
  """A transformer block: attention, then an MLP with tanh-approximated gelu, each pre-norm with a residual sum."""

  heads: int
  mlp_ratio: int
  dropout: float
  init: Any = nn.initializers.lecun_normal()
  last_init: Any = nn.initializers.lecun_normal()  # initializer of the two layers before the residual sums
  epsilon: float = 1e-6

  @nn.compact
  def __call__(self, x: jax.Array, train: bool) -> jax.Array:
    batch, tokens, width = x.shape
    drop, norm = nn.Dropout(self.dropout, deterministic=not train), partial(nn.LayerNorm, self.epsilon)
    first, last = partial(_Dense, kernel_init=self.init), partial(_Dense, kernel_init=self.last_init)
    qkv = first(3 * width, name="qkv")(norm()(x))
    # Heads come first, so that splitting the columns splits the heads.
    q, k, v = (part[:, :, :, 0] for part in jnp.split(qkv.reshape(batch, tokens, self.heads, 3, -1), 3, axis=3))
    q, k, v = (named(part, "heads") for part in (q, k, v))
    mixed = attend(q, k, v).reshape(batch, tokens, width)
    x = x + drop(named(last(width, name="attended")(mixed), "residual"))
    h = nn.gelu(named(first(self.mlp_ratio * width, name="up")(norm()(x)), "up"))
    return x + drop(named(last(width, name="down")(h), "residual"))


def attend(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
  """Compute causal attention softmax(q k^T / sqrt(d)) v; q, k, v: [batch, tokens, heads, d]."""
  if q.dtype != jnp.float64:
    return jax.nn.dot_product_attention(q, k, v, is_causal=True)
  # jax.nn's implementation computes its softmax in float32.
  scores = jnp.einsum("bqhd,bkhd->bhqk", q * q.shape[-1] ** -0.5, k)
  past = jnp.tril(jnp.ones((1, 1, *scores.shape[2:]), bool))
  return jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(jnp.where(past, scores, -jnp.inf), axis=-1), v)


class Transformer(nn.Module):
  """The network of `transformer` or, with gpt2=True, of `gpt2`, which ties the output layer to the embedding."""

  vocabulary: int
  layers: int
  width: int
  heads: int
  mlp_ratio: int
  dropout: float
  remat: bool = False
  gpt2: bool = False

  @nn.compact
  def __call__(self, x: jax.Array, train: bool) -> jax.Array:
    normal = nn.initializers.normal(0.02)
    # GPT-2 scales down the initial weights of the layers before the residual sums.
    last = nn.initializers.normal(0.02 * (2 * self.layers) ** -0.5)
    inits = {"init": normal, "last_init": last, "epsilon": EPSILON} if self.gpt2 else {}
    positions = self.param("positions", normal, (1, x.shape[1], self.width), jnp.float32)
    tokens = nn.Embed(self.vocabulary, self.width, embedding_init=normal, name="tokens" if self.gpt2 else None)
    x = nn.Dropout(self.dropout, deterministic=not train)(tokens(x) + positions)
    block = recomputed(Block) if self.remat else Block
    for i in range(self.layers):
      x = block(self.heads, self.mlp_ratio, self.dropout, name=f"Block_{i}", **inits)(x, train)
    x = nn.LayerNorm(inits.get("epsilon", 1e-6))(x)
    return named(tokens.attend(x) if self.gpt2 else _Dense(self.vocabulary)(x), "logits")


EPSILON = 1e-5  # of GPT-2's layer normalization


# Split the heads and the width of the MLP, so that the attention and the MLP of a block take one all-reduce each
# (arXiv 1909.08053). Split the output vocabulary if it divides evenly.
TENSOR = Rules(
  params=(
    ("/(qkv|up)/kernel$", PartitionSpec(None, MEMBER)),
    ("/(qkv|up)/bias$", SPLIT),
    ("/(attended|down)/kernel$", SPLIT),
    ("^Dense_0/kernel$", PartitionSpec(None, MEMBER)),
    ("^Dense_0/bias$", SPLIT),
    ("^tokens/embedding$", SPLIT),  # the output layer of `gpt2`
  ),
  activations={
    "heads": PartitionSpec(None, None, MEMBER),
    "up": PartitionSpec(None, None, MEMBER),
    "residual": WHOLE,
    "logits": PartitionSpec(None, None, MEMBER),
  },
  if_even=True,
)


def _transformer(name: str, meta: Mapping[str, Any], network: Transformer) -> Model:
  require(name, meta, text=True)
  layers, width, heads = network.layers, network.width, network.heads
  if width % heads:
    raise OptionError(f"{name}.width", f"divisible by the number of heads ({heads})", width)
  vocabularies = (1 if network.gpt2 else 2) * meta["num_outputs"] * width
  require_size(f"{name}.layers", layers, layers * (4 + 2 * network.mlp_ratio) * width**2 + vocabularies)
  return from_flax(network, meta, dense=True)._replace(rules={"tensor": TENSOR})


@checked
def transformer(
  meta: Mapping[str, Any],
  *,
  layers: PositiveInt = 2,
  width: PositiveInt = 128,
  heads: PositiveInt = 4,
  mlp_ratio: PositiveInt = 4,
  dropout: Fraction = 0.0,
  remat: bool = False,
) -> Model:
  """Build a decoder-only transformer with logits [batch, tokens, vocabulary].

  Each layer computes x <- x + attention(norm(x)), x <- x + W2 gelu(W1 norm(x)), with the tanh form of gelu.
  meta["shape"] sets the number of positions.

  Args:
    meta: metadata of text.
    layers: number of blocks.
    width: embedding size, a multiple of `heads`.
    heads: number of attention heads.
    mlp_ratio: width of the MLP divided by `width`.
    dropout: dropout rate after the embedding, attention and MLP.
    remat: whether to rematerialize blocks in the backward pass, which saves memory but takes more time.

  Raises:
    ValueError: if the data is not text, `heads` does not divide `width`, there are more than 1000 layers, or the
      network does not fit into memory.
  """
  network = Transformer(meta["num_outputs"], layers, width, heads, mlp_ratio, dropout, remat)
  return _transformer("transformer", meta, network)


@checked
def gpt2(
  meta: Mapping[str, Any],
  *,
  layers: PositiveInt = 12,
  width: PositiveInt = 768,
  heads: PositiveInt = 12,
  dropout: Fraction = 0.0,
  remat: bool = False,
) -> Model:
  """Build GPT-2, by default with 124,439,808 parameters for 1,024 positions and 50,257 tokens.

  The larger versions have (layers, width, heads) = (24, 1024, 16) with 355M parameters, (36, 1280, 20) with 774M, and
  (48, 1600, 25) with 1558M. The initial weights of the layers before the residual sums are scaled by
  1 / sqrt(2 layers). Arguments and errors are those of `transformer`.
  """
  return _transformer("gpt2", meta, Transformer(meta["num_outputs"], layers, width, heads, 4, dropout, remat, True))
