"""A step's parts as a device's libraries compute them, and the shares of the data sheet's rates that they reach.

Beside the products of the layers (`totals.parts`) a step has
  tiles      a convolution's kernel computes tiles of TILE output maps: 80 maps cost as much as 128. In the forward pass
             and the gradient of the weights that is about the outputs, in the gradient of the inputs about the inputs.
  winograd   3x3 convolutions of stride 1 by F(2x2, 3x3), arXiv 1509.09308, with 16 products for 36; 5x5 and larger ones
             by FFT, arXiv 1312.5851, with about half.
  traffic    what follows a convolution reads and writes its maps again: batch normalization (forward twice read, once
             written; backward twice x and twice dy read, dx written: 8) and activation (2 and 3), or bias (2 and 1) and
             activation. Pooling, sums and concatenations are not counted: the share of the bandwidth makes up for them.
  start      each layer's kernels are started by the host.

Seconds and workspaces of a device's convolution algorithms, for the 0-1 program of `step.convolution`.
Seconds are those of `model`, measured shares in them; workspaces those of `step.convolution_costs`, an upper bound, as
fused kernels keep transforms on the chip.
"""

import math
from collections.abc import Callable, Mapping
from functools import cache
from typing import NamedTuple

import numpy as np

from ddl.perf.hardware.device import Device, Efficiency, Part, part_seconds, step_seconds
from ddl.perf.step.convolution import ALGORITHMS, Costs, is_convolution, is_scale, stride_one
from ddl.perf.step.layers import Attention, Layer, Table
from ddl.perf.tables.totals import params

TILE = 128  # output maps of a convolution's kernel
NORMALIZED, BIASED = 13, 8  # values moved per output of a convolution by what follows it
GAIN = {"direct": 1.0, "winograd": 36 / 16, "fft": 2.0}  # products of the direct algorithm over those of this one
UPDATE = 28  # bytes per parameter of Adam in mixed precision: gradient, both moments and master copy, read and written


class Shares(NamedTuple):
  """Of a data sheet's rates."""

  product: float  # of the peak: matrix products and direct convolutions
  memory: float = 1.0  # of the memory bandwidth, for the traffic that is counted
  winograd: float = 0.0  # of the peak: its products; 0: the libraries do not have it, nor FFT
  attention: float = 1.0  # of `product`: the products of an attention's kernel
  start: float = 0.0  # seconds per layer of the table
  whole: bool = False  # `product` is that of a whole step's FLOP, with all else in it


class DeviceStep(NamedTuple):
  """A step on a device: `step_seconds(parts, examples, device, efficiency)`."""

  parts: tuple[Part, ...]
  device: Device
  efficiency: Efficiency

  def seconds(self, examples: float) -> float:
    """Of a step on so many examples."""
    return step_seconds(self.parts, examples, self.device, self.efficiency)


def device_step(
  table: Table, device: Device, shares: Shares, *, algorithms: Mapping[str, str] | None = None, recomputed: float = 0.0,
  split: int = 1,
) -> DeviceStep:  # fmt: skip
  """The step of a table.

  Args:
    algorithms: of convolutions by the layer's name; others have the fastest that there is.
    recomputed: share of the forward pass that is computed again for the gradients.
    split: number of devices over which the optimizer's state is split, as the update is.
  """
  parts = []
  if transformer(table):
    parts.append(Part(0.0, update=UPDATE / device.width * params(table) / split))
  for layer, work, traffic in _described(table):
    algorithm = (algorithms or {}).get(layer.name) or fastest(layer, shares)
    again = recomputed * layer.forward_flop
    if shares.whole:
      parts.append(Part(layer.train_flop + again, 0.0, 3 * layer.params))
      continue
    slower = 1 / shares.attention if isinstance(layer, Attention) else 1.0
    moved = 0.0 if is_map_scale(layer) else layer.moved * (1 + recomputed / 3)
    parts.append(Part((work * cost(algorithm, shares) + again) * slower, moved, 3 * layer.params))
    if traffic:
      parts.append(Part(0.0, traffic))
  started = device._replace(start=device.start + shares.start * len(table))
  return DeviceStep(tuple(parts), started, Efficiency(shares.product, memory=shares.memory))


