"""What computes: a device's peak rates, and the share of them that a step with few examples reaches."""

import math
from typing import NamedTuple


class Device(NamedTuple):
  """One worker's accelerator, or all cores of a node where a worker is a node."""

  peak: float  # FLOP per second in the precision of training
  memory_bandwidth: float  # bytes per second
  memory: float  # bytes
  start: float = 0.0  # seconds that every step takes, whatever it computes: its kernels' launches, its dispatch


class Efficiency(NamedTuple):
  """The share of the peak that a step on b examples reaches: best * b / (b + half)."""

  best: float  # with many examples, in (0, 1]
  half: float = 0.0  # examples with which half of the best is reached

  def at(self, examples: float) -> float:
    """Of a step on so many examples per worker."""
    return self.best * examples / (examples + self.half)


def step_seconds(flop_per_example: float, examples: float, device: Device, efficiency: Efficiency) -> float:
  """start + F b / (peak * efficiency(b)) = start + F (b + half) / (peak * best).

  Raises:
    ValueError: for no examples, or an efficiency that can't be.
  """
  if not examples > 0:
    raise ValueError(f"{examples:g} examples per worker; a step has at least one")
  if not 0 < efficiency.best <= 1 or not (math.isfinite(efficiency.half) and efficiency.half >= 0):
    raise ValueError(f"the efficiency {tuple(efficiency)} can't be; its best is in (0, 1] and its half 0 or more")
  return device.start + flop_per_example * examples / (device.peak * efficiency.at(examples))
