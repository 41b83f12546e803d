"""Bytes of a message by the number format that is sent, and the seconds of writing gradients in it.

A block of 512 values of the integer formats has a float32 scale, as in `ddl.algorithms.wrappers.int8`. Their all-reduce
is that of arXiv 2501.18512: strips go to their owners, are added up in float32, rounded again and gathered, which are
the bytes of any other all-reduce. PowerSGD (arXiv 1905.13727) sends r (n + m) values of each matrix [n, m], or the n m
of it if they are not more, in two all-reduces, the second of which needs the first.
"""

from ddl.perf import units
from ddl.perf.hardware.device import Device
from ddl.perf.patterns import Op
from ddl.perf.step.layers import Table
from ddl.perf.tables.totals import FLOAT

BLOCK = 512  # values per scale
FORMATS = {"float32": 4.0, "bfloat16": 2.0, "float16": 2.0, "int8": 1 + FLOAT / BLOCK, "int4": 0.5 + FLOAT / BLOCK}
PASSES = 4  # of float32 gradients through memory to compress and to expand them; assumed, casts are fused
MATRIX = 200e-6  # seconds of PowerSGD for each matrix: some 20 small kernels of 10 us; assumed


def message_bytes(nbytes: float, name: str) -> float:
  """Bytes in a format of what takes `nbytes` in float32; ValueError for an unknown format."""
  if name not in FORMATS:
    raise ValueError(f"no number format named '{name}'; known are {', '.join(FORMATS)}")
  return units.amount("bytes of a message", nbytes) * FORMATS[name] / FLOAT


def encode_seconds(nbytes: float, name: str, device: Device) -> float:
  """Seconds of a step for compressing float32 gradients: PASSES n / memory bandwidth; none for a cast."""
  return PASSES * nbytes / device.memory_bandwidth if name.startswith("int") else 0.0


def powersgd_encode_seconds(table: Table, nbytes: float, device: Device) -> float:
  """The same for PowerSGD, and MATRIX for each matrix."""
  return PASSES * nbytes / device.memory_bandwidth + MATRIX * len(held(table))


def held(table: Table) -> Table:
  """The layers with parameters of their own."""
  return tuple(layer for layer in table if layer.params)


def powersgd(table: Table, rank: int) -> tuple[Op, Op]:
  """The two all-reduces of a step: P = M Q with the biases, then Q = M^T P. rank: at most min(n, m) of a matrix."""
  first = second = 0
  for layer in held(table):
    weights = min(layer.weights, layer.params)
    rows, columns = weights // layer.outputs, layer.outputs  # a kernel is [kh kw ifm, ofm]
    thin = min(units.count("rank", rank), rows, columns)
    compressed = thin * (rows + columns) < weights  # else as it is
    first += (rows * thin if compressed else weights) + layer.params - weights
    second += columns * thin * compressed
  return Op("all_reduce", FLOAT * first), Op("all_reduce", FLOAT * second)
