"""OverFeat, fast model (Sermanet et al. 2013, arXiv 1312.6229), in the two forms that papers on distribution use."""

from ddl.perf.step.layers import Table
from ddl.perf.tables.build import Conv, Dense, Pool, sequence


def _overfeat(first: int) -> Table:
  """first: maps of the first convolution."""
  return sequence(
    231,
    3,
    Conv("conv1", first, 11, 4, same=False),
    Pool(2, 2),
    Conv("conv2", 256, 5, same=False),
    Pool(2, 2),
    Conv("conv3", 512, 3),
    Conv("conv4", 1024, 3),
    Conv("conv5", 1024, 3),
    Pool(2, 2),
    Dense("fc6", 3072),
    Dense("fc7", 4096),
    Dense("fc8", 1000),
  )


overfeat_fast = _overfeat(96)  # as published: arXiv 1602.06709
overfeat = _overfeat(64)  # as in TF-slim and the nets of PALEO: arXiv 2006.00441
