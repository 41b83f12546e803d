"""Two-socket CPU nodes of 2015 and 2016 on InfiniBand and Ethernet; a worker is a node.

The peak is cores * GHz * 32: two AVX2 multiply-adds of 8 float32 in a cycle of a core. It and the one-way bandwidth
give the comp-to-comms ratios reported by arXiv 1602.06709: 336 FLOP per byte for FDR, 1336 for 10 GbE.
"""

from ddl.perf.hardware.cluster import ASSUMED, Cluster
from ddl.perf.hardware.device import Device
from ddl.perf.hardware.network import Link, Network

FDR = Link(latency=0.7e-6, bandwidth=56e9 / 8)
_DDR4_2133 = 2 * 4 * 8 * 2133e6  # sockets * channels * bytes * transfers per second
_ASSUMED = "FDR latency: arXiv 1708.02983, table 2; assumed: float32, full line rate, full duplex, efficiency 0.5"

NODES = {
  "cori_fdr": Cluster(
    title="Cori phase I / Endeavor: 2 x E5-2698 v3 (32 cores, 2.3 GHz), FDR InfiniBand 56 Gb/s",
    device=Device(peak=32 * 2.3e9 * 32, memory_bandwidth=_DDR4_2133, memory=128e9),
    efficiency=ASSUMED,
    network=Network(between=FDR),
    source=f"arXiv 1602.06709 (node, FDR); NERSC's Cori configuration (128 GB; Cori itself has Aries); {_ASSUMED}",
  ),
  "aws_c4_8xlarge": Cluster(
    title="AWS c4.8xlarge: 2 x E5-2666 v3 (18 cores, 2.9 GHz), 10 Gb/s Ethernet",
    device=Device(peak=18 * 2.9e9 * 32, memory_bandwidth=2 * 4 * 8 * 1866e6, memory=60 * 2**30),
    efficiency=ASSUMED,
    network=Network(between=Link(latency=50e-6, bandwidth=10e9 / 8)),
    source="arXiv 1602.06709 (node, 10 GbE); EC2's instance types (60 GiB); assumed: float32, latency 50 us, full line "
    "rate, full duplex, DDR4-1866, efficiency 0.5",
  ),
  "asr": Cluster(
    title="Speech recognition runs: 2 x E5-2697 v3 (28 cores, 2.6 GHz), FDR InfiniBand 56 Gb/s",
    device=Device(peak=28 * 2.6e9 * 32, memory_bandwidth=_DDR4_2133, memory=64e9),
    efficiency=ASSUMED,
    network=Network(between=FDR),
    source=f"arXiv 1602.06709 (node, FDR); assumed: 64 GB; {_ASSUMED}",
    workers=16,
  ),
}
