"""Residual networks for ImageNet and CIFAR (He et al. 2015, arXiv 1512.03385)."""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn

from ddl import memory
from ddl.api import Model
from ddl.models.cpu import convolve
from ddl.models.modules import from_flax, recomputed, require, require_size
from ddl.models.sequential import pads
from ddl.ranges import PositiveInt, checked

BASIC, BOTTLENECK = 1, 4  # expansion: a block's output channels / channels of its 3x3 convolution


def _conv(
  x: jax.Array, channels: int, kernel: int, stride: int, train: bool, name: str, last: bool = False
) -> jax.Array:
  he = nn.initializers.variance_scaling(2.0, "fan_out", "truncated_normal")
  x = nn.Conv(channels, (kernel,) * 2, stride, pads(kernel // 2), use_bias=False, kernel_init=he, name=name)(x)
  # A block's last batch-norm scale starts at 0, so that only the shortcut contributes (arXiv 1706.02677, 5.1).
  scale = nn.initializers.zeros if last else nn.initializers.ones
  return nn.BatchNorm(not train, momentum=0.9, epsilon=1e-5, scale_init=scale, name=f"{name}_norm")(x)


class _Block(nn.Module):
  """A residual block: two 3x3 convolutions, or 1x1, 3x3 and 1x1, and a shortcut.

  Only the first 3x3 convolution and the shortcut use the stride.
  """

  channels: int
  stride: int
  expansion: int

  @nn.compact
  def __call__(self, x: jax.Array, train: bool) -> jax.Array:
    channels, result = self.channels, self.channels * self.expansion
    if self.expansion == BASIC:
      y = nn.relu(_conv(x, channels, 3, self.stride, train, "a"))
      y = _conv(y, channels, 3, 1, train, "b", last=True)
    else:
      y = nn.relu(_conv(x, channels, 1, 1, train, "a"))
      y = nn.relu(_conv(y, channels, 3, self.stride, train, "b"))
      y = _conv(y, result, 1, 1, train, "c", last=True)
    if x.shape[3] != result or self.stride > 1:
      x = _conv(x, result, 1, self.stride, train, "shortcut")
    return nn.relu(x + y)


class _ResNet(nn.Module):
  outputs: int
  width: int
  depths: tuple[int, ...]
  expansion: int
  remat: bool

  @nn.compact
  def __call__(self, x: jax.Array, train: bool) -> jax.Array:
    x = nn.relu(_conv(x, self.width, 7, 2, train, "conv1"))
    x = nn.max_pool(x, (3, 3), (2, 2), pads(1))
    make = recomputed(_Block) if self.remat else _Block
    for stage, depth in enumerate(self.depths):
      for block in range(depth):
        stride, name = 2 if stage and not block else 1, f"stage{stage + 1}_{block + 1}"
        x = make(self.width * 2**stage, stride, self.expansion, name=name)(x, train)
    head = nn.initializers.normal(0.01)
    return nn.Dense(self.outputs, kernel_init=head, name="classifier")(x.mean(axis=(1, 2)))


def _resnet(
  title: str, meta: Mapping[str, Any], width: int, depths: tuple[int, ...], expansion: int, remat: bool
) -> Model:
  require(title, meta, image=True, side=32)
  weights = sum(9 * depth * (width * 2**stage) ** 2 for stage, depth in enumerate(depths))  # a lower bound
  memory.require(4 * weights, f"{title} of width {width}")
  return from_flax(_ResNet(meta["num_outputs"], width, depths, expansion, remat), meta)


@checked
def resnet18(meta: Mapping[str, Any], *, width: PositiveInt = 64, remat: bool = False) -> Model:
  """Build ResNet-18: 2, 2, 2, 2 blocks of two 3x3 convolutions, 11,689,512 parameters for 1000 classes.

  Shortcuts that change the size are projections (option B). Running statistics keep 0.9 of the old value per step.

  Args:
    meta: metadata of images of at least 32 x 32; ValueError for other data.
    width: channels of the first stage; ValueError if the parameters do not fit into memory.
    remat: whether to rematerialize blocks in the backward pass, which saves memory but takes more time.
  """
  return _resnet("resnet18", meta, width, (2, 2, 2, 2), BASIC, remat)


@checked
def resnet50(meta: Mapping[str, Any], *, width: PositiveInt = 64, remat: bool = False) -> Model:
  """Build ResNet-50: 3, 4, 6, 3 bottleneck blocks, 25,557,032 parameters; otherwise as `resnet18`."""
  return _resnet("resnet50", meta, width, (3, 4, 6, 3), BOTTLENECK, remat)


class _ResNet20(nn.Module):
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
        # Option A of the paper, without parameters: subsample and pad the new channels with zeros.
        x = jnp.pad(x[:, ::stride, ::stride], ((0, 0), (0, 0), (0, 0), (0, channels - x.shape[3])))
        x = nn.relu(x + y)
    return nn.Dense(self.outputs)(x.mean(axis=(1, 2)))


@checked
def resnet20(meta: Mapping[str, Any], *, width: PositiveInt = 16, blocks: PositiveInt = 3) -> Model:
  """Build ResNet-20 for CIFAR: stages of `width`, 2 `width` and 4 `width` channels, with `blocks` basic blocks each.

  Shortcuts have no parameters (option A). Running statistics keep 0.9 of the old value per step. Raises ValueError if
  the data is not images of at least 4 x 4, `blocks` is above 1000, or the blocks do not fit into memory.
  """
  require("resnet20", meta, image=True, side=4)
  weights = 2 * 9 * (1 + 4 + 16) * (blocks - 1) * width**2  # without the first block of each stage
  require_size("resnet20.blocks", blocks, weights)
  return from_flax(_ResNet20(meta["num_outputs"], width, blocks), meta, dense=True)
