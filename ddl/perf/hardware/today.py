"""Clusters of today: GPU hosts on InfiniBand, TPU pods, cloud Ethernet, two data centres. Dense bfloat16 peaks.

Vendors give NVLink's and ICI's bandwidth for both directions together; here it is one way, half of that.
"""

from ddl.perf.hardware.cluster import ASSUMED, INFINIBAND_LATENCY, NCCL, NVLINK_LATENCY, Cluster, Link, Network, Torus
from ddl.perf.hardware.device import Device

BFLOAT16 = 2  # bytes of a value
START = 100e-6  # seconds: a step's dispatch and a few dozen kernels of some microseconds each
STARTS = "100 us to start a step"
H100 = Device(peak=989e12, memory_bandwidth=3.35e12, memory=80e9, start=START, width=BFLOAT16, chip="h100")
NVLINK4 = Link(NVLINK_LATENCY, bandwidth=900e9 / 2)
PCIE5 = Link(latency=10e-6, bandwidth=128e9 / 2)
_CARD = 400e9 / 8  # bytes per second of the adapter of each GPU
_INFINIBAND = Link(INFINIBAND_LATENCY, bandwidth=8 * _CARD)  # of a host
_BOOK = "jax-ml.github.io/scaling-book/tpus (wrap-around)"
_LIBRARY = "NCCL as fitted on published curves (docs/reproduction.md)"


def _dgx(device: Device, name: str, figures: str) -> Cluster:
  return Cluster(
    f"{name} SXM, NVLink inside hosts of 8, 400 Gb/s InfiniBand per GPU between them",
    device, ASSUMED,
    Network(_INFINIBAND, NVLINK4, per_node=8, card=_CARD, reduces=("inside",), library=NCCL),
    f"NVIDIA's {name} data sheet (989 TFLOP/s dense bfloat16, {figures}, NVLink 900 GB/s); DGX H100/H200 user guide "
    f"(8 adapters of 400 Gb/s); {_LIBRARY}; assumed: latencies of 1 us inside, 2.7 us between hosts and 10 us to a "
    f"host's memory, {STARTS}",
    host=PCIE5,
  )  # fmt: skip


def _tpu(title: str, device: Device, ici: float, torus: Torus, workers: int, figures: str) -> Cluster:
  """ici: bytes per second of a chip's links, both ways together."""
  network = Network(Link(latency=1e-6, bandwidth=ici / 2), torus=torus)
  source = f"{figures}; assumed: all of a chip's links in use at once, latency 1 us, {STARTS}"
  return Cluster(title, device, ASSUMED, network, source, workers=workers)


TODAY = {
  "h100_ib400": _dgx(H100, "H100", "3.35 TB/s, 80 GB"),
  "h200_ib400": _dgx(H100._replace(memory_bandwidth=4.8e12, memory=141e9, chip="h200"), "H200", "4.8 TB/s, 141 GB"),
  "tpu_v5e": _tpu(
    "TPU v5e pod: 2D torus of 256 chips", Device(197e12, 819e9, 16e9, START, BFLOAT16, "tpu_v5e"), 400e9,
    Torus(axes=2, ring=16), 256,
    "Cloud TPU's v5e page (197 TFLOP/s bfloat16, 16 GB at 819 GB/s, ICI 400 GB/s both ways per chip, 256 chips); "
    f"{_BOOK}: axes of fewer than 16 chips are lines",
  ),
  "tpu_v5p": _tpu(
    "TPU v5p pod: 3D torus of up to 6144 chips in a job", Device(459e12, 2765e9, 95e9, START, BFLOAT16, "tpu_v5p"),
    1200e9,
    Torus(axes=3, ring=4), 6144,
    "Cloud TPU's v5p page (459 TFLOP/s bfloat16, 95 GB at 2765 GB/s, ICI 1200 GB/s both ways per chip, 6144 chips in "
    f"the largest job); {_BOOK}: axes of a multiple of 4 chips are rings",
  ),
  "cloud_100g": Cluster(
    "Cloud hosts of 8 A100 on 100 Gb/s Ethernet",
    Device(peak=312e12, memory_bandwidth=1.555e12, memory=40e9, start=START, width=BFLOAT16, chip="a100_40gb"),
    ASSUMED,
    Network(Link(latency=30e-6, bandwidth=100e9 / 8), Link(NVLINK_LATENCY, 600e9 / 2), per_node=8, library=NCCL),
    "NVIDIA's A100 data sheet (312 TFLOP/s dense bfloat16, 1555 GB/s, 40 GB, NVLink 600 GB/s); Compute Engine's "
    f"a2-highgpu-8g (8 GPUs, 100 Gb/s); {_LIBRARY}; assumed: latencies of 1 and 30 us, " + STARTS,
  ),
  "two_sites_1g": Cluster(
    "Two data centres with a host of 8 H100 each, 1 Gb/s between them",
    H100, ASSUMED, Network(Link(latency=20e-3, bandwidth=1e9 / 8), NVLINK4, per_node=8, sites=2),
    "NVIDIA's H100 data sheet (dense bfloat16), as h100_ib400; half of the workers in each; assumed: 1 Gb/s "
    "and 20 ms one way, " + STARTS,
    host=PCIE5, workers=16,
  ),
}  # fmt: skip
