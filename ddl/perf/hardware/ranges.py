"""Ranges of a cluster's figures: beyond any machine, but such that no prediction divides by zero or overflows."""

from ddl.perf.hardware.device import Device, Efficiency
from ddl.perf.hardware.network import Link, Network, Uplink
from ddl.perf.hardware.torus import Torus
from ddl.ranges import Range, integers

SECONDS = Range(0, 3600, unit="seconds")
BYTES = Range(1e3, 1e18, unit="bytes")
RATE = Range(1e3, 1e21, unit="bytes per second")
SHARE = Range(1e-4, 1)
COUNT = integers(1, 2**20)

RANGES: dict[type, dict[str, Range]] = {
  Device: {
    "peak": Range(1e9, 1e21, unit="FLOP per second"),
    "memory_bandwidth": RATE._replace(low=1e8),
    "memory": BYTES,
    "start": SECONDS,
    "width": Range(1, 16, unit="bytes"),
  },
  Efficiency: {"best": SHARE, "half": Range(0, 1e6, unit="examples"), "memory": SHARE},
  Link: {"latency": SECONDS, "bandwidth": RATE, "duplex": Range(0, 1)},
  Network: {"per_node": COUNT, "sites": COUNT, "card": RATE._replace(zero=True)},
  Uplink: {"nodes": COUNT, "share": SHARE},
  Torus: {"axes": Range(1, 6), "ring": COUNT},
}
