"""Ranges of a cluster's figures: beyond any machine, but such that no prediction divides by zero or overflows."""

from typing import Any, NamedTuple

from ddl.perf.hardware.device import Device, Efficiency
from ddl.perf.hardware.network import Link, Network, Uplink
from ddl.perf.hardware.torus import Torus


class Range(NamedTuple):
  """Valid numbers, both ends included."""

  least: float
  most: float
  unit: str = ""
  zero: bool = False  # whether 0 is valid too


SECONDS, BYTES, RATE = Range(0, 3600, "seconds"), Range(1e3, 1e18, "bytes"), Range(1e3, 1e21, "bytes per second")
SHARE = Range(1e-6, 1)
COUNT = Range(1, 2**20)

RANGES: dict[type, dict[str, Range]] = {
  Device: {
    "peak": Range(1e6, 1e21, "FLOP per second"),
    "memory_bandwidth": RATE,
    "memory": BYTES,
    "start": SECONDS,
    "width": Range(1, 16, "bytes"),
  },
  Efficiency: {"best": SHARE, "half": Range(0, 1e9, "examples"), "memory": SHARE},
  Link: {"latency": SECONDS, "bandwidth": RATE, "duplex": Range(0, 1)},
  Network: {"per_node": COUNT, "sites": COUNT, "card": RATE._replace(zero=True)},
  Uplink: {"nodes": COUNT, "share": SHARE},
  Torus: {"axes": Range(1, 6), "ring": COUNT},
}


def check(name: str, value: Any, valid: Range) -> Any:
  """Return a number within the range; ValueError, one line, for any other value."""
  number = isinstance(value, int | float) and not isinstance(value, bool)
  if number and (valid.least <= value <= valid.most or (valid.zero and not value)):
    return value
  wanted = f"from {valid.least:g} to {valid.most:g} {valid.unit}".rstrip() + ", or 0" * valid.zero
  raise ValueError(f"{name} must be a number {wanted}, got {value!r:.40}.")
