"""A device's peak rates, the share of them that a step with few examples reaches, and the seconds of a step.

A step is a roofline of its parts, each bound by what it computes or by what it moves (Williams et al. 2009, CACM 52(4);
PALEO, Qi, Sparks, Talwalkar, ICLR 2017). Every prediction of this package takes a step's seconds from here.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

from ddl.perf import units


class Device(NamedTuple):
  """One worker's accelerator, or all cores of a node where a worker is a node."""

  peak: float  # FLOP per second in the precision of training
  memory_bandwidth: float  # bytes per second
  memory: float  # bytes
  start: float = 0.0  # seconds of every step, whatever it computes: kernel launches, dispatch
  width: int = 4  # bytes of a value in the precision of the peak
  chip: str = ""  # name in `devices`, whose published steps then tell its efficiency


class Efficiency(NamedTuple):
  """The share of the peak that a step on b examples reaches: best * b / (b + half)."""

  best: float  # with many examples, in (0, 1]
  half: float = 0.0  # examples with which half of the best is reached
  memory: float = 1.0  # share of the memory bandwidth that reading and writing reach, in (0, 1]

  def at(self, examples: float) -> float:
    """Efficiency of a step on so many examples per worker."""
    return self.best * examples / (examples + self.half)


class Part(NamedTuple):
  """Work of a layer, or of a whole step, in training: forward and both gradients."""

  flop: float  # per example
  moved: float = 0.0  # values per example, read and written: feature maps and their gradients
  held: float = 0.0  # values whatever the examples, read and written: parameters and their gradients
  update: float = 0.0  # further ones that no message carries: the optimizer's state


Step = float | Sequence[Part]  # a number is the FLOP per example of a step that moves nothing


def step_parts(step: Step) -> Sequence[Part]:
  """Return the parts of a step that may be a number."""
  return [Part(step)] if isinstance(step, int | float) else step


def part_seconds(part: Part, examples: float, device: Device, efficiency: Efficiency) -> float:
  """max(F b / (peak * efficiency(b)), width * (moved b + held) / (memory bandwidth * share))."""
  computing, moving = part_terms(part, examples, device, efficiency)
  return max(computing, moving)


def part_terms(part: Part, examples: float, device: Device, efficiency: Efficiency) -> tuple[float, float]:
  """(seconds of computing, seconds of moving) of a part, which takes the larger of both."""
  computing = part.flop * (examples + efficiency.half) / (device.peak * efficiency.best)
  moving = (
    device.width * (part.moved * examples + part.held + part.update) / (device.memory_bandwidth * efficiency.memory)
  )
  return computing, moving


def step_seconds(step: Step, examples: float, device: Device, efficiency: Efficiency) -> float:
  """start + sum over parts of max(F b / (peak * efficiency(b)), width * (moved b + held) / (memory bandwidth * share)).

  F b / efficiency(b) is F (b + half) / best. The optimizer's update is left out.

  Args:
    step: its parts, or its FLOP per example alone.
    examples: b, per worker.
    device: its peak, memory bandwidth, width and start.
    efficiency: shares of the peak and of the memory bandwidth.

  Raises:
    ValueError: for no examples, an invalid efficiency, or a device without peak or memory bandwidth.
  """
  if not examples > 0:
    raise ValueError(f"number of examples per worker is {examples:g}; invalid: must be above 0")
  if not 0 < efficiency.best <= 1:
    raise ValueError(f"best efficiency is {efficiency.best:g}; invalid: must be above 0 and at most 1")
  if not 0 < efficiency.memory <= 1:
    raise ValueError(f"share of the memory bandwidth is {efficiency.memory:g}; invalid: must be above 0 and at most 1")
  units.amount("examples of half the best efficiency", efficiency.half)
  if not (device.peak > 0 and device.memory_bandwidth > 0):
    raise ValueError(
      f"peak is {device.peak:g} FLOP/s and memory bandwidth {device.memory_bandwidth:g} bytes/s; "
      "invalid: both must be above 0"
    )
  return device.start + sum(part_seconds(part, examples, device, efficiency) for part in step_parts(step))


def fixed_seconds(step: Step, device: Device, efficiency: Efficiency) -> float:
  """Seconds of a step that do not depend on its examples: `step_seconds` as b goes to 0."""
  return step_seconds(step, math.ulp(0.0), device, efficiency)
