"""Residual network for CIFAR (He et al. 2015, arXiv 1512.03385, section 4.2): 6 n + 2 layers, n = 3 gives 20."""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn

from ddl.api import Model
from ddl.models.cpu import convolve
from ddl.models.flax_model import from_flax, require, require_size
from ddl.ranges import PositiveInt, checked


class _ResNet(nn.Module):
  outputs: int
  width: int
  blocks: int

  @nn.compact
  def __call__(self, x: jax.Array, train: bool) -> jax.Array:
    def conv(x: jax.Array, channels: int, stride: int = 1) -> jax.Array:
      he = nn.initializers.he_normal()
      x = nn.Conv(channels, (3, 3), stride, use_bias=False, kernel_init=he, conv_general_dilated=convolve)(x)
      return nn.BatchNorm(use_running_average=not train, momentum=0.9)(x)

    x = nn.relu(conv(x, self.width))
    for stage in range(3):
      for block in range(self.blocks):
        channels, stride = self.width * 2**stage, 2 if stage and not block else 1
        y = conv(nn.relu(conv(x, channels, stride)), channels)
        # Option A of the paper, without parameters: subsample, and zeros for the new channels.
        x = jnp.pad(x[:, ::stride, ::stride], ((0, 0), (0, 0), (0, 0), (0, channels - x.shape[3])))
        x = nn.relu(x + y)
    return nn.Dense(self.outputs)(x.mean(axis=(1, 2)))


@checked
def resnet20(meta: Mapping[str, Any], *, width: PositiveInt = 16, blocks: PositiveInt = 3) -> Model:
  """Three stages of `blocks` basic blocks with width, 2 width, 4 width channels, batch norm, global mean, dense.

  Shortcuts have no parameters (option A). Running statistics keep 0.9 of the old value per step.

  Raises:
    ValueError: if the data is not images, they are smaller than the two halvings allow, or it exceeds the memory.
  """
  require("resnet20", meta, image=True, side=4)
  alike = 2 * 9 * (1 + 4 + 16) * (blocks - 1) * width**2  # weights of the blocks that keep their stage's width
  require_size("resnet20", alike, blocks=blocks)
  return from_flax(_ResNet(meta["num_outputs"], width, blocks), meta, dense=True)
