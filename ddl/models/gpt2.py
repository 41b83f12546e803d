"""GPT-2 (Radford et al. 2019), as nanoGPT trains it: decoder blocks whose embedding is the output layer too."""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn

from ddl.api import Model
from ddl.models.flax_model import from_flax, recomputed, require, require_size
from ddl.models.transformer import TENSOR, Block
from ddl.ranges import Fraction, PositiveInt, checked
from ddl.sharding import named

EPSILON = 1e-5


class _GPT2(nn.Module):
  vocabulary: int
  layers: int
  width: int
  heads: int
  dropout: float
  remat: bool

  @nn.compact
  def __call__(self, x: jax.Array, train: bool) -> jax.Array:
    init, last = nn.initializers.normal(0.02), nn.initializers.normal(0.02 * (2 * self.layers) ** -0.5)
    tokens = nn.Embed(self.vocabulary, self.width, embedding_init=init, name="tokens")
    positions = self.param("positions", init, (1, x.shape[1], self.width), jnp.float32)
    x = nn.Dropout(self.dropout, deterministic=not train)(tokens(x) + positions)
    block = recomputed(Block) if self.remat else Block
    for i in range(self.layers):
      x = block(self.heads, 4, self.dropout, init, last, EPSILON, name=f"Block_{i}")(x, train)
    return named(tokens.attend(nn.LayerNorm(EPSILON)(x)), "logits")


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
  """The 124M model: 124,439,808 parameters for 1,024 positions and 50,257 tokens.

  Others are 24 layers of width 1024 with 16 heads (355M), 36, 1280, 20 (774M) and 48, 1600, 25 (1558M). The results of
  each block's two parts start smaller by sqrt(2 layers). The number of positions is that of meta["shape"].
  remat: compute what is inside of a block again for its gradients instead of keeping it: less memory, more time.

  Raises:
    ValueError: if the data is not text, heads do not divide width, or the layers do not fit into the memory.
  """
  require("gpt2", meta, text=True)
  if width % heads:
    raise ValueError(f"gpt2: width is {width}; invalid: must be a multiple of {heads}, the heads")
  require_size("gpt2", layers * 12 * width**2 + meta["num_outputs"] * width, layers=layers)
  module = _GPT2(meta["num_outputs"], layers, width, heads, dropout, remat)
  return from_flax(module, meta, dense=True)._replace(rules={"tensor": TENSOR})
