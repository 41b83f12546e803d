"""Cost of convolution algorithms, modelled from a layer's shape.

A training step runs three passes (forward, gradient of the inputs, gradient of the weights) of the same products.
A pass takes max(FLOP / (peak efficiency), bytes moved / memory bandwidth); every operand is moved once, the workspace
is written and read. Models for comparison, not measurements: a kernel's own quality is not in them.
  direct    a product without a workspace, as cuDNN's implicit ones: that of `hardware.device.step_seconds`.
  fft       Mathieu et al. 2013, arXiv 1312.5851: all maps and kernels padded to a power of two; stride 1.
  winograd  F(2x2, 3x3), Lavin & Gray 2015, arXiv 1509.09308: 16 products for 4 outputs, not 36; stride 1, 3x3.
"""

import math
from collections.abc import Callable

import numpy as np

from ddl.perf.hardware.device import Device, Efficiency, Part, part_seconds, step_seconds
from ddl.perf.step.convolution import Costs
from ddl.perf.step.layers import Layer, Table
from ddl.perf.tables.totals import part, pass_bytes

PASSES = 3


def direct(layer: Layer, examples: int) -> tuple[float, float, float]:
  """(FLOP, values moved, values of workspace) of one pass: 2 macs X; each operand and the result once."""
  return 2 * layer.macs * examples, pass_bytes(layer, examples, 1), 0.0


def fft(layer: Layer, examples: int) -> tuple[float, float, float] | None:
  """2.5 s log2 s FLOP per real transform of s points, 8 per complex product; s/2 + 1 complex values per row are kept.

  Transformed: X ifm inputs, ifm ofm / groups kernels, and X ofm outputs back.
  """
  if not stride_one(layer):
    return None
  rows, columns = (2 ** math.ceil(math.log2(o + k - 1)) for o, k in zip(layer.size_out, layer.kernel, strict=True))
  points, kept = rows * columns, rows * (columns // 2 + 1)
  pairs = layer.inputs * layer.outputs // layer.groups
  transforms = examples * (layer.inputs + layer.outputs) + pairs
  flop = transforms * 2.5 * points * math.log2(max(points, 2)) + 8 * examples * pairs * kept
  workspace = 2 * kept * transforms
  return flop, pass_bytes(layer, examples, 1) + 2 * workspace, workspace


def winograd(layer: Layer, examples: int) -> tuple[float, float, float] | None:
  """2 * 16 FLOP per tile of 2x2 outputs and pair of maps; transforms of 32 (input), 24 (output), 28 (kernel) FLOP.

  The workspace holds the 16 transformed values of every tile of all inputs and outputs, and of every kernel.
  """
  if layer.kernel != (3, 3) or not stride_one(layer):
    return None
  tiles = examples * math.ceil(layer.size_out[0] / 2) * math.ceil(layer.size_out[1] / 2)
  pairs = layer.inputs * layer.outputs // layer.groups
  flop = 2 * 16 * tiles * pairs + tiles * (32 * layer.inputs + 24 * layer.outputs) + 28 * pairs
  workspace = 16 * (tiles * (layer.inputs + layer.outputs) + pairs)
  return flop, pass_bytes(layer, examples, 1) + 2 * workspace, workspace


ALGORITHMS = {"direct": direct, "fft": fft, "winograd": winograd}


def is_convolution(layer: Layer) -> bool:
  """Whether a layer slides over a map: neither dense (on a token either) nor a scale per map."""
  return layer.size_in[0] > 1 and not is_scale(layer)


def is_scale(layer: Layer) -> bool:
  """Whether it scales each map by itself, as normalizations do."""
  return layer.kernel == (1, 1) and layer.groups == layer.inputs == layer.outputs


def stride_one(layer: Layer) -> bool:
  """Whether the output is as large as a stride of 1 makes it: o = i + 2 pad - k + 1, which is at least i - k + 1."""
  return all(o >= i - k + 1 for i, k, o in zip(layer.size_in, layer.kernel, layer.size_out, strict=True))


def modelled(table: Table, device: Device, efficiency: Efficiency) -> Callable[[int], Costs]:
  """X -> seconds and bytes of workspace of each convolution; its three passes share the workspace."""
  layers = [x for x in table if is_convolution(x)]

  def costs(examples: int) -> Costs:
    seconds = np.full((len(layers), len(ALGORITHMS)), np.inf)
    workspace = np.zeros_like(seconds)
    for k, layer in enumerate(layers):
      for i, algorithm in enumerate(ALGORITHMS.values()):
        if one := algorithm(layer, examples):
          flop, moved, kept = one
          passes = Part(PASSES * flop / examples, PASSES * moved / examples)
          seconds[k, i], workspace[k, i] = part_seconds(passes, examples, device, efficiency), device.width * kept
    return Costs(tuple(ALGORITHMS), seconds, workspace)

  return costs


def other_seconds(table: Table, device: Device, efficiency: Efficiency) -> Callable[[int], float]:
  """X -> seconds of a step without its convolutions."""
  rest = [part(layer) for layer in table if not is_convolution(layer)]
  return lambda examples: step_seconds(rest, examples, device, efficiency)
