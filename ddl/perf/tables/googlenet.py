"""GoogLeNet: nine modules of four parallel branches (Szegedy et al. 2014, arXiv 1409.4842)."""

from ddl.perf.step.layers import Table
from ddl.perf.tables.build import convolution, dense

# Table 1 of the paper: input size and maps, then outputs of 1x1; of 1x1 before 3x3 and 3x3; before 5x5 and 5x5; of the
# 1x1 behind the pooling.
MODULES = {
  "3a": (28, 192, 64, 96, 128, 16, 32, 32),
  "3b": (28, 256, 128, 128, 192, 32, 96, 64),
  "4a": (14, 480, 192, 96, 208, 16, 48, 64),
  "4b": (14, 512, 160, 112, 224, 24, 64, 64),
  "4c": (14, 512, 128, 128, 256, 24, 64, 64),
  "4d": (14, 512, 112, 144, 288, 32, 64, 64),
  "4e": (14, 528, 256, 160, 320, 32, 128, 128),
  "5a": (7, 832, 256, 160, 320, 32, 128, 128),
  "5b": (7, 832, 384, 192, 384, 48, 128, 128),
}
AUXILIARY = {"4a": 512, "4d": 528}  # classifiers behind these modules, with their maps


def _module(name: str, size: int, maps: int, one: int, to3: int, three: int, to5: int, five: int, pool: int) -> Table:
  return (
    convolution(f"{name}/1x1", maps, one, size, 1),
    convolution(f"{name}/3x3_reduce", maps, to3, size, 1),
    convolution(f"{name}/3x3", to3, three, size, 3),
    convolution(f"{name}/5x5_reduce", maps, to5, size, 1),
    convolution(f"{name}/5x5", to5, five, size, 5),
    convolution(f"{name}/pool_proj", maps, pool, size, 1),
  )


def _auxiliary(name: str, maps: int) -> Table:
  """Behind a 5x5 pooling with stride 3: 4x4 maps."""
  return (
    convolution(f"{name}/aux_conv", maps, 128, 4, 1),
    dense(f"{name}/aux_fc", 128 * 4 * 4, 1024),
    dense(f"{name}/aux_classifier", 1024, 1000),
  )


def _googlenet(auxiliary: bool) -> Table:
  layers = [
    convolution("conv1", 3, 64, 224, 7, 2),
    convolution("conv2_reduce", 64, 64, 56, 1),
    convolution("conv2", 64, 192, 56, 3),
  ]
  for name, (size, maps, *outputs) in MODULES.items():
    layers += _module(name, size, maps, *outputs)
    if auxiliary and name in AUXILIARY:
      layers += _auxiliary(name, AUXILIARY[name])
  return (*layers, dense("classifier", 1024, 1000))


googlenet = _googlenet(auxiliary=False)  # 6,998,552 parameters
googlenet_aux = _googlenet(auxiliary=True)  # as it is trained, with both auxiliary classifiers: 13,378,280
