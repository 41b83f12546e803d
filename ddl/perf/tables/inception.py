"""Inception v3 (Szegedy et al. 2015, arXiv 1512.00567), without the auxiliary classifier, on 299x299 images.

Batch normalization has a shift and no scale, as in TF-slim and Keras: a bias. 23,817,352 parameters. The nets of PALEO
leave out the second 3x3 convolution of the reduction to 17x17 (83,040 parameters); the architecture has it.
"""

from typing import Any

from ddl.perf.step.layers import Layer, Table
from ddl.perf.tables import build
from ddl.perf.tables.build import dense

Step = tuple[int, int | tuple[int, int]]  # outputs, kernel


def convolution(name: str, inputs: int, outputs: int, size: int, kernel: Any, stride: int = 1, **more: Any) -> Layer:
  """Followed by a batch normalization, as all of this network."""
  return build.convolution(name, inputs, outputs, size, kernel, stride, normalized=True, **more)


def _branch(name: str, maps: int, size: int, *steps: Step) -> list[Layer]:
  """Convolutions in a row, all of stride 1."""
  layers = []
  for i, (outputs, kernel) in enumerate(steps):
    layers.append(convolution(f"{name}.{i}", maps, outputs, size, kernel))
    maps = outputs
  return layers


def _shrink(name: str, maps: int, size: int, outputs: int) -> Layer:
  """The 3x3 convolution of stride 2 that ends a branch of a reduction."""
  return convolution(name, maps, outputs, size, 3, 2, same=False)


def _mixed5(name: str, maps: int, pool: int) -> list[Layer]:
  return [
    *_branch(f"{name}/1x1", maps, 35, (64, 1)),
    *_branch(f"{name}/5x5", maps, 35, (48, 1), (64, 5)),
    *_branch(f"{name}/3x3", maps, 35, (64, 1), (96, 3), (96, 3)),
    *_branch(f"{name}/pool", maps, 35, (pool, 1)),
  ]


def _mixed6(name: str, c: int) -> list[Layer]:
  """c: maps inside the 7x7 branches."""
  return [
    *_branch(f"{name}/1x1", 768, 17, (192, 1)),
    *_branch(f"{name}/7x7", 768, 17, (c, 1), (c, (1, 7)), (192, (7, 1))),
    *_branch(f"{name}/7x7x2", 768, 17, (c, 1), (c, (7, 1)), (c, (1, 7)), (c, (7, 1)), (192, (1, 7))),
    *_branch(f"{name}/pool", 768, 17, (192, 1)),
  ]


def _mixed7(name: str, maps: int) -> list[Layer]:
  return [
    *_branch(f"{name}/1x1", maps, 8, (320, 1)),
    *_branch(f"{name}/3x3", maps, 8, (384, 1)),
    convolution(f"{name}/3x3.1x3", 384, 384, 8, (1, 3)),
    convolution(f"{name}/3x3.3x1", 384, 384, 8, (3, 1)),
    *_branch(f"{name}/3x3x2", maps, 8, (448, 1), (384, 3)),
    convolution(f"{name}/3x3x2.1x3", 384, 384, 8, (1, 3)),
    convolution(f"{name}/3x3x2.3x1", 384, 384, 8, (3, 1)),
    *_branch(f"{name}/pool", maps, 8, (192, 1)),
  ]


inception_v3: Table = (
  _shrink("conv1", 3, 299, 32),  # to 149x149
  convolution("conv2", 32, 32, 149, 3, same=False),
  convolution("conv3", 32, 64, 147, 3),
  convolution("conv4", 64, 80, 73, 1),  # behind a pooling
  convolution("conv5", 80, 192, 73, 3, same=False),
  *_mixed5("5b", 192, 32),
  *_mixed5("5c", 256, 64),
  *_mixed5("5d", 288, 64),
  _shrink("6a/3x3", 288, 35, 384),
  *_branch("6a/3x3x2", 288, 35, (64, 1), (96, 3)),
  _shrink("6a/3x3x2.2", 96, 35, 96),
  *_mixed6("6b", 128),
  *_mixed6("6c", 160),
  *_mixed6("6d", 160),
  *_mixed6("6e", 192),
  *_branch("7a/3x3", 768, 17, (192, 1)),
  _shrink("7a/3x3.1", 192, 17, 320),
  *_branch("7a/7x7", 768, 17, (192, 1), (192, (1, 7)), (192, (7, 1))),
  _shrink("7a/7x7.3", 192, 17, 192),
  *_mixed7("7b", 1280),
  *_mixed7("7c", 2048),
  dense("logits", 2048, 1000),
)
