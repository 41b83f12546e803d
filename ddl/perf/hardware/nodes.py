"""Two-socket CPU nodes of 2015 and 2016 on InfiniBand and Ethernet; a worker is a node.

The peak is cores * GHz * 32: two AVX2 multiply-adds of 8 float32 in a cycle of a core. It and the one-way bandwidth
give the comp-to-comms ratios reported by arXiv 1602.06709: 336 FLOP per byte for FDR, 1336 for 10 GbE.
"""

from typing import Any

from ddl.perf.hardware.cluster import ASSUMED, Cluster
from ddl.perf.hardware.device import Device
from ddl.perf.hardware.network import Link, Network

FDR = Link(latency=0.7e-6, bandwidth=56e9 / 8)
_ASSUMED = "FDR latency: arXiv 1708.02983, table 2; assumed: float32, full line rate, full duplex, efficiency 0.5"


def _node(title: str, cores: int, gigahertz: float, link: Link, source: str, **more: Any) -> Cluster:
  """memory: bytes; transfers: of its memory, per second."""
  transfers, memory = more.pop("transfers", 2133e6), more.pop("memory")
  bandwidth = 2 * 4 * 8 * transfers  # sockets * channels * bytes * transfers per second
  device = Device(peak=cores * gigahertz * 1e9 * 32, memory_bandwidth=bandwidth, memory=memory)
  return Cluster(title, device, ASSUMED, Network(link), source, **more)


NODES = {
  "cori_fdr": _node(
    "Cori phase I / Endeavor: 2 x E5-2698 v3 (32 cores, 2.3 GHz), FDR InfiniBand 56 Gb/s", 32, 2.3, FDR,
    f"arXiv 1602.06709 (node, FDR); NERSC's Cori configuration (128 GB; Cori itself has Aries); {_ASSUMED}",
    memory=128e9,
  ),
  "aws_c4_8xlarge": _node(
    "AWS c4.8xlarge: 2 x E5-2666 v3 (18 cores, 2.9 GHz), 10 Gb/s Ethernet", 18, 2.9, Link(50e-6, 10e9 / 8),
    "arXiv 1602.06709 (node, 10 GbE); EC2's instance types (60 GiB); assumed: float32, latency 50 us, full line "
    "rate, full duplex, DDR4-1866, efficiency 0.5",
    memory=60 * 2**30, transfers=1866e6,
  ),
  "asr": _node(
    "Speech recognition runs: 2 x E5-2697 v3 (28 cores, 2.6 GHz), FDR InfiniBand 56 Gb/s", 28, 2.6, FDR,
    f"arXiv 1602.06709 (node, FDR); assumed: 64 GB; {_ASSUMED}", memory=64e9, workers=16,
  ),
}  # fmt: skip
