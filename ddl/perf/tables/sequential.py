"""Residual networks (arXiv 1512.03385), and networks without branches.

ResNets (He et al. 2015, arXiv 1512.03385) of two 3x3 convolutions a block, or of bottlenecks of three.
As in torchvision a bottleneck halves the maps in its 3x3 convolution; in the paper it is in the first 1x1, which
changes no parameters. Each convolution has no bias and is followed by a batch normalization, a layer of its own here.
"""

from itertools import pairwise

from ddl.perf.step.layers import Layer, Table
from ddl.perf.tables.build import Conv, Dense, Pool, convolution, dense, normalization, sequence

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


HALF, OVERLAPPING = Pool(2, 2), Pool(3, 2)


def _classifier(first: int = 4096, second: int = 4096) -> tuple[Dense, ...]:
  """Three dense layers, to the 1000 classes of ImageNet."""
  return Dense("fc6", first), Dense("fc7", second), Dense("fc8", 1000)


def _alexnet(size: int, first: int, second: int) -> Table:
  """first, second: maps of the first two convolutions."""
  end = Conv("conv3", 384, 3), Conv("conv4", 384, 3), Conv("conv5", 256, 3), OVERLAPPING, *_classifier()
  return sequence(
    size, 3, Conv("conv1", first, 11, 4, same=False), OVERLAPPING, Conv("conv2", second, 5), OVERLAPPING, *end
  )  # fmt: skip


def _overfeat(first: int) -> Table:
  """first: maps of the first convolution."""
  start = Conv("conv1", first, 11, 4, same=False), HALF, Conv("conv2", 256, 5, same=False), HALF
  end = Conv("conv3", 512, 3), Conv("conv4", 1024, 3), Conv("conv5", 1024, 3), HALF, *_classifier(3072)
  return sequence(231, 3, *start, *end)


def _vgg(*depths: int) -> Table:
  """3x3 convolutions in five stages and three dense layers. depths: convolutions per stage."""
  stages: list[Conv | Pool] = []
  for stage, (channels, depth) in enumerate(zip((64, 128, 256, 512, 512), depths, strict=True), 1):
    stages += [*(Conv(f"conv{stage}_{i}", channels, 3) for i in range(1, depth + 1)), HALF]
  return sequence(224, 3, *stages, *_classifier())


def _nin() -> Table:
  layers: list[Conv | Pool] = []
  convolutions = (96, 11, 4, 96), (256, 5, 1, 256), (384, 3, 1, 384), (1024, 3, 1, 1000)
  for block, (maps, kernel, stride, last) in enumerate(convolutions):
    layers += [
      Conv(f"conv{block + 1}", maps, kernel, stride, same=block > 0),
      Conv(f"cccp{2 * block + 1}", maps, 1),
      Conv(f"cccp{2 * block + 2}", last, 1),
      OVERLAPPING,
    ]
  return sequence(224, 3, *layers[:-1])


# LeCun et al. 1998, as Caffe trains it: valid 5x5 convolutions, maximum pooling, 431,080 parameters.
_lenet = Conv("conv1", 20, 5, same=False), HALF, Conv("conv2", 50, 5, same=False), HALF
lenet = sequence(28, 1, *_lenet, Dense("ip1", 500), Dense("ip2", 10))

# Krizhevsky, Sutskever, Hinton 2012. The original has groups of 2 in conv2, conv4 and conv5 (61.0M parameters). Without
# them there are 62.4M: the 249 MB of arXiv 1708.02983.
alexnet = _alexnet(227, 96, 256)
alexnet_groups = tuple(x._replace(groups=2) if x.name in ("conv2", "conv4", "conv5") else x for x in alexnet)
# arXiv 1404.5997, as in the nets of PALEO (Qi, Sparks, Talwalkar, ICLR 2017): no padding in conv1, so 5x5 maps at last.
alexnet_v2 = _alexnet(224, 64, 192)

# OverFeat, fast model, Sermanet et al. 2013, arXiv 1312.6229.
overfeat_fast = _overfeat(96)  # as published: arXiv 1602.06709
overfeat = _overfeat(64)  # as in TF-slim and the nets of PALEO: arXiv 2006.00441

# Lin, Chen, Yan 2013, arXiv 1312.4400; the ImageNet model as in the nets of PALEO (224x224, conv1 not padded). The mean
# over the maps of cccp8 is the output.
nin = _nin()

# Simonyan and Zisserman 2014, arXiv 1409.1556.
vgg_a = _vgg(1, 1, 2, 2, 2)  # configuration A, 11 layers: the one of arXiv 1602.06709
vgg16 = _vgg(2, 2, 3, 3, 3)  # D
vgg19 = _vgg(2, 2, 4, 4, 4)  # E

# 429 inputs (frames of speech), seven hidden layers of 2048, 9304 classes, as reported for arXiv 1602.06709.
cd_dnn = tuple(dense(f"fc{i}", a, b) for i, (a, b) in enumerate(pairwise((429, *[2048] * 7, 9304)), 1))
