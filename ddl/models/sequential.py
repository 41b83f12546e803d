"""Image networks without branches: LeNet, AlexNet (2012), OverFeat (arXiv 1312.6229) and VGG (arXiv 1409.1556)."""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import linen as nn

from ddl import memory
from ddl.api import Model
from ddl.errors import OptionError
from ddl.models.cpu import convolve
from ddl.models.modules import from_flax, require
from ddl.ranges import Fraction, PositiveFloat, PositiveInt, checked
from ddl.sharding import columns, named


class Conv(NamedTuple):
  """A convolution with a square kernel."""

  outputs: int
  kernel: int
  stride: int = 1
  same: bool = True  # "SAME" padding; False: no padding

  @property
  def padding(self) -> int:
    """Return the number of zeros on each side."""
    return self.kernel // 2 if self.same else 0


class Pool(NamedTuple):
  """Max pooling over square windows, without padding."""

  kernel: int
  stride: int
  padding = 0


def pads(before: int, after: int | None = None) -> Any:
  """Return Flax's `padding` argument: (before, after) for both height and width; after = before by default."""
  return ((before, before if after is None else after),) * 2


class _Sequential(nn.Module):
  operations: tuple[Conv | Pool, ...]
  widths: tuple[int, ...]
  dropout: float

  @nn.compact
  def __call__(self, x: jax.Array, train: bool) -> jax.Array:
    he, count = nn.initializers.he_normal(), 0
    for operation in self.operations:
      window, strides = (operation.kernel,) * 2, (operation.stride,) * 2
      if isinstance(operation, Pool):
        x = nn.max_pool(x, window, strides)
      else:
        count, padding = count + 1, pads(operation.padding)
        x = nn.relu(nn.Conv(operation.outputs, window, strides, padding, kernel_init=he, name=f"conv{count}")(x))
    x = x.reshape(x.shape[0], -1)
    for i, width in enumerate(self.widths, start=1):
      x = named(nn.Dense(width, kernel_init=he, name=f"fc{i}")(named(x, f"fc{i}/in")), f"fc{i}/out")
      x = x if i == len(self.widths) else nn.Dropout(self.dropout, deterministic=not train)(nn.relu(x))
    return x


def sequential(
  title: str, meta: Mapping[str, Any], operations: Sequence[Conv | Pool], hidden: Sequence[int], dropout: float
) -> Model:
  """Build a network of these operations, followed by dense layers of widths `hidden` and meta["num_outputs"].

  Weights are He-initialized. Dropout follows each hidden dense layer. The sharding rules "hybrid" split the dense
  layers over a worker's devices. Raises ValueError if the data is not images, if the images are too small, or if the
  network does not fit into memory.
  """
  require(title, meta, image=True, side=next(n for n in range(1, 10_000) if _size(n, operations) > 0))
  height, width, maps = meta["shape"]
  count = 0
  for operation in operations:
    if isinstance(operation, Conv):
      count, maps = count + operation.kernel**2 * maps * operation.outputs, operation.outputs
  widths = (_size(height, operations) * _size(width, operations) * maps, *hidden, meta["num_outputs"])
  count += sum(before * after for before, after in pairwise(widths))
  memory.require(4 * count, f"{title} of {count:,} weights")
  rules = {"hybrid": columns([f"fc{i}" for i in range(1, len(widths))])}
  return from_flax(_Sequential(tuple(operations), widths[1:], dropout), meta)._replace(rules=rules)


def _size(size: int, operations: Sequence[Conv | Pool]) -> int:
  """Return the side length of the last feature maps for images of side length `size`; 0 if they vanish."""
  for operation in operations:
    size = max(0, size + 2 * operation.padding - operation.kernel + operation.stride) // operation.stride
    if not size:
      return 0
  return size


