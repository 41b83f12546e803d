"""The V100 clusters of DaSGD (arXiv 2006.00441) as its authors' version of PALEO has them: no latency, full efficiency.

Their V100 has 7.8 TFLOP/s, which is NVIDIA's figure for float64 (15.7 for float32); kept, as their results rest on it.
"""

from ddl.perf.hardware.cluster import Cluster
from ddl.perf.hardware.device import Device, Efficiency
from ddl.perf.hardware.network import Link, Network

V100 = Device(peak=7.8e12, memory_bandwidth=900.1e9, memory=16e9)
NVLINK = Link(latency=0.0, bandwidth=2400e9 / 8)


def _v100(title: str, network: Network) -> Cluster:
  source = (
    "arXiv 2006.00441 and its authors' github.com/sweetwenwen/paleo-dasgd, paleo/device.py (7800 GFLOP/s, "
    "float32, 900.1 GB/s, network in Gb/s, NVLink 2400 Gb/s in nodes of 8, no latency, efficiency 1); "
    "NVIDIA's Tesla V100 (16 GB)"
  )
  return Cluster(f"V100, {title}", V100, Efficiency(best=1.0), network, source)


def _nodes(gigabits: int, kind: str) -> Cluster:
  network = Network(between=Link(latency=0.0, bandwidth=gigabits * 1e9 / 8), inside=NVLINK, per_node=8)
  return _v100(f"{gigabits} Gb/s {kind} between nodes of 8", network)


DASGD = {
  "dasgd_v100_10g": _nodes(10, "Ethernet"),
  "dasgd_v100_25g": _nodes(25, "Ethernet"),
  "dasgd_v100_70g": _nodes(70, "InfiniBand"),
  "dasgd_v100_nvlink": _v100("NVLink 2400 Gb/s between all", Network(between=NVLINK)),
}
