"""ResNets (He et al. 2015, arXiv 1512.03385) of two 3x3 convolutions a block, or of bottlenecks of three.

As in torchvision a bottleneck halves the maps in its 3x3 convolution; in the paper it is in the first 1x1, which
changes no parameters. Each convolution has no bias and is followed by a batch normalization, a layer of its own here.
"""

from ddl.perf.step.layers import Layer, Table
from ddl.perf.tables.build import convolution, dense, normalization

MAPS = (64, 128, 256, 512)  # of the 3x3 convolutions in each stage


def _normalized(name: str, inputs: int, outputs: int, size: int, kernel: int, stride: int = 1) -> list[Layer]:
  layer = convolution(name, inputs, outputs, size, kernel, stride, bias=False)
  return [layer, normalization(f"{name}/norm", outputs, layer.size_out[0])]


def _block(name: str, inputs: int, maps: int, size: int, stride: int, wider: int) -> list[Layer]:
  """wider: times as many maps behind the block: 4 for a bottleneck, 1 for two 3x3 convolutions."""
  if wider == 1:
    layers = [
      *_normalized(f"{name}/3x3", inputs, maps, size, 3, stride),
      *_normalized(f"{name}/3x3.1", maps, maps, size // stride, 3),
    ]
  else:
    layers = [
      *_normalized(f"{name}/1x1", inputs, maps, size, 1),
      *_normalized(f"{name}/3x3", maps, maps, size, 3, stride),
      *_normalized(f"{name}/1x1x4", maps, wider * maps, size // stride, 1),
    ]
  if inputs != wider * maps:
    layers += _normalized(f"{name}/shortcut", inputs, wider * maps, size, 1, stride)
  return layers


def _resnet(*depths: int, wider: int = 4) -> Table:
  """depths: blocks of each stage."""
  layers, inputs, size = _normalized("conv1", 3, 64, 224, 7, 2), 64, 56
  for stage, (blocks, maps) in enumerate(zip(depths, MAPS, strict=True), 2):
    for block in range(blocks):
      stride = 2 if stage > 2 and block == 0 else 1
      layers += _block(f"{stage}.{block}", inputs, maps, size, stride, wider)
      inputs, size = wider * maps, size // stride
  return (*layers, dense("classifier", inputs, 1000))


resnet18 = _resnet(2, 2, 2, 2, wider=1)  # 11,689,512 parameters
resnet34 = _resnet(3, 4, 6, 3, wider=1)  # 21,797,672
resnet50 = _resnet(3, 4, 6, 3)  # 25,557,032
resnet101 = _resnet(3, 4, 23, 3)  # 44,549,160
resnet152 = _resnet(3, 8, 36, 3)  # 60,192,808