def pool(x: jax.Array) -> jax.Array:
  """Max-pool over 2 x 2: [batch, h, w, c] -> [batch, h // 2, w // 2, c].

  It uses four strided slices, because the gradient of nn.max_pool (select-and-scatter) is slow on a CPU: with it, a
  step of LeNet would take 1.3 times as long.
  """
  x = x[:, : x.shape[1] // 2 * 2, : x.shape[2] // 2 * 2]
  top = jnp.maximum(x[:, ::2, ::2], x[:, ::2, 1::2])
  return jnp.maximum(top, jnp.maximum(x[:, 1::2, ::2], x[:, 1::2, 1::2]))


class _LeNet(nn.Module):
  outputs: int
  channels: tuple[int, ...]
  kernel: int
  hidden: int

  @nn.compact
  def __call__(self, x: jax.Array, train: bool) -> jax.Array:
    for channels in self.channels:
      x = nn.Conv(channels, (self.kernel, self.kernel), conv_general_dilated=convolve)(x)
      x = nn.relu(pool(x))  # relu and maximum commute; pooling first leaves relu a quarter of the work
    x = named(x.reshape(x.shape[0], -1), "Dense_0/in")
    x = named(nn.relu(named(nn.Dense(self.hidden)(x), "Dense_0/out")), "Dense_1/in")
    return named(nn.Dense(self.outputs)(x), "Dense_1/out")


@checked
def lenet(
  meta: Mapping[str, Any], *,
  channels: tuple[PositiveInt, ...] = (16, 32), kernel: PositiveInt = 5, hidden: PositiveInt = 128,
) -> Model:  # fmt: skip
  """Build LeNet: a "same" convolution, 2x2 max pooling and relu per entry of `channels`, then two dense layers.

  Raises ValueError if `channels` is empty, if the data is not images, or if the images are too small for the pooling.
  """
  if not channels:
    raise OptionError("lenet.channels", "a non-empty tuple like (16, 32)", "()")
  require("lenet", meta, image=True, side=2 ** len(channels))
  module = _LeNet(meta["num_outputs"], tuple(channels), kernel, hidden)
  model = from_flax(module, meta, dense=True)  # 21 times faster in a scan than plain nn.Conv: see `convolve`
  return model._replace(rules={"hybrid": columns(("Dense_0", "Dense_1"))})


@checked
def alexnet(meta: Mapping[str, Any], *, hidden: PositiveInt = 4096, dropout: Fraction = 0.5) -> Model:
  """Build AlexNet: five convolutions and three dense layers, 62,378,344 parameters for 1000 classes at 227 x 227.

  Like later implementations, it omits local response normalization and grouped convolutions; with groups, as in the
  paper, it would have 61.0M parameters. Raises the errors of `sequential`.
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
  """Build OverFeat's fast network: five convolutions and three dense layers.

  It has 145,920,872 parameters for 1000 classes of 231 x 231 images. Raises the errors of `sequential`.
  """
  operations = (
    Conv(96, 11, 4, same=False), Pool(2, 2), Conv(256, 5, same=False), Pool(2, 2),
    Conv(512, 3), Conv(1024, 3), Conv(1024, 3), Pool(2, 2),
  )  # fmt: skip
  return sequential("overfeat_fast", meta, operations, hidden, dropout)


MAPS = (64, 128, 256, 512, 512)  # channels of the convolutions in each stage


def _vgg(
  title: str, meta: Mapping[str, Any], depths: tuple[int, ...], width: float, hidden: int, dropout: float
) -> Model:
  stages: list[Conv | Pool] = []
  for maps, depth in zip(MAPS, depths, strict=True):
    stages += [Conv(max(int(maps * width), 1), 3)] * depth + [Pool(2, 2)]
  return sequential(title, meta, stages, (hidden, hidden), dropout)


@checked
def vgg_a(
  meta: Mapping[str, Any], *, width: PositiveFloat = 1.0, hidden: PositiveInt = 4096, dropout: Fraction = 0.5
) -> Model:
  """Build VGG's configuration A with 11 layers: 132,863,336 parameters for 1000 classes of 224 x 224 images.

  width: factor for the channels of all convolutions. Raises the errors of `sequential`.
  """
  return _vgg("vgg_a", meta, (1, 1, 2, 2, 2), width, hidden, dropout)


@checked
def vgg16(
  meta: Mapping[str, Any], *, width: PositiveFloat = 1.0, hidden: PositiveInt = 4096, dropout: Fraction = 0.5
) -> Model:
  """Build VGG's configuration D with 16 layers: 138,357,544 parameters; otherwise as `vgg_a`."""
  return _vgg("vgg16", meta, (2, 2, 3, 3, 3), width, hidden, dropout)


@checked
def vgg19(
  meta: Mapping[str, Any], *, width: PositiveFloat = 1.0, hidden: PositiveInt = 4096, dropout: Fraction = 0.5
) -> Model:
  """Build VGG's configuration E with 19 layers: 143,667,240 parameters; otherwise as `vgg_a`."""
  return _vgg("vgg19", meta, (2, 2, 4, 4, 4), width, hidden, dropout)
