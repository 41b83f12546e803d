"""Das et al. 2016, arXiv 1602.06709: predict speed-ups of N nodes over one, without and with a fitted parameter.

A step on N nodes is simulated (`ddl.perf.timeline`), optionally with costs that the paper's model omits (`Terms`). Each
layer uses the grouping of nodes with the least communication volume (`ddl.perf.hybrid`) and takes the larger of
FLOP / peak and memory traffic / bandwidth.
Gradients are sent in the order of the backward pass, so those of the first layers are sent last and are hidden least.
Inside a group, the passes wait for activations and their gradients. The single node of the comparison runs the whole
mini-batch.
"""

import itertools
import statistics
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from scipy.optimize import root_scalar

from ddl.perf import cluster_file, hybrid, neural_networks, scaling, timeline
from ddl.perf.cluster import Cluster
from ddl.perf.device import Efficiency, LayerWork, step_seconds
from ddl.perf.layers import Layer, Table, parts, train_flop
from ddl.perf.timeline import Pass
from experiments.papers import page
from experiments.papers.page import Config, Prediction, ReportedRow, Section

VOLUMES, TERMS, EXAMPLES, SECONDS = "no fit: volumes", "no fit: measured terms", "half fitted", "fixed seconds fitted"


class Terms(NamedTuple):
  """Corrections to the paper's model, which sends its volumes at the full link bandwidth."""

  halves: bool = False  # part-reduce gradients, then part-broadcast weights: each sends (p - 1) / p of a strip
  rate: float = 1.0  # share of the link bandwidth that messages reach
  cores: float = 1.0  # share of a node's cores that compute if there are several nodes; the others send messages


class DasStep(NamedTuple):
  """A predicted step on N nodes; times are in seconds."""

  single: float  # on one node with the whole mini-batch
  computing: float
  waiting: float  # waiting for activations and their gradients inside groups
  exposed: float  # waiting for gradients and weights
  messages: int  # number per node, if each strip is a separate message

  @property
  def seconds(self) -> float:
    """Total seconds of the step."""
    return self.computing + self.waiting + self.exposed

  @property
  def speedup(self) -> float:
    """Speed-up over one node."""
    return self.single / self.seconds


PLAIN = Terms()


def step(
  table: Table, batch: float, nodes: int, cluster: Cluster, efficiency: Efficiency, terms: Terms = PLAIN,
  start: float = 0.0,
) -> DasStep:  # fmt: skip
  """Predict a step in which N nodes share a mini-batch of `batch` examples. start: additional seconds per step."""
  whole = cluster.device._replace(start=start)
  computing_device = whole if nodes == 1 else whole._replace(peak=whole.peak * terms.cores)
  link = cluster.network.between
  link = link._replace(bandwidth=link.bandwidth * terms.rate)
  choices = [hybrid.best(layer, batch, nodes, link.duplex) for layer in table]
  shares = [group_work(layer, nodes, groups) for layer, (groups, _) in zip(table, choices, strict=True)]
  computing_cluster = cluster._replace(device=computing_device, efficiency=efficiency)
  thirds = scaling.step_pass(scaling.work_of(shares, 0.0), computing_cluster, batch / nodes).weights
  waits, data, messages = [], [], 0
  for groups, volume in choices:
    members = nodes // groups
    inside, across = (_sent(members), 2 * _sent(groups)) if terms.halves else (1.0, 1.0)
    waits.append(volume.model / 2 * inside / link.bandwidth)  # half forward, half backward
    data.append(volume.data * across)
    messages += 2 * (members - 1) + 2 * (groups - 1)
  both = [third + wait for third, wait in zip(thirds, waits, strict=True)]
  latency = 2 * (nodes - 1).bit_length() * link.latency  # part-reduce, then part-broadcast
  simulated = timeline.simulate(Pass(both, thirds, both, data), lambda nbytes: latency + nbytes / link.bandwidth)
  computing, waiting = 3 * sum(thirds), 2 * sum(waits)
  single = step_seconds(parts(table), batch, whole, efficiency)
  return DasStep(single, computing, waiting, simulated.seconds - computing - waiting, messages)


def all_reduce_rate(processors: int, nbytes: float, seconds: float) -> float:
  """Return the bytes per second on each link of a ring all-reduce: 2 (p - 1) / p n / t."""
  return 2 * _sent(processors) * nbytes / seconds


