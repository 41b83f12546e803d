"""A device's peak rates, the share of them that a step with few examples reaches, and the seconds of a step.

A step is a roofline of its parts, each bound by what it computes or by what it moves (Williams et al. 2009, CACM 52(4);
PALEO, Qi, Sparks, Talwalkar, ICLR 2017). Every prediction of this package takes a step's seconds from here.
"""

import math
import tomllib
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from ddl.perf import units

WIDTHS = {"float32": 4, "tf32": 4, "bfloat16": 2}  # bytes of a value; bfloat16 stands for float16 too


class Device(NamedTuple):
  """One worker's accelerator, or all cores of a node where a worker is a node."""

  peak: float  # FLOP per second in the precision of training
  memory_bandwidth: float  # bytes per second
  memory: float  # bytes
  start: float = 0.0  # seconds of every step, whatever it computes: kernel launches, dispatch
  width: int = 4  # bytes of a value in the precision of the peak
  chip: str = ""  # name in devices.toml, whose published steps then determine its efficiency


class Efficiency(NamedTuple):
  """The share of the peak that a step on b examples reaches: best * b / (b + half)."""

  best: float  # with many examples, in (0, 1]
  half: float = 0.0  # examples with which half of the best is reached
  memory: float = 1.0  # share of the memory bandwidth that reading and writing reach, in (0, 1]

  def at(self, examples: float) -> float:
    """Return the efficiency of a step on so many examples per worker."""
    return self.best * examples / (examples + self.half)


class LayerWork(NamedTuple):
  """Work of a layer, or of a whole step, in training: forward and both gradients."""

  flop: float  # per example
  moved: float = 0.0  # values per example, read and written: feature maps and their gradients
  held: float = 0.0  # values whatever the examples, read and written: parameters and their gradients
  update: float = 0.0  # further ones that no message carries: the optimizer's state


Step = float | Sequence[LayerWork]  # a number is the FLOP per example of a step that moves nothing


def step_parts(step: Step) -> Sequence[LayerWork]:
  """Return the parts of a step that may be a number."""
  return [LayerWork(step)] if isinstance(step, int | float) else step


def part_terms(part: LayerWork, examples: float, device: Device, efficiency: Efficiency) -> tuple[float, float]:
  """Return (seconds of computing, seconds of moving) of a part, which takes the larger of both."""
  computing = part.flop * (examples + efficiency.half) / (device.peak * efficiency.best)
  moving = (
    device.width * (part.moved * examples + part.held + part.update) / (device.memory_bandwidth * efficiency.memory)
  )
  return computing, moving


def part_seconds(part: LayerWork, examples: float, device: Device, efficiency: Efficiency) -> float:
  """Return max(F b / (peak * efficiency(b)), width * (moved b + held) / (memory bandwidth * share))."""
  return max(part_terms(part, examples, device, efficiency))


def step_seconds(step: Step, examples: float, device: Device, efficiency: Efficiency) -> float:
  """Return start + the sum of `part_seconds` over the parts.

  F b / efficiency(b) is F (b + half) / best. The optimizer's update is left out.
  """
  if not examples > 0:
    raise ValueError(f"examples per worker must be above 0, got {examples:g}.")
  for name, share in (("best efficiency", efficiency.best), ("share of the memory bandwidth", efficiency.memory)):
    if not 0 < share <= 1:
      raise ValueError(f"{name} must be above 0 and at most 1, got {share:g}.")
  units.amount("examples of half the best efficiency", efficiency.half)
  units.positive("peak (FLOP/s)", device.peak)
  units.positive("memory bandwidth (bytes/s)", device.memory_bandwidth)
  return device.start + sum(part_seconds(part, examples, device, efficiency) for part in step_parts(step))


def fixed_seconds(step: Step, device: Device, efficiency: Efficiency) -> float:
  """Return the seconds of a step that do not depend on its examples: `step_seconds` as b goes to 0."""
  return step_seconds(step, math.ulp(0.0), device, efficiency)


class Chip(NamedTuple):
  """A device as its vendor's data sheet has it."""

  title: str
  generation: str  # devices of one generation run the same kernels
  peaks: dict[str, float]  # FLOP per second, by format; of bfloat16 with sums in float32
  memory_bandwidth: float  # bytes per second
  memory: float  # bytes

  def device(self, form: str) -> Device:
    """Return the device in a number format of `peaks`."""
    return Device(self.peaks[form], self.memory_bandwidth, self.memory, width=WIDTHS[form])


@cache
def device_data() -> dict[str, Any]:
  """Return the contents of devices.toml."""
  return tomllib.loads(Path(__file__).with_name("devices.toml").read_text(encoding="utf-8"))


@cache
def chips() -> dict[str, Chip]:
  """Return the devices of devices.toml by name."""
  return {
    name: Chip(peaks={form: sheet.pop(form) for form in WIDTHS if form in sheet}, **sheet)
    for name, sheet in ((name, dict(sheet)) for name, sheet in device_data()["chip"].items())
  }
