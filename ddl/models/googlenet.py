"""GoogLeNet (Szegedy et al. 2014, arXiv 1409.4842): nine modules of four parallel branches."""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn

from ddl.api import Model
from ddl.models.modules import from_flax, require
from ddl.models.sequential import pads
from ddl.ranges import Fraction, checked

# Output channels of the convolutions: 1x1; 1x1 and 3x3; 1x1 and 5x5; 1x1 after the pooling (table 1).
MODULES = {
  "3a": (64, 96, 128, 16, 32, 32),
  "3b": (128, 128, 192, 32, 96, 64),
  "4a": (192, 96, 208, 16, 48, 64),
  "4b": (160, 112, 224, 24, 64, 64),
  "4c": (128, 128, 256, 24, 64, 64),
  "4d": (112, 144, 288, 32, 64, 64),
  "4e": (256, 160, 320, 32, 128, 128),
  "5a": (256, 160, 320, 32, 128, 128),
  "5b": (384, 192, 384, 48, 128, 128),
}
HALVED = ("3b", "4e")  # modules followed by max pooling


class _GoogLeNet(nn.Module):
  outputs: int
  dropout: float

  @nn.compact
  def __call__(self, x: jax.Array, train: bool) -> jax.Array:
    def conv(x: jax.Array, outputs: int, kernel: int, name: str, stride: int = 1) -> jax.Array:
      he = nn.initializers.he_normal()
      return nn.relu(nn.Conv(outputs, (kernel,) * 2, stride, pads(kernel // 2), kernel_init=he, name=name)(x))

    def halved(x: jax.Array) -> jax.Array:
      return nn.max_pool(x, (3, 3), (2, 2), pads(0, 1))

    x = halved(conv(x, 64, 7, "conv1", 2))
    x = halved(conv(conv(x, 64, 1, "conv2_reduce"), 192, 3, "conv2"))
    for name, (one, to3, three, to5, five, pool) in MODULES.items():
      branches = (
        conv(x, one, 1, f"{name}_1x1"),
        conv(conv(x, to3, 1, f"{name}_3x3_reduce"), three, 3, f"{name}_3x3"),
        conv(conv(x, to5, 1, f"{name}_5x5_reduce"), five, 5, f"{name}_5x5"),
        conv(nn.max_pool(x, (3, 3), (1, 1), pads(1)), pool, 1, f"{name}_pool"),
      )
      x = jnp.concatenate(branches, axis=3)
      x = halved(x) if name in HALVED else x
    x = nn.Dropout(self.dropout, deterministic=not train)(x.mean(axis=(1, 2)))
    return nn.Dense(self.outputs, name="classifier")(x)


@checked
def googlenet(meta: Mapping[str, Any], *, dropout: Fraction = 0.4) -> Model:
  """Build GoogLeNet without auxiliary classifiers or local response normalization.

  It has 6,998,552 parameters for 1000 classes. Raises ValueError unless the data is images of 32 x 32 or more.
  """
  require("googlenet", meta, image=True, side=32)
  return from_flax(_GoogLeNet(meta["num_outputs"], dropout), meta)
