"""PALEO's model of a step and of an all-reduce, as DaSGD's authors use it: the inputs of their hiding condition.

Qi, Sparks, Talwalkar 2017 (ICLR; github TalwalkarLab/paleo), modified for Zhou et al. 2020, arXiv 2006.00441
(github sweetwenwen/paleo-dasgd). A layer's pass takes max(FLOP / peak, bytes moved / memory bandwidth); three
tree levels inside a node of eight workers count as ONE hop over NVLink. Kept as it is for that comparison: their V100
has the peak of float64, and a hop has no latency. Pooling and dropout, which a table does not hold, are left out.
"""

import math

from ddl.perf.hardware.device import Device
from ddl.perf.step.layers import Layer, Table
from ddl.perf.tables.totals import params_bytes, pass_bytes

V100 = Device(peak=7.8e12, memory_bandwidth=900.1 * 2**30, memory=16e9)  # PALEO's GB of memory traffic are GiB
BANDWIDTHS = {"ethernet": 10e9 / 8, "ethernet25": 25e9 / 8, "infiniband": 70e9 / 8}  # bytes per second
NVLINK_HOP = 0.029  # of a hop between nodes: 70 Gb/s over 2400 Gb/s
LEVELS_INSIDE = 3  # of a tree, in a node of eight


def step_seconds(table: Table, examples: float, *, flattened: int = 1, device: Device = V100) -> float:
  """sum over layers and their three passes of max(FLOP / peak, bytes moved / bandwidth), and the update.

  The gradient of the inputs slides over the whole padded input and so multiplies zeros, ih iw / (ow' oh') times the
  products that there are; oh' = (oh - 1) stride + 1. The update reads weights and gradients and writes weights.

  Args:
    table: the layers with weights.
    examples: per worker and step.
    flattened: points of the map that the first dense layer takes whole. PALEO's networks write that layer as a
      convolution of one output, with as many times its products in the gradient of the inputs; 1 counts what there is.
    device: its peak and memory bandwidth.
  """
  seconds = 3 * params_bytes(table) / device.memory_bandwidth
  first = next((x for x in table if x.dense), None)
  for layer in table:
    compute = examples * layer.forward_flop / device.peak
    memory = pass_bytes(layer, examples) / device.memory_bandwidth
    zeros = flattened if layer is first else _zeros(layer)
    seconds += 2 * max(compute, memory) + max(compute * zeros, memory)
  return seconds


def _zeros(layer: Layer) -> float:
  """How many times the products that there are a full convolution over the inputs makes."""
  factor = 1.0
  for size, kernel, out in zip(layer.size_in, layer.kernel, layer.size_out, strict=True):
    stride = max(1, round((size - kernel) / (out - 1))) if out > 1 else 1
    factor *= size / ((out - 1) * stride + 1)
  return factor


def tree_seconds(nbytes: float, workers: int, bandwidth: float) -> float:
  """2 (ceil(log2 n) - 3) L + 2 * 0.029 L for n > 8, 2 ceil(log2 n) 0.029 L up to 8; L = bytes / bandwidth.

  Raises:
    ValueError: for no worker, or a bandwidth that is not above 0.
  """
  return 2 * butterfly_seconds(nbytes, workers, bandwidth)


def butterfly_seconds(nbytes: float, workers: int, bandwidth: float) -> float:
  """(ceil(log2 n) - 3) L + 0.029 L for n > 8, ceil(log2 n) 0.029 L up to 8: half of a tree. ValueError as there."""
  if workers < 1:
    raise ValueError(f"{workers} workers are invalid: must be at least 1")
  if not bandwidth > 0:
    raise ValueError(f"a bandwidth of {bandwidth:g} bytes per second is invalid: must be one above 0")
  levels, hop = math.ceil(math.log2(workers)), nbytes / bandwidth
  if levels <= LEVELS_INSIDE:
    return levels * NVLINK_HOP * hop
  return (levels - LEVELS_INSIDE) * hop + NVLINK_HOP * hop