def _sent(members: int) -> float:
  """Return the share of a vector that each of p processes sends in a reduce-scatter or an all-gather: (p - 1) / p."""
  return (members - 1) / members


def group_work(layer: Layer, workers: int, groups: int) -> LayerWork:
  """Return the work and the memory traffic of a layer on one node, with mb / N examples per node.

  With n = N / G nodes per group, a node holds 1 / n of the weights and outputs, and all inputs of its group's mb / G
  examples.
  """
  size = workers // groups
  return LayerWork(layer.train_flop, 3 * (size * layer.input_values + layer.activations), 3 * layer.params / size)


def terms(config: Config, cluster: str, larger: bool = False) -> Terms:
  """Return the terms of a cluster: the rate that its kind of link reaches, and one core reserved for messages.

  The rate was measured for FDR InfiniBand; for Ethernet it is the share of payload in a frame. larger: use the rate
  measured with larger messages (FDR InfiniBand only).
  """
  link, cores = cluster_file.named(cluster).network.between, config.cores[cluster]
  rates = [all_reduce_rate(*measured) / link.bandwidth for measured in (config.larger if larger else config.reduced)]
  share = statistics.fmean(rates) if config.kinds[cluster] == "fdr" else config.framing
  return Terms(halves=True, rate=share, cores=(cores - 1) / cores)


def section(config: Config) -> Section:
  """Build the section: speed-ups predicted by two variants without a fit and by two fits to one point."""
  half, start = _fitted(config)
  rows, steps, missing, spans = [], {}, {}, {}
  for name, inputs in config.rows.items():
    fits, reading = name == config.fitted, terms(config, inputs.cluster)
    cumulative = (PLAIN, Terms(halves=True), reading._replace(cores=1.0), reading)
    steps[name] = [_step(inputs, config.share, terms=corrections) for corrections in cumulative]
    predicted = {
      VOLUMES: Prediction(steps[name][0].speedup),
      TERMS: Prediction(steps[name][-1].speedup),
      EXAMPLES: Prediction(_step(inputs, config.share, half=half).speedup, fits),
      SECONDS: Prediction(_step(inputs, config.share, start=start).speedup, fits),
    }
    rows.append(ReportedRow(name, inputs.reported, "x", predicted, inputs.unknown))
    missing[name] = steps[name][-1].single / inputs.reported - steps[name][-1].seconds
    spans[name] = _span(config, inputs)
  few, many = config.fitted, config.grown
  more = steps[many][-1].messages - steps[few][-1].messages
  frame = train_flop(neural_networks.table("cd_dnn")) / train_flop(neural_networks.table(config.rows[few].network))
  rates = [terms(config, "cori_fdr", larger).rate for larger in (False, True)]
  return page.read(
    "das", rows, config=config, half=half, start=start, steps=steps, missing=missing, spans=spans, few=few, many=many,
    message=(missing[many] - missing[few]) / more, frame=frame, rates=rates,
  )  # fmt: skip


def _fitted(config: Config) -> tuple[float, float]:
  """Return (`Efficiency.half` in examples, additional seconds per step): two separate exact fits to the fitted row."""
  inputs = config.rows[config.fitted]

  def root(predicted: Callable[[float], float], most: float) -> float:
    return root_scalar(lambda x: predicted(x) - inputs.reported, bracket=(0.0, most), xtol=1e-12).root

  # The upper ends of the brackets (half: the batch per node; start: one second) give far lower speed-ups than reported.
  half = root(lambda x: _step(inputs, config.share, half=x).speedup, inputs.batch / inputs.nodes)
  return half, root(lambda x: _step(inputs, config.share, start=x).speedup, 1.0)


def _step(
  inputs: Mapping[str, Any], share: float, *, half: float = 0.0, start: float = 0.0, terms: Terms = PLAIN
) -> DasStep:
  layers, cluster = neural_networks.table(inputs["network"]), cluster_file.named(inputs["cluster"])
  return step(layers, inputs["batch"], inputs["nodes"], cluster, Efficiency(share, half), terms, start)


def _span(config: Config, inputs: Config) -> list[float]:
  """Return the speed-up with all terms for each combination of the unknown inputs and the two measured rates."""
  choices = itertools.product(inputs.networks, inputs.batches, config.shares, (False, True))
  return [
    _step({**inputs, "network": network, "batch": batch}, share, terms=terms(config, inputs.cluster, larger)).speedup
    for network, batch, share, larger in choices
  ]
