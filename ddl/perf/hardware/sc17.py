"""The machines of arXiv 1708.02983 (SC17): GPUs on one PCIe host, Knights Landing nodes and parts of one, its networks.

The networks of its table 2 carry the GPU of the PCIe host, one worker per node, so that only the network differs.
"""

from ddl.perf.hardware.cluster import ASSUMED, Cluster
from ddl.perf.hardware.device import Device
from ddl.perf.hardware.network import Link, Network

M40 = Device(peak=6.8e12, memory_bandwidth=288e9, memory=12e9)
_M40 = "NVIDIA's Tesla M40 (6.8 TFLOP/s in float32, 288 GB/s, 12 GB); assumed: that GPU"
PCIE3 = Link(latency=10e-6, bandwidth=16 * 8e9 * 128 / 130 / 8)  # 16 lanes * 8 GT/s, 128b/130b
KNL = Device(peak=68 * 1.4e9 * 64, memory_bandwidth=450e9, memory=16 * 2**30)  # two AVX-512 multiply-adds of 16 float32
_KNL = "Xeon Phi 7250 (68 cores, 1.4 GHz, float32, 16 GB MCDRAM) and its 450 GB/s: NERSC's pages on Cori KNL"


def _network(title: str, latency: float, seconds_per_byte: float) -> Cluster:
  return Cluster(
    title=f"{title}, one GPU per node",
    device=M40,
    efficiency=ASSUMED,
    network=Network(between=Link(latency, 1 / seconds_per_byte)),
    source=f"arXiv 1708.02983, table 2 (latency, seconds per byte, as reported); {_M40}, full duplex, efficiency 0.5",
  )


def _parts(parts: int) -> Cluster:
  # A message between parts is read and written in the same MCDRAM, by all parts at once.
  link = Link(latency=1e-6, bandwidth=KNL.memory_bandwidth / 2 / parts)
  return Cluster(
    title=f"One Xeon Phi 7250 in {parts} parts; a worker is a part",
    device=Device(KNL.peak / parts, KNL.memory_bandwidth / parts, KNL.memory / parts),
    efficiency=ASSUMED,
    network=Network(between=link),
    source=f"arXiv 1708.02983 (the partition); {_KNL}; assumed: latency 1 us, copies through MCDRAM, efficiency 0.5",
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
    f"{_M40}, a link of 16 lanes each, latency 10 us, full duplex, efficiency 0.5",
    workers=8,
  ),
  "knl_aries": Cluster(
    title="Cori phase II: Xeon Phi 7250 (68 cores, 1.4 GHz) on Aries; a worker is a node",
    device=KNL,
    efficiency=ASSUMED,
    network=Network(between=Link(latency=3.7e-6, bandwidth=8e9)),
    source=f"{_KNL}; Aries: NERSC's Cori configuration (8 GB/s, the upper end of 0.25 to 3.7 us); "
    "assumed: full duplex, efficiency 0.5",
    workers=9688,
  ),
  **{f"knl_{parts}_parts": _parts(parts) for parts in (4, 8, 16)},
  "fdr": _network("Mellanox FDR InfiniBand 56 Gb/s", 0.7e-6, 0.2e-9),
  "qdr": _network("Intel QDR InfiniBand 40 Gb/s", 1.2e-6, 0.3e-9),
  "ethernet_10g": _network("10 Gb/s Ethernet (NetEffect)", 7.2e-6, 0.9e-9),
}
