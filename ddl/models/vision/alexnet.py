"""AlexNet (Krizhevsky, Sutskever, Hinton 2012) and OverFeat's fast model (Sermanet et al. 2013, arXiv 1312.6229)."""

from collections.abc import Mapping
from typing import Any

from ddl.api import Model
from ddl.models.vision.sequential import Conv, Pool, sequential
from ddl.ranges import Fraction, PositiveInt, checked


@checked
def alexnet(meta: Mapping[str, Any], *, hidden: PositiveInt = 4096, dropout: Fraction = 0.5) -> Model:
  """Five convolutions and three dense layers: 62,378,344 parameters for 1000 classes of 227 x 227 images.

  Without the groups of the original (61.0M parameters) and without its local response normalization, as implementations
  since then. Raises as `sequential` does.
  """
  overlapping = Pool(3, 2)
  operations = (
    Conv(96, 11, 4, same=False), overlapping, Conv(256, 5), overlapping,
    Conv(384, 3), Conv(384, 3), Conv(256, 3), overlapping,
  )  # fmt: skip
  return sequential("alexnet", meta, operations, (hidden, hidden), dropout)


@checked
def overfeat_fast(
  meta: Mapping[str, Any], *, hidden: tuple[PositiveInt, ...] = (3072, 4096), dropout: Fraction = 0.5
) -> Model:  # fmt: skip
  """Five convolutions and three dense layers: 145,920,872 parameters for 1000 classes of 231 x 231 images.

  Raises as `sequential` does.
  """
  operations = (
    Conv(96, 11, 4, same=False), Pool(2, 2), Conv(256, 5, same=False), Pool(2, 2),
    Conv(512, 3), Conv(1024, 3), Conv(1024, 3), Pool(2, 2),
  )  # fmt: skip
  return sequential("overfeat_fast", meta, operations, hidden, dropout)
