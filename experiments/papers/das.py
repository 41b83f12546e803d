"""Das et al. 2016, arXiv 1602.06709: speed-ups of N nodes over one, without a fit and with one.

A step on N nodes is that of the event model, with terms that the paper's volumes leave out. Each layer has the groups
of nodes with the least volume (`ddl.perf.hybrid`) and takes the larger of a node's seconds of FLOP and of memory
traffic. Gradients are sent in the order of the backward pass, whose first layers come last and are hidden least; inside
a group the passes wait for the activations and their gradients. One node runs the same mini-batch.
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
  """What an exchange and a step take beyond the paper's volumes at the full rate of the link."""

  halves: bool = False  # gradients are reduced, then weights broadcast: both cross the link, (p - 1) / p of the strip
  rate: float = 1.0  # share of the link's rate that messages reach
  cores: float = 1.0  # share of a node's cores that compute, where there are messages


class DasStep(NamedTuple):
  """Seconds of a step on N nodes."""

  alone: float  # of one node with the whole mini-batch
  computing: float
  waiting: float  # for activations and their gradients, inside groups
  exposed: float  # for gradients and weights
  messages: int  # of a node, if each strip goes to its node by itself

  @property
  def seconds(self) -> float:
    """Sum the parts."""
    return self.computing + self.waiting + self.exposed

  @property
  def speedup(self) -> float:
    """Return the speed-up over one node."""
    return self.alone / self.seconds


PLAIN = Terms()


def step(
  table: Table, batch: float, nodes: int, cluster: Cluster, efficiency: Efficiency, terms: Terms = PLAIN,
  start: float = 0.0,
) -> DasStep:  # fmt: skip
  """Return a step of the whole mini-batch that N nodes share. start: additional seconds of every step."""
  whole = cluster.device._replace(start=start)
  left = whole if nodes == 1 else whole._replace(peak=whole.peak * terms.cores)
  link = cluster.network.between
  link = link._replace(bandwidth=link.bandwidth * terms.rate)
  choices = hybrid.choices(table, batch, nodes, link.duplex)
  shares = [group_work(layer, nodes, choice.groups) for layer, choice in zip(table, choices, strict=True)]
  left_over = cluster._replace(device=left, efficiency=efficiency)
  thirds = scaling.step_pass(scaling.work_of(shares, 0.0), left_over, batch / nodes).weights
  waits, data, messages = [], [], 0
  for choice in choices:
    groups, members = choice.groups, nodes // choice.groups
    inside, across = (_sent(members), 2 * _sent(groups)) if terms.halves else (1.0, 1.0)
    waits.append(choice.volume.model / 2 * inside / link.bandwidth)  # half forward, half backward
    data.append(choice.volume.data * across)
    messages += 2 * (members - 1) + 2 * (groups - 1)
  both = [third + wait for third, wait in zip(thirds, waits, strict=True)]
  latency = 2 * (nodes - 1).bit_length() * link.latency  # part-reduce, then part-broadcast
  simulated = timeline.simulate(Pass(both, thirds, both, data), lambda nbytes: latency + nbytes / link.bandwidth)
  computing, waiting = 3 * sum(thirds), 2 * sum(waits)
  alone = step_seconds(parts(table), batch, whole, efficiency)
  return DasStep(alone, computing, waiting, simulated.seconds - computing - waiting, messages)


def all_reduce_rate(processors: int, nbytes: float, seconds: float) -> float:
  """Return the bytes per second through each link of a ring: 2 (p - 1) / p n / t."""
  return 2 * _sent(processors) * nbytes / seconds


def _sent(members: int) -> float:
  """(p - 1) / p."""
  return (members - 1) / members


def group_work(layer: Layer, workers: int, groups: int) -> LayerWork:
  """Return the work and memory traffic of a node for each of its mb / N examples.

  It has 1 / n of the weights and outputs, n = N / G, and the inputs of its group's mb / G examples: n times its share.
  """
  size = workers // groups
  return LayerWork(layer.train_flop, 3 * (size * layer.input_values + layer.activations), 3 * layer.params / size)


def terms(config: Config, cluster: str, larger: bool = False) -> Terms:
  """Return the terms of a cluster: what was measured on its kind of link, and a core for the messages.

  larger: by the all-reduces of larger messages, where there are any.
  """
  link, cores = cluster_file.named(cluster).network.between, config.cores[cluster]
  rates = [all_reduce_rate(*measured) / link.bandwidth for measured in (config.larger if larger else config.reduced)]
  share = statistics.fmean(rates) if config.kinds[cluster] == "fdr" else config.framing
  return Terms(halves=True, rate=share, cores=(cores - 1) / cores)


def section(config: Config) -> Section:
  """Return the speed-ups without a fit, in two readings, and with two fits on the same point."""
  half, start = _fitted(config)
  rows, steps, missing, spans = [], {}, {}, {}
  for name, inputs in config.rows.items():
    fits, reading = name == config.fitted, terms(config, inputs.cluster)
    cumulative = (PLAIN, Terms(halves=True), reading._replace(cores=1.0), reading)
    steps[name] = [_step(inputs, config.share, terms=taken) for taken in cumulative]
    predicted = {
      VOLUMES: Prediction(steps[name][0].speedup),
      TERMS: Prediction(steps[name][-1].speedup),
      EXAMPLES: Prediction(_step(inputs, config.share, half=half).speedup, fits),
      SECONDS: Prediction(_step(inputs, config.share, start=start).speedup, fits),
    }
    rows.append(ReportedRow(name, inputs.reported, "x", predicted, inputs.unknown))
    missing[name] = steps[name][-1].alone / inputs.reported - steps[name][-1].seconds
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
  """Return half in examples, and additional seconds of every step, with either of which the fitted row is exact."""
  inputs = config.rows[config.fitted]

  def root(predicted: Callable[[float], float], most: float) -> float:
    return root_scalar(lambda x: predicted(x) - inputs.reported, bracket=(0.0, most), xtol=1e-12).root

  # With half at an example's share, or a second, the speed-up is far below any reported one.
  half = root(lambda x: _step(inputs, config.share, half=x).speedup, inputs.batch / inputs.nodes)
  return half, root(lambda x: _step(inputs, config.share, start=x).speedup, 1.0)


def _step(
  inputs: Mapping[str, Any], share: float, *, half: float = 0.0, start: float = 0.0, terms: Terms = PLAIN
) -> DasStep:
  layers, cluster = neural_networks.table(inputs["network"]), cluster_file.named(inputs["cluster"])
  return step(layers, inputs["batch"], inputs["nodes"], cluster, Efficiency(share, half), terms, start)


def _span(config: Config, inputs: Config) -> list[float]:
  """Return the speed-ups with the terms, over the unknown inputs and both measured rates."""
  choices = itertools.product(inputs.networks, inputs.batches, config.shares, (False, True))
  return [
    _step({**inputs, "network": network, "batch": batch}, share, terms=terms(config, inputs.cluster, larger)).speedup
    for network, batch, share, larger in choices
  ]
