"""Devices as their vendors' data sheets have them. One GPU of a board with two. Peaks at boost clocks, dense.

K520, K80, M4000, M60, P5000 and P6000: as the README of github.com/dmikushin/cnn-benchmarks lists them. M40, V100, A100
40 GB, H100, H200 and TPUs: as in `hardware`. The others are from memory, not looked up.
"""

from typing import NamedTuple

from ddl.perf.hardware.device import Device

WIDTHS = {"float32": 4, "tf32": 4, "bfloat16": 2}  # bytes of a value; bfloat16 stands for float16 too


class Sheet(NamedTuple):
  """A device's rates; tensor cores' products have operands of 16 bits and sums in float32."""

  title: str
  generation: str  # devices of one run the same kernels
  peaks: dict[str, float]  # FLOP per second, by format
  memory_bandwidth: float  # bytes per second
  memory: float  # bytes

  def device(self, form: str) -> Device:
    """As a device of the cost model in that format."""
    return Device(self.peaks[form], self.memory_bandwidth, self.memory, width=WIDTHS[form])


def _old(title: str, generation: str, teraflops: float, gigabytes: float, memory: float) -> Sheet:
  """No tensor cores. gigabytes: per second."""
  return Sheet(title, generation, {"float32": teraflops * 1e12}, gigabytes * 1e9, memory * 1e9)


SHEETS = {
  "k520": _old("NVIDIA GRID K520", "kepler", 2.45, 160, 4),
  "k40c": _old("NVIDIA Tesla K40c", "kepler", 5.04, 288, 12),
  "k80": _old("NVIDIA Tesla K80", "kepler", 4.37, 240, 12),
  "m4000": _old("NVIDIA Quadro M4000", "maxwell", 2.57, 192, 8),
  "m40": _old("NVIDIA Tesla M40", "maxwell", 6.8, 288, 12),
  "m60": _old("NVIDIA Tesla M60", "maxwell", 4.83, 160, 8),
  "titan_x": _old("NVIDIA Titan X (Maxwell)", "maxwell", 6.69, 336, 12),
  "gtx1080": _old("NVIDIA GTX 1080", "pascal", 8.87, 320, 8),
  "gtx1080ti": _old("NVIDIA GTX 1080 Ti", "pascal", 11.34, 484, 11),
  "p5000": _old("NVIDIA Quadro P5000", "pascal", 8.87, 288, 16),
  "p6000": _old("NVIDIA Quadro P6000", "pascal", 12.63, 432, 24),
  "titan_xp": _old("NVIDIA Titan Xp", "pascal", 12.15, 548, 12),
  "p100": _old("NVIDIA Tesla P100 SXM2", "pascal", 10.6, 732, 16),
  "titan_v": _old("NVIDIA Titan V", "volta", 14.9, 653, 12),
  "rtx2080ti": _old("NVIDIA RTX 2080 Ti", "volta", 13.45, 616, 11),  # Turing has Volta's kernels for float32
  "v100": Sheet("NVIDIA V100 SXM2", "volta", {"float32": 15.7e12, "bfloat16": 125e12}, 900e9, 16e9),
  "a100_40gb": Sheet(
    "NVIDIA A100 SXM 40 GB", "ampere", {"tf32": 156e12, "bfloat16": 312e12}, 1.555e12, 40e9
  ),
  "a100_80gb": Sheet(
    "NVIDIA A100 SXM 80 GB", "ampere", {"tf32": 156e12, "bfloat16": 312e12}, 2.039e12, 80e9
  ),
  "h100": Sheet("NVIDIA H100 SXM", "hopper", {"bfloat16": 989e12}, 3.35e12, 80e9),
  "h100_96gb": Sheet("NVIDIA H100 SXM 96 GB HBM2e, 500 W", "hopper", {"bfloat16": 989e12}, 2.4e12, 96e9),
  "h200": Sheet("NVIDIA H200 SXM", "hopper", {"bfloat16": 989e12}, 4.8e12, 141e9),
  "tpu_v5e": Sheet("TPU v5e", "tpu_v5e", {"bfloat16": 197e12}, 819e9, 16e9),
  "tpu_v5p": Sheet("TPU v5p", "tpu_v5p", {"bfloat16": 459e12}, 2.765e12, 95e9),
}  # fmt: skip
