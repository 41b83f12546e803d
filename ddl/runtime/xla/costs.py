"""FLOP and bytes of the instructions of a compiled program, and the number of repetitions of its loops."""

import math
import re
from collections.abc import Mapping
from functools import cache

import numpy as np

from ddl.runtime.xla.hlo import PASSED, Instruction, Program, arrays, dims, nbytes

FREE = {
  "parameter", "constant", "tuple", "get-tuple-element", "bitcast", "after-all", "partition-id", "replica-id", "iota",
  "opt-barrier", "copy-done", "slice-done", "add-dependency", "domain",
}  # fmt: skip
COPIES = ("copy-start", "slice-start", "dynamic-slice-start")  # beside the compute
SLICES = ("dynamic-slice", "slice", "gather")
VMEM = "S(1)"  # in a layout: on the chip, so that reading it takes no memory bandwidth
TRIPS = re.compile(r'"known_trip_count":\{"n":"(\d+)"\}')
GEMM = re.compile(r'"lhs_contracting_dimensions":\[((?:"\d+",?)*)\]')
WINDOW = re.compile(r"window=\{([^}]*)\}")
LABELS = re.compile(r"dim_labels=(\w+)_(\w+)->(\w+)")
CONTRACTING = re.compile(r"lhs_contracting_dims=\{([\d,]*)\}")


class Costs:
  """Of one program. Additions and other arithmetic outside of products and convolutions are left out."""

  def __init__(self, program: Program):
    self._program = program
    self._defined = {name: {each.name: each for each in lines} for name, lines in program.computations.items()}

  def flop(self, where: str, instruction: Instruction) -> int:
    """Return the FLOP of an instruction of the computation `where`, those that it calls included, but no loop."""
    defined = self._defined[where]
    if instruction.opcode == "dot":
      return _dot(instruction, defined, CONTRACTING.search(instruction.attributes))
    if instruction.opcode == "custom-call" and (match := GEMM.search(instruction.attributes)):
      return _dot(instruction, defined, match)
    if instruction.opcode in ("convolution", "custom-call") and LABELS.search(instruction.attributes):
      return _convolution(instruction, defined)
    if instruction.opcode in ("fusion", "call"):
      return sum(self.flop(name, each) for name in instruction.called for each in self._program.computations[name])
    return 0

  def nbytes(self, where: str, instruction: Instruction, drives: bool = False) -> int:
    """Return the bytes that an instruction reads from and writes to memory; of what it slices, the slice alone.

    drives: it is a step of a chain, whose message it hands on in place: that is left out.
    """
    if instruction.opcode in FREE:
      return 0
    if instruction.opcode in COPIES:
      return _held(instruction.shape)  # a tuple of source and copy
    if instruction.opcode in SLICES:
      return 2 * _held(instruction.shape)
    defined = self._defined[where]
    read = [_held(defined[name].shape) if name in defined else 0 for name in instruction.operands]
    written = _held(instruction.shape)
    if instruction.opcode == "dynamic-update-slice":
      return 2 * read[1]
    if drives:
      handed_on = [int(place) for _, place in PASSED.findall(instruction.attributes)]  # two results may have one source
      in_place = sum(read[place] for place in handed_on)
      return sum(read) - sum(read[place] for place in {*handed_on}) + max(0, written - in_place)
    for name in instruction.called if instruction.opcode == "fusion" else ():
      inner = self._program.computations[name]
      users: dict[str, list[Instruction]] = {}
      for each in inner:
        for operand in each.operands:
          users.setdefault(operand, []).append(each)
      for each in inner:
        using = users.get(each.name, [])
        if each.opcode != "parameter" or not using or any(user.operands[0] != each.name for user in using):
          continue
        place = int(each.arguments)
        if all(user.opcode in SLICES for user in using):
          read[place] = min(read[place], sum(_held(user.shape) for user in using))
        elif all(user.opcode == "dynamic-update-slice" for user in using):  # in place
          updates = sum(_held(self._defined[name][user.operands[1]].shape) for user in using)
          read[place], written = 0, max(0, written - read[place]) + updates
    return sum(read) + written

  def trips(self, loop: Instruction) -> int:
    """Return how often the body of a loop runs: as XLA notes it, or the constant that its condition compares with."""
    if match := TRIPS.search(loop.attributes):
      return int(match[1])
    name = re.search(r"condition=%?([\w.\-]+)", loop.attributes)
    condition = self._program.computations.get(name[1], ()) if name else ()
    numbers = [int(each.arguments) for each in condition if each.opcode == "constant" and each.arguments.isdigit()]
    return max(numbers, default=1)


def _held(shape: str) -> int:
  """Bytes of the arrays of a shape that are in memory."""
  return sum(nbytes(kind, sizes) for kind, sizes, layout in arrays(shape) if VMEM not in layout)


def _sizes(shape: str) -> list[int]:
  """Of the first array."""
  return dims(arrays(shape)[0][1])


def _dot(instruction: Instruction, defined: Mapping[str, Instruction], contracting: re.Match[str] | None) -> int:
  """2 for each value of the result and of the contracted axes."""
  left = _sizes(defined[instruction.operands[0]].shape)
  axes = [int(axis) for axis in re.findall(r"\d+", contracting[1])] if contracting else []
  return 2 * math.prod(_sizes(instruction.shape)) * math.prod(left[axis] for axis in axes)


def _convolution(instruction: Instruction, defined: Mapping[str, Instruction]) -> int:
  """2 for each value of the result, input channel and tap, less the taps on padding."""
  match = LABELS.search(instruction.attributes)
  assert match
  left, right, out = match.groups()
  x, kernel = (_sizes(defined[name].shape) for name in instruction.operands[:2])
  y = _sizes(instruction.shape)
  found = WINDOW.search(instruction.attributes)
  window = dict(part.split("=") for part in found[1].split()) if found else {}

  def setting(key: str, axis: int, default: str) -> str:
    return window[key].split("x")[axis] if key in window else default

  taps = 1
  for axis in range(sum(label.isdigit() for label in out)):
    label = str(axis)
    low = int(setting("pad", axis, "0_0").split("_")[0])
    steps = (int(setting(key, axis, "1")) for key in ("stride", "lhs_dilate", "rhs_dilate"))
    taps *= _taps(x[left.index(label)], kernel[right.index(label)], y[out.index(label)], low, *steps)
  return 2 * y[out.index("b")] * y[out.index("f")] * kernel[right.index("i")] * taps


@cache
def _taps(size: int, kernel: int, out: int, low: int, stride: int, spread: int, dilation: int) -> int:
  """Number of pairs of an output position and a tap that meet an input."""
  at = np.arange(out)[:, None] * stride + np.arange(kernel)[None] * dilation - low
  return int(np.count_nonzero((at >= 0) & (at % spread == 0) & (at // spread < size)))
