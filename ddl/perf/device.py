"""Model devices: peak rates, efficiency as a function of the examples, and the roofline seconds of a step.

Each part of a step is bound by computation or by memory traffic (Williams et al. 2009, CACM 52(4); PALEO, Qi, Sparks,
Talwalkar, ICLR 2017). All predictions of this package use `step_seconds`.
"""

import tomllib
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

USABLE = 0.9  # share of a device's memory; the rest is for libraries, buffers of collectives and fragmentation; assumed
WIDTHS = {"float32": 4, "tf32": 4, "bfloat16": 2}  # bytes per value; bfloat16 also stands for float16


class Device(NamedTuple):
  """One worker's accelerator, or all cores of a node if the worker is a whole node."""

  peak: float  # FLOP per second in the precision of training
  memory_bandwidth: float  # bytes per second
  memory: float  # bytes
  start: float = 0.0  # fixed seconds of every step: kernel launches, dispatch
  width: int = 4  # bytes per value in the precision of the peak
  chip: str = ""  # key in devices.toml, which contains efficiencies fitted to published steps

  @property
  def usable(self) -> float:
    """Bytes of memory that a step can use."""
    return USABLE * self.memory


class Efficiency(NamedTuple):
  """The share of the peak that a step on b examples reaches: best * b / (b + half)."""

  best: float  # limit for many examples, in (0, 1]
  half: float = 0.0  # number of examples with which a step reaches half of `best`
  memory: float = 1.0  # share of the memory bandwidth that a step reaches, in (0, 1]

  def at(self, examples: float) -> float:
    """Return the share of the peak that a step reaches with `examples` examples per worker."""
    return self.best * examples / (examples + self.half)


class LayerWork(NamedTuple):
  """The work of a layer or of a whole training step: forward pass, weight and input gradients, and update."""

  flop: float  # per example
  moved: float = 0.0  # values read and written per example: feature maps and their gradients
  held: float = 0.0  # values read and written per step: parameters and their gradients
  update: float = 0.0  # additional values per step that are never sent: the optimizer state


Step = float | Sequence[LayerWork]  # a number: the FLOP per example of a step without memory traffic


def step_parts(step: Step) -> Sequence[LayerWork]:
  """Return the parts of a step; a number of FLOP becomes a single part."""
  return [LayerWork(step)] if isinstance(step, int | float) else step


def part_terms(part: LayerWork, examples: float, device: Device, efficiency: Efficiency) -> tuple[float, float]:
  """Return (seconds of computation, seconds of memory traffic) of a part, which takes the longer of the two.

  They are flop * b / (peak * efficiency(b)) and width * (moved * b + held + update) / (memory bandwidth *
  efficiency.memory) for b examples.
  """
  computing = part.flop * (examples + efficiency.half) / (device.peak * efficiency.best)
  moving = (
    device.width * (part.moved * examples + part.held + part.update) / (device.memory_bandwidth * efficiency.memory)
  )
  return computing, moving


def part_seconds(part: LayerWork, examples: float, device: Device, efficiency: Efficiency) -> float:
  """Return the seconds of a part: the larger of both `part_terms`."""
  return max(part_terms(part, examples, device, efficiency))


def step_seconds(step: Step, examples: float, device: Device, efficiency: Efficiency) -> float:
  """Return the seconds of a step: `device.start` + the sum of `part_seconds` over its parts."""
  return device.start + sum(part_seconds(part, examples, device, efficiency) for part in step_parts(step))


class Chip(NamedTuple):
  """A device's data sheet."""

  title: str
  generation: str  # devices of the same generation run the same kernels
  peaks: dict[str, float]  # FLOP per second by number format; bfloat16 accumulates in float32
  memory_bandwidth: float  # bytes per second
  memory: float  # bytes

  def device(self, form: str) -> Device:
    """Return this chip as a device that trains in the number format `form`, a key of `peaks`."""
    return Device(self.peaks[form], self.memory_bandwidth, self.memory, width=WIDTHS[form])


@cache
def device_data() -> dict[str, Any]:
  """Read devices.toml."""
  return tomllib.loads(Path(__file__).with_name("devices.toml").read_text(encoding="utf-8"))


@cache
def chips() -> dict[str, Chip]:
  """Return the data sheets of devices.toml by name."""
  return {
    name: Chip(peaks={form: sheet.pop(form) for form in WIDTHS if form in sheet}, **sheet)
    for name, sheet in ((name, dict(sheet)) for name, sheet in device_data()["chip"].items())
  }
