"""Zhou et al. 2020, arXiv 2006.00441: predict when DaSGD's exchange is hidden, with the authors' version of PALEO.

PALEO is Qi, Sparks, Talwalkar 2017 (ICLR; github TalwalkarLab/paleo), modified by the authors of DaSGD (github
sweetwenwen/paleo-dasgd). A layer's pass takes max(FLOP / peak, bytes moved / memory bandwidth); three tree levels
inside a node of eight workers count as one hop over NVLink. As in their code, the V100 computes at its float64 peak and
a hop has no latency. Pooling and dropout, which layer tables do not contain, are omitted.
"""

from ddl.perf import bounds, cluster_file, neural_networks
from ddl.perf.collectives import all_reduce
from ddl.perf.device import Device
from ddl.perf.layers import FLOAT, Layer, Table, params_bytes
from experiments.papers import page
from experiments.papers.page import Config, Section

V100 = Device(peak=7.8e12, memory_bandwidth=900.1 * 2**30, memory=16e9)  # PALEO's GB of memory traffic are GiB
BANDWIDTHS = {"ethernet": 10e9 / 8, "ethernet25": 25e9 / 8, "infiniband": 70e9 / 8}  # bytes per second
NVLINK_HOP = 0.029  # time of an NVLink hop divided by that of a hop between nodes: 70 Gb/s / 2400 Gb/s
LEVELS_INSIDE = 3  # tree levels inside a node of eight workers


def step_seconds(table: Table, examples: float, *, flattened: int = 1, device: Device = V100) -> float:
  """Predict the seconds of a step by PALEO's model.

  They are the sum of max(FLOP / peak, bytes moved / bandwidth) over layers and passes, plus the update, which reads
  weights and gradients and writes weights. The convolution for the input gradient covers the whole padded input, so it
  also multiplies zeros and takes ih iw / (oh' ow') times the necessary products, with oh' = (oh - 1) stride + 1.

  Args:
    table: the layers with weights.
    examples: per worker and step.
    flattened: number of spatial positions of the map that the first dense layer flattens. PALEO treats this layer as a
      convolution with one output position, so its input gradient takes this many times the necessary products; 1: only
      the necessary products.
    device: peak and memory bandwidth.
  """
  seconds = 3 * params_bytes(table) / device.memory_bandwidth
  first = next((x for x in table if x.dense), None)
  for layer in table:
    compute = examples * layer.forward_flop / device.peak
    memory = FLOAT * (layer.moved * examples + layer.held) / 3 / device.memory_bandwidth  # of one of three passes
    zeros = flattened if layer is first else _zeros(layer)
    seconds += 2 * max(compute, memory) + max(compute * zeros, memory)
  return seconds


def _zeros(layer: Layer) -> float:
  """Return the number of products in a full convolution of the padded input divided by the necessary number."""
  factor = 1.0
  for size, kernel, out in zip(layer.size_in, layer.kernel, layer.size_out, strict=True):
    stride = max(1, round((size - kernel) / (out - 1))) if out > 1 else 1
    factor *= size / ((out - 1) * stride + 1)
  return factor


def tree_seconds(nbytes: float, workers: int, bandwidth: float) -> float:
  """Return the seconds of a tree exchange by PALEO's formula, with L = bytes / bandwidth and n workers.

  2 (ceil(log2 n) - 3) L + 2 * 0.029 L for n > 8; 2 ceil(log2 n) * 0.029 L for n <= 8.
  """
  levels = (workers - 1).bit_length()
  hop = nbytes / bandwidth
  between = max(0, levels - LEVELS_INSIDE)
  return 2 * (between * hop + (1 if between else levels) * NVLINK_HOP * hop)


def section(config: Config) -> Section:
  """Build the section: seconds of a step and an exchange, the smallest delay, and the share of time spent computing."""
  bandwidth, cases = BANDWIDTHS[config.bandwidth], []
  schedules = ((1, 0), (config.period, 0), (config.period, config.delay))
  for title, (name, flattened) in config.networks.items():
    table = neural_networks.table(name)
    message = tree_seconds(params_bytes(table), config.workers, bandwidth)
    for batch in config.batches:
      step = step_seconds(table, batch, flattened=flattened)
      waits = [bounds.exposed_share(message, step, period=period, delay=delay) for period, delay in schedules]
      cases.append((f"{title}, batch {batch}", bounds.smallest_delay(message, step), step, message, waits))
  nbytes = params_bytes(neural_networks.table(config.networks[config.compared][0]))
  tree = tree_seconds(nbytes, config.workers, bandwidth)
  best = all_reduce(nbytes, config.workers, cluster_file.named(config.cluster).network)
  return page.read("dasgd", config=config, bandwidth=bandwidth, cases=cases, best=best, tree=tree)
