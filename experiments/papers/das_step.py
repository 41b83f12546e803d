"""The step of Das et al. 2016, arXiv 1602.06709, on N nodes, by the event model; with terms that its volumes leave out.

Each layer has the groups of nodes with the least volume (`ddl.perf.hybrid`) and takes the larger of a node's
seconds of FLOP and of memory traffic. Gradients are sent first in, first out during the backward pass, so that those of
the first layers, which come last, are hidden least; inside a group the passes wait for the activations and their
gradients. One node runs the same mini-batch.
"""

from typing import NamedTuple

from ddl.perf import hybrid, scaling, timeline
from ddl.perf.cluster import Cluster
from ddl.perf.device import Efficiency, LayerWork, step_seconds
from ddl.perf.layers import Layer, Table, parts
from ddl.perf.timeline import Pass


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
    """Sum of the parts."""
    return self.computing + self.waiting + self.exposed

  @property
  def speedup(self) -> float:
    """Over one node."""
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
  there = cluster._replace(device=left, efficiency=efficiency)
  thirds = scaling.step_pass(scaling.work_of(shares, 0.0), there, batch / nodes).weights
  waits, data, messages = [], [], 0
  for choice in choices:
    groups, members = choice.groups, nodes // choice.groups
    inside, across = (_sent(members), 2 * _sent(groups)) if terms.halves else (1.0, 1.0)
    waits.append(choice.volume.model / 2 * inside / link.bandwidth)  # half forward, half backward
    data.append(choice.volume.data * across)
    messages += 2 * (members - 1) + 2 * (groups - 1)
  both = [third + wait for third, wait in zip(thirds, waits, strict=True)]
  latency = 2 * (nodes - 1).bit_length() * link.latency  # part-reduce, then part-broadcast
  found = timeline.simulate(Pass(both, thirds, both, data), lambda nbytes: latency + nbytes / link.bandwidth)
  computing, waiting = 3 * sum(thirds), 2 * sum(waits)
  alone = step_seconds(parts(table), batch, whole, efficiency)
  return DasStep(alone, computing, waiting, found.seconds - computing - waiting, messages)


def all_reduce_rate(processors: int, nbytes: float, seconds: float) -> float:
  """Bytes per second through each link of a ring: 2 (p - 1) / p n / t."""
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
