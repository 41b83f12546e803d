"""VGG: 3x3 convolutions in five stages and three dense layers (Simonyan and Zisserman 2014, arXiv 1409.1556)."""

from ddl.perf.step.layers import Table
from ddl.perf.tables.build import Conv, Dense, Pool, sequence

CHANNELS = (64, 128, 256, 512, 512)


def _vgg(*depths: int) -> Table:
  """depths: convolutions per stage."""
  stages: list[Conv | Pool] = []
  for stage, (channels, depth) in enumerate(zip(CHANNELS, depths, strict=True), 1):
    stages += [Conv(f"conv{stage}_{i}", channels, 3) for i in range(1, depth + 1)]
    stages.append(Pool(2, 2))
  return sequence(224, 3, *stages, Dense("fc6", 4096), Dense("fc7", 4096), Dense("fc8", 1000))


vgg_a = _vgg(1, 1, 2, 2, 2)  # configuration A, 11 layers: the one of arXiv 1602.06709
vgg16 = _vgg(2, 2, 3, 3, 3)  # D
vgg19 = _vgg(2, 2, 4, 4, 4)  # E
