"""Clusters of papers: CPU nodes, the machines of SC17, the V100s of DaSGD.

Two-socket CPU nodes of 2015 and 2016 (arXiv 1602.06709); a worker is a node. The peak is cores * GHz * 32: two AVX2
multiply-adds of 8 float32 in a cycle of a core. It and the one-way bandwidth give the comp-to-comms ratios reported
there: 336 FLOP per byte for FDR, 1336 for 10 GbE.

arXiv 1708.02983 (SC17): GPUs on one PCIe host, Knights Landing nodes and parts of one, and the networks of its table 2,
with the GPU of the PCIe host and one worker per node, so that only the network differs.

DaSGD (arXiv 2006.00441): networks as in its authors' version of PALEO, without latency. Their V100 has 7.8 TFLOP/s,
NVIDIA's figure for float64, and reaches all of it; here it has the 15.7 for float32 (`papers.paleo` keeps theirs).

Their efficiency is `cluster.ASSUMED`, until `devices.lookup` is asked for a kind of network.
"""

from typing import Any

from ddl.perf.hardware.cluster import ASSUMED, Cluster, Link, Network
from ddl.perf.hardware.device import Device

FDR = Link(latency=0.7e-6, bandwidth=56e9 / 8)
_ASSUMED = "FDR latency: arXiv 1708.02983, table 2; assumed: float32, full line rate, full duplex"


def _node(title: str, cores: int, gigahertz: float, link: Link, source: str, **more: Any) -> Cluster:
  """memory: bytes; transfers: of its memory, per second."""
  transfers, memory = more.pop("transfers", 2133e6), more.pop("memory")
  bandwidth = 2 * 4 * 8 * transfers  # sockets * channels * bytes * transfers per second
  device = Device(peak=cores * gigahertz * 1e9 * 32, memory_bandwidth=bandwidth, memory=memory, chip="haswell")
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
    "rate, full duplex, DDR4-1866",
    memory=60 * 2**30, transfers=1866e6,
  ),
  "asr": _node(
    "Speech recognition runs: 2 x E5-2697 v3 (28 cores, 2.6 GHz), FDR InfiniBand 56 Gb/s", 28, 2.6, FDR,
    f"arXiv 1602.06709 (node, FDR); assumed: 64 GB; {_ASSUMED}", memory=64e9, workers=16,
  ),
}  # fmt: skip

M40 = Device(peak=6.8e12, memory_bandwidth=288e9, memory=12e9, chip="m40")
_M40 = "NVIDIA's Tesla M40 (6.8 TFLOP/s in float32, 288 GB/s, 12 GB); assumed: that GPU"
PCIE3 = Link(latency=10e-6, bandwidth=16 * 8e9 * 128 / 130 / 8)  # 16 lanes * 8 GT/s, 128b/130b
# Two AVX-512 multiply-adds of 16 float32.
KNL = Device(peak=68 * 1.4e9 * 64, memory_bandwidth=450e9, memory=16 * 2**30, chip="knl")
_KNL = "Xeon Phi 7250 (68 cores, 1.4 GHz, float32, 16 GB MCDRAM) and its 450 GB/s: NERSC's pages on Cori KNL"


def _network(title: str, latency: float, seconds_per_byte: float) -> Cluster:
  return Cluster(
    title=f"{title}, one GPU per node",
    device=M40,
    efficiency=ASSUMED,
    network=Network(between=Link(latency, 1 / seconds_per_byte)),
    source=f"arXiv 1708.02983, table 2 (latency, seconds per byte, as reported); {_M40}, full duplex",
  )


def _parts(parts: int) -> Cluster:
  # A message between parts is read and written in the same MCDRAM, by all parts at once.
  link = Link(latency=1e-6, bandwidth=KNL.memory_bandwidth / 2 / parts)
  return Cluster(
    title=f"One Xeon Phi 7250 in {parts} parts; a worker is a part",
    device=KNL._replace(
      peak=KNL.peak / parts, memory_bandwidth=KNL.memory_bandwidth / parts, memory=KNL.memory / parts
    ),
    efficiency=ASSUMED,
    network=Network(between=link),
    source=f"arXiv 1708.02983 (the partition); {_KNL}; assumed: latency 1 us, copies through MCDRAM",
    workers=parts,
  )


SC17 = {
  "pcie_8gpu": Cluster(
    title="8 GPUs on one PCIe 3.0 x16 host",
    device=M40,
    efficiency=ASSUMED,
    network=Network(between=PCIE3, inside=PCIE3, per_node=8),
    host=PCIE3,
    source="arXiv 1708.02983 (8 GPUs, the master on the host); PCI Express 3.0 (15.75 GB/s for 16 lanes); "
    f"{_M40}, a link of 16 lanes each, latency 10 us, full duplex",
    workers=8,
  ),
  "knl_aries": Cluster(
    title="Cori phase II: Xeon Phi 7250 (68 cores, 1.4 GHz) on Aries; a worker is a node",
    device=KNL,
    efficiency=ASSUMED,
    network=Network(between=Link(latency=3.7e-6, bandwidth=8e9)),
    source=f"{_KNL}; Aries: NERSC's Cori configuration (8 GB/s, the upper end of 0.25 to 3.7 us); assumed: full duplex",
    workers=9688,
  ),
  **{f"knl_{parts}_parts": _parts(parts) for parts in (4, 8, 16)},
  "fdr": _network("Mellanox FDR InfiniBand 56 Gb/s", 0.7e-6, 0.2e-9),
  "qdr": _network("Intel QDR InfiniBand 40 Gb/s", 1.2e-6, 0.3e-9),
  "ethernet_10g": _network("10 Gb/s Ethernet (NetEffect)", 7.2e-6, 0.9e-9),
}

V100 = Device(peak=15.7e12, memory_bandwidth=900.1e9, memory=16e9, chip="v100")
NVLINK = Link(latency=0.0, bandwidth=2400e9 / 8)


def _v100(title: str, network: Network) -> Cluster:
  source = (
    "arXiv 2006.00441 and its authors' github.com/sweetwenwen/paleo-dasgd, paleo/device.py (900.1 GB/s, network in "
    "Gb/s, NVLink 2400 Gb/s in nodes of 8, no latency); NVIDIA's Tesla V100 (15.7 TFLOP/s in float32, 16 GB; theirs "
    "has 7.8, all of it reached)"
  )
  return Cluster(f"V100, {title}", V100, ASSUMED, network, source)


def _nodes(gigabits: int, kind: str) -> Cluster:
  network = Network(between=Link(latency=0.0, bandwidth=gigabits * 1e9 / 8), inside=NVLINK, per_node=8)
  return _v100(f"{gigabits} Gb/s {kind} between nodes of 8", network)


DASGD = {
  "dasgd_v100_10g": _nodes(10, "Ethernet"),
  "dasgd_v100_25g": _nodes(25, "Ethernet"),
  "dasgd_v100_70g": _nodes(70, "InfiniBand"),
  "dasgd_v100_nvlink": _v100("NVLink 2400 Gb/s between all", Network(between=NVLINK)),
}