@cache
def transformer(table: Table) -> bool:
  """Whether a table has attention in it."""
  return any(isinstance(layer, Attention) for layer in table)


def fastest(layer: Layer, shares: Shares) -> str:
  """The algorithm of a layer with the fewest seconds, of those that apply."""
  found = ["direct"]
  if is_convolution(layer) and stride_one(layer):
    found += ["winograd"] * (layer.kernel == (3, 3)) + ["fft"] * (min(layer.kernel) >= 5)
  return min(found, key=lambda name: cost(name, shares))


def cost(algorithm: str, shares: Shares) -> float:
  """Seconds of an algorithm over those of the direct one; FFT has the direct one's share."""
  if algorithm == "direct":
    return 1.0
  if not shares.winograd:
    return math.inf
  return (shares.product / shares.winograd if algorithm == "winograd" else 1.0) / GAIN[algorithm]


def flop(layer: Layer, first: bool) -> float:
  """FLOP of a training step, filled up to whole tiles; the first layer needs no gradient of its inputs."""
  if is_map_scale(layer):
    return 0.0  # its products are done while the values are moved
  if not is_convolution(layer):
    return layer.train_flop * (2 / 3 if first and layer.dense else 1.0)
  outputs, inputs = (maps / layer.groups for maps in (layer.outputs, layer.inputs))
  filled = [math.ceil(maps / TILE) * TILE / maps for maps in (outputs, outputs, inputs)]
  return layer.forward_flop * sum(filled[: 2 if first else 3])


def extra(layer: Layer) -> float:
  """Values moved per example by what follows a convolution, whether it is a layer of the table or not."""
  if is_map_scale(layer):
    return NORMALIZED * layer.activations
  if not is_convolution(layer) or not layer.bias:
    return 0.0
  return (NORMALIZED if layer.normalized else BIASED) * layer.activations


def is_map_scale(layer: Layer) -> bool:
  """Whether it is a batch normalization of maps, with the activation behind it."""
  return layer.size_in[0] > 1 and is_scale(layer)


@cache
def _described(table: Table) -> tuple[tuple[Layer, float, float], ...]:
  """(layer, its FLOP, its further traffic) of each: what no share changes."""
  return tuple((layer, flop(layer, i == 0), extra(layer)) for i, layer in enumerate(table))


def measured_costs(
  table: Table, device: Device, shares: Shares
) -> tuple[Callable[[int], Costs], Callable[[int], float]]:
  """(X -> costs of each convolution's algorithms, X -> seconds of all else). device: with the step's start."""
  efficiency = Efficiency(shares.product, memory=shares.memory)
  layers = [(layer, i == 0) for i, layer in enumerate(table) if is_convolution(layer)]

  def costs(examples: int) -> Costs:
    seconds, workspace = np.full((2, len(layers), len(ALGORITHMS)), np.inf)
    workspace[:] = 0.0
    for k, (layer, first) in enumerate(layers):
      for i, (name, workspaces) in enumerate(ALGORITHMS.items()):
        counted, slower = workspaces(layer, examples), cost(name, shares)
        if counted is None or not np.isfinite(slower) or (name == "fft" and min(layer.kernel) < 5):
          continue
        part = Part(flop(layer, first) * slower, layer.moved, 3 * layer.params)
        seconds[k, i], workspace[k, i] = part_seconds(part, examples, device, efficiency), device.width * counted[2]
    return Costs(tuple(ALGORITHMS), seconds, workspace)

  names = {layer.name: "direct" for layer, _ in layers}
  direct = device_step(table, device, shares._replace(start=0.0), algorithms=names)

  def other(examples: int) -> float:
    return direct.seconds(examples) - float(costs(examples).seconds[:, 0].sum())

  return costs, other
