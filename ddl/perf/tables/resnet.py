"""ResNet-50 (He et al. 2015, arXiv 1512.03385): 3, 4, 6 and 3 bottleneck blocks, 25,557,032 parameters.

As in torchvision a block halves the maps in its 3x3 convolution; in the paper it is in the first 1x1, which changes no
parameters. Each convolution has no bias and is followed by a batch normalization, a layer of its own here.
"""

from ddl.perf.step.layers import Layer, Table
from ddl.perf.tables.build import convolution, dense, normalization

STAGES = ((3, 64), (4, 128), (6, 256), (3, 512))  # blocks, maps of the 3x3 convolutions; 4 times as many behind


def _normalized(name: str, inputs: int, outputs: int, size: int, kernel: int, stride: int = 1) -> list[Layer]:
  layer = convolution(name, inputs, outputs, size, kernel, stride, bias=False)
  return [layer, normalization(f"{name}/norm", outputs, layer.size_out[0])]


def _block(name: str, inputs: int, maps: int, size: int, stride: int) -> list[Layer]:
  layers = [
    *_normalized(f"{name}/1x1", inputs, maps, size, 1),
    *_normalized(f"{name}/3x3", maps, maps, size, 3, stride),
    *_normalized(f"{name}/1x1x4", maps, 4 * maps, size // stride, 1),
  ]
  if inputs != 4 * maps:
    layers += _normalized(f"{name}/shortcut", inputs, 4 * maps, size, 1, stride)
  return layers


def _resnet50() -> Table:
  layers, inputs, size = _normalized("conv1", 3, 64, 224, 7, 2), 64, 56
  for stage, (blocks, maps) in enumerate(STAGES, 2):
    for block in range(blocks):
      stride = 2 if stage > 2 and block == 0 else 1
      layers += _block(f"{stage}.{block}", inputs, maps, size, stride)
      inputs, size = 4 * maps, size // stride
  return (*layers, dense("classifier", 2048, 1000))


resnet50 = _resnet50()
