"""Tables from lists of operations: the sizes of the maps follow from kernels, strides and padding."""

from typing import NamedTuple

from ddl.perf.step.layers import Layer, Table


class Conv(NamedTuple):
  """A convolution of a sequence."""

  name: str
  outputs: int
  kernel: int
  stride: int = 1
  same: bool = True  # padded so that a stride of 1 keeps the size; False: not padded


class Pool(NamedTuple):
  """A pooling of a sequence, not padded: no weights, smaller maps."""

  kernel: int
  stride: int


class Dense(NamedTuple):
  """A fully connected layer of a sequence."""

  name: str
  outputs: int


def convolution(
  name: str,
  inputs: int,
  outputs: int,
  size: int,
  kernel: int | tuple[int, int],
  stride: int = 1,
  *,
  same: bool = True,
  bias: bool = True,
  normalized: bool = False,
) -> Layer:
  """On square maps of size x size; kernel: kh, kw or one for both. Output: (size + 2 (k // 2) - k) // stride + 1.

  ValueError if the kernel does not fit into the map.
  """
  sides = kernel if isinstance(kernel, tuple) else (kernel, kernel)
  height, width = ((size + 2 * (k // 2 if same else 0) - k) // stride + 1 for k in sides)
  if min(height, width) < 1:
    raise ValueError(f"{name}: a {sides[0]}x{sides[1]} kernel does not fit into a map of {size}x{size}")
  return Layer(name, inputs, outputs, sides, (size, size), (height, width), bias=bias, normalized=normalized)


def dense(name: str, inputs: int, outputs: int, *, bias: bool = True) -> Layer:
  """Fully connected."""
  return Layer(name, inputs, outputs, bias=bias)


def normalization(name: str, channels: int, size: int) -> Layer:
  """Batch normalization's scale and shift: a 1x1 convolution of each map by itself."""
  return Layer(name, channels, channels, (1, 1), (size, size), (size, size), groups=channels)


def sequence(size: int, channels: int, *operations: Conv | Pool | Dense, bias: bool = True) -> Table:
  """The layers with weights of a network without branches; input: `channels` maps of size x size."""
  layers = []
  for operation in operations:
    if isinstance(operation, Pool):
      size = (size - operation.kernel) // operation.stride + 1
      continue
    if isinstance(operation, Conv):
      name, outputs, kernel, stride, same = operation
      layers.append(convolution(name, channels, outputs, size, kernel, stride, same=same, bias=bias))
      size = layers[-1].size_out[0]
    else:
      layers.append(dense(operation.name, channels * size * size, operation.outputs, bias=bias))
      size = 1
    channels = operation.outputs
  return tuple(layers)
