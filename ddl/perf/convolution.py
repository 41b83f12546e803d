"""Choose the fastest convolution algorithm of each layer under a memory limit for workspaces.

The 0-1 program of Zou et al. 2017, arXiv 1709.06622, over layers k and algorithms l with x_kl in {0, 1}:
  minimize sum_kl x_kl T_kl  subject to  sum_l x_kl = 1 for each k,  sum_kl x_kl M_kl <= M_bound.
Layers run one after the other, so they share one workspace: the constraint becomes max_kl x_kl M_kl <= M_bound, and
each layer uses the fastest algorithm whose workspace fits.

Costs are modeled from a layer's shape, regardless of a kernel's implementation. A training step runs three passes
(forward, gradient of the inputs, gradient of the weights) with the same number of products. A pass takes
max(FLOP / (peak * efficiency), bytes moved / memory bandwidth); each operand is moved once, the workspace twice.
  direct    products without a workspace, like cuDNN's implicit GEMM; costs as in `device.step_seconds`.
  fft       Mathieu et al. 2013, arXiv 1312.5851: all maps and kernels are padded to a power of two; only stride 1.
  winograd  F(2x2, 3x3), Lavin & Gray 2015, arXiv 1509.09308: 16 products, not 36, for 4 outputs; only 3x3, stride 1.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from ddl.perf.device import Device, Efficiency, LayerWork, part_seconds, step_seconds
from ddl.perf.layers import Layer, Table, is_convolution, part, pass_bytes

PASSES = 3  # of a training step


class AlgorithmCosts(NamedTuple):
  """The costs of each algorithm in each layer; seconds are infinite where an algorithm does not apply."""

  algorithms: tuple[str, ...]
  seconds: np.ndarray  # [layers, algorithms] (T_kl)
  workspace: np.ndarray  # [layers, algorithms] bytes (M_kl)


class AlgorithmChoice(NamedTuple):
  """The algorithm chosen for each layer, and the total costs of all layers."""

  algorithms: tuple[str, ...]  # [layers]
  seconds: float  # of all layers
  workspace: float  # bytes of the shared workspace: the maximum over the layers


def choose(costs: AlgorithmCosts, bound: float) -> AlgorithmChoice:
  """Choose the fastest algorithms within `bound` bytes of workspace (M_bound), which all layers share."""
  best = np.where(costs.workspace <= bound, costs.seconds, np.inf).argmin(axis=1)
  rows = np.arange(len(best))
  seconds, workspace = costs.seconds[rows, best].sum(), costs.workspace[rows, best].max(initial=0.0)
  return AlgorithmChoice(tuple(costs.algorithms[i] for i in best), float(seconds), float(workspace))


def direct(layer: Layer, examples: int) -> tuple[float, float]:
  """Return (FLOP, workspace values) of a pass of direct convolution: 2 * macs * examples FLOP."""
  return 2 * layer.macs * examples, 0.0


def fft(layer: Layer, examples: int) -> tuple[float, float] | None:
  """Return (FLOP, workspace values) of one pass by FFT; None if the stride is not 1.

  A real transform of s points takes 2.5 s log2 s FLOP, a complex product 8 FLOP; a transformed row of s points has
  s / 2 + 1 complex values. The pass transforms examples * inputs maps and inputs * outputs / groups kernels, and then
  transforms examples * outputs maps back.
  """
  if not stride_one(layer):
    return None
  rows, columns = (2 ** math.ceil(math.log2(o + k - 1)) for o, k in zip(layer.size_out, layer.kernel, strict=True))
  points, frequencies = rows * columns, rows * (columns // 2 + 1)
  pairs = layer.inputs * layer.outputs // layer.groups
  transforms = examples * (layer.inputs + layer.outputs) + pairs
  flop = transforms * 2.5 * points * math.log2(max(points, 2)) + 8 * examples * pairs * frequencies
  return flop, 2 * frequencies * transforms


def winograd(layer: Layer, examples: int) -> tuple[float, float] | None:
  """Return (FLOP, workspace values) of one pass by Winograd's F(2x2, 3x3); None if it does not apply.

  A tile of 2x2 outputs takes 2 * 16 FLOP per pair of an input and an output map. A transform takes 32 FLOP (input
  tile), 24 (output tile) or 28 (kernel). The workspace holds the 16 transformed values of each input tile, output tile
  and kernel.
  """
  if layer.kernel != (3, 3) or not stride_one(layer):
    return None
  tiles = examples * math.ceil(layer.size_out[0] / 2) * math.ceil(layer.size_out[1] / 2)
  pairs = layer.inputs * layer.outputs // layer.groups
  flop = 2 * 16 * tiles * pairs + tiles * (32 * layer.inputs + 24 * layer.outputs) + 28 * pairs
  return flop, 16 * (tiles * (layer.inputs + layer.outputs) + pairs)


ALGORITHMS = {"direct": direct, "fft": fft, "winograd": winograd}


def stride_one(layer: Layer) -> bool:
  """Return whether the output size implies a stride of 1: o = i + 2 pad - k + 1 >= i - k + 1."""
  return all(o >= i - k + 1 for i, k, o in zip(layer.size_in, layer.kernel, layer.size_out, strict=True))


Work = Callable[[str, Layer, tuple[float, float], int], LayerWork | None]


def tabulated(table: Table, device: Device, efficiency: Efficiency, work: Work) -> Callable[[int], AlgorithmCosts]:
  """Return the costs of the convolutions as a function of the mini-batch size X.

  The three passes of a layer share a workspace.

  work: (algorithm, layer, counts of a pass, X) -> work of a training step; None if the algorithm is not used.
  """
  layers = [*filter(is_convolution, table)]

  def costs(examples: int) -> AlgorithmCosts:
    seconds = np.full((len(layers), len(ALGORITHMS)), np.inf)
    workspace = np.zeros_like(seconds)
    for k, layer in enumerate(layers):
      for i, (name, count) in enumerate(ALGORITHMS.items()):
        counts = count(layer, examples)
        if counts and (part := work(name, layer, counts, examples)):
          seconds[k, i] = part_seconds(part, examples, device, efficiency)
          workspace[k, i] = device.width * counts[1]
    return AlgorithmCosts(tuple(ALGORITHMS), seconds, workspace)

  return costs


def modelled(table: Table, device: Device, efficiency: Efficiency) -> Callable[[int], AlgorithmCosts]:
  """Return the costs of the convolutions as a function of the mini-batch size X.

  All algorithms are assumed to reach the same share of the peak.
  """

  def work(_name: str, layer: Layer, counts: tuple[float, float], examples: int) -> LayerWork:
    flop, workspace = counts
    moved = pass_bytes(layer, examples, 1) + 2 * workspace
    return LayerWork(PASSES * flop / examples, PASSES * moved / examples)

  return tabulated(table, device, efficiency, work)


def other_seconds(table: Table, device: Device, efficiency: Efficiency) -> Callable[[int], float]:
  """Return the seconds of a step without its convolutions as a function of the mini-batch size X."""
  rest = [part(layer) for layer in table if not is_convolution(layer)]
  return lambda examples: step_seconds(rest, examples, device, efficiency)
