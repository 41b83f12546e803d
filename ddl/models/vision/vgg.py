"""VGG (Simonyan and Zisserman 2014, arXiv 1409.1556): 3x3 convolutions in five stages, and three dense layers."""

from collections.abc import Mapping
from typing import Any

from ddl.api import Model
from ddl.models.vision.sequential import Conv, Pool, sequential
from ddl.ranges import Fraction, PositiveFloat, PositiveInt, checked

MAPS = (64, 128, 256, 512, 512)  # of the stages


def _vgg(title: str, meta: Mapping[str, Any], depths: tuple[int, ...], width: float, hidden: int, dropout: float):
  stages: list[Conv | Pool] = []
  for maps, depth in zip(MAPS, depths, strict=True):
    stages += [Conv(max(int(maps * width), 1), 3)] * depth + [Pool(2, 2)]
  return sequential(title, meta, stages, (hidden, hidden), dropout)


@checked
def vgg_a(
  meta: Mapping[str, Any], *, width: PositiveFloat = 1.0, hidden: PositiveInt = 4096, dropout: Fraction = 0.5
) -> Model:
  """Configuration A, 11 layers: 132,863,336 parameters for 1000 classes of 224 x 224 images.

  width: factor of the maps of all convolutions. Raises as `sequential` does.
  """
  return _vgg("vgg_a", meta, (1, 1, 2, 2, 2), width, hidden, dropout)


@checked
def vgg16(
  meta: Mapping[str, Any], *, width: PositiveFloat = 1.0, hidden: PositiveInt = 4096, dropout: Fraction = 0.5
) -> Model:
  """Configuration D, 16 layers: 138,357,544 parameters; otherwise as `vgg_a`."""
  return _vgg("vgg16", meta, (2, 2, 3, 3, 3), width, hidden, dropout)


@checked
def vgg19(
  meta: Mapping[str, Any], *, width: PositiveFloat = 1.0, hidden: PositiveInt = 4096, dropout: Fraction = 0.5
) -> Model:
  """Configuration E, 19 layers: 143,667,240 parameters; otherwise as `vgg_a`."""
  return _vgg("vgg19", meta, (2, 2, 4, 4, 4), width, hidden, dropout)
