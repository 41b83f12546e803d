"""Das et al. 2016, arXiv 1602.06709: speed-ups of N nodes over one, without a fit and with one.

A step on N nodes is that of the event model, with terms that the paper's volumes leave out. Each layer has the groups
of nodes with the least volume (`ddl.perf.hybrid`) and takes the larger of a node's seconds of FLOP and of memory
traffic. Gradients are sent first in, first out during the backward pass, so that those of the first layers, which come
last, are hidden least; inside a group the passes wait for the activations and their gradients. One node runs the same
mini-batch.
"""

import itertools
import statistics
from collections.abc import Callable
from typing import Any, NamedTuple

from scipy.optimize import root_scalar

from ddl.perf import cluster_file, hybrid, neural_networks, scaling, timeline
from ddl.perf.cluster import Cluster
from ddl.perf.device import Efficiency, LayerWork, step_seconds
from ddl.perf.layers import Layer, Table, parts, train_flop
from ddl.perf.timeline import Pass
from experiments.papers import page
from experiments.papers.page import Config, Prediction, ReportedRow, Section, number, table

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


def terms(config: Config, cluster: str, larger: bool = False) -> Terms:
  """Return the terms of a cluster: what was measured on its kind of link, and a core for the messages.

  larger: by the all-reduces of larger messages, where there are any.
  """
  link, cores = cluster_file.named(cluster).network.between, config.cores[cluster]
  selected = config.larger if larger else config.reduced
  rates = [all_reduce_rate(*each) / link.bandwidth for each in selected]
  share = statistics.fmean(rates) if config.kinds[cluster] == "fdr" else config.framing
  return Terms(halves=True, rate=share, cores=(cores - 1) / cores)


def section(config: Config) -> Section:
  """Table without a fit, in two readings, and with two fits on the same point."""
  half, start = _fitted(config)
  rows, spans, cumulative = [], [], []
  for name, inputs in config.rows.items():
    fits, reading = name == config.fitted, terms(config, inputs.cluster)
    predicted = {
      VOLUMES: Prediction(_step(inputs, config.share).speedup),
      TERMS: Prediction(_step(inputs, config.share, terms=reading).speedup),
      EXAMPLES: Prediction(_step(inputs, config.share, half=half).speedup, fits),
      SECONDS: Prediction(_step(inputs, config.share, start=start).speedup, fits),
    }
    rows.append(ReportedRow(name, inputs.reported, "x", predicted, inputs.unknown))
    spans.append(f"{name} {' to '.join(f'{x:.3g}x' for x in _span(config, inputs))}")
    cumulative.append(_cumulative(config, name, inputs, reading))
  head = (
    "no fit, speed-up", "volumes of the paper", "and both halves of an exchange", "and measured rates",
    "and a core for messages", "reported", "missing, ms of a step",
  )  # fmt: skip
  return page.read(
    "das", rows, config=config, half=half, start_ms=1e3 * start, spans="; ".join(spans),
    cumulative=table(head, cumulative), **_figures(config),
  )  # fmt: skip


def _cumulative(config: Config, name: str, inputs: Config, reading: Terms) -> tuple[str, ...]:
  ways = (PLAIN, Terms(halves=True), reading._replace(cores=1.0), reading)
  steps = [_step(inputs, config.share, terms=each) for each in ways]
  missing = 1e3 * (steps[-1].alone / inputs.reported - steps[-1].seconds)
  return (name, *(number(each.speedup, "x") for each in steps), number(inputs.reported, "x"), f"{missing:.0f}")


def _figures(config: Config) -> dict[str, Any]:
  """Values of the remarks: parts of a step, and what the missing seconds would be per message."""

  def at(name: str) -> DasStep:
    inputs = config.rows[name]
    return _step(inputs, config.share, terms=terms(config, inputs.cluster))

  few, many = config.fitted, config.grown
  missing = {name: at(name).alone / config.rows[name].reported - at(name).seconds for name in (few, many)}
  waits = "; ".join(
    f"{name} {100 * step.waiting / step.seconds:.0f} % and {100 * max(0.0, step.exposed) / step.seconds:.0f} %"
    for name, step in ((name, at(name)) for name in config.rows)
  )
  frame = train_flop(neural_networks.table("cd_dnn")) / train_flop(neural_networks.table(config.rows[few].network))
  fdr = {larger: terms(config, "cori_fdr", larger).rate for larger in (False, True)}
  return {
    "parts": waits,
    "few": few,
    "many": many,
    "reported": config.rows[few].reported,
    "missing_few": 1e3 * missing[few],
    "missing_many": 1e3 * missing[many],
    "message_us": 1e6 * (missing[many] - missing[few]) / (at(many).messages - at(few).messages),
    "frame": 100 * frame,
    "low": config.shares[0],
    "high": config.shares[1],
    "rate": 100 * fdr[False],
    "larger": 100 * fdr[True],
    "framing": 100 * config.framing,
  }


def _fitted(config: Config) -> tuple[float, float]:
  """(half in examples, additional seconds of every step), each by itself, so that the fitted row is as reported."""
  inputs = config.rows[config.fitted]

  def root(predicted: Callable[[float], float], most: float) -> float:
    return root_scalar(lambda x: predicted(x) - inputs.reported, bracket=(0.0, most), xtol=1e-12).root

  # With half at an example's share, or a second, the speed-up is far below any reported one.
  half = root(lambda x: _step(inputs, config.share, half=x).speedup, inputs.batch / inputs.nodes)
  return half, root(lambda x: _step(inputs, config.share, start=x).speedup, 1.0)


def _step(inputs: Config, share: float, *, half: float = 0.0, start: float = 0.0, terms: Terms = PLAIN) -> DasStep:
  cluster: Cluster = cluster_file.named(inputs.cluster)
  return step(
    neural_networks.table(inputs.network), inputs.batch, inputs.nodes, cluster, Efficiency(share, half), terms, start
  )


def _span(config: Config, inputs: Config) -> tuple[float, float]:
  """The least and the most with the terms, over the unknown inputs and both measured rates."""
  cluster = cluster_file.named(inputs.cluster)
  speedups = [
    step(
      neural_networks.table(network),
      batch,
      inputs.nodes,
      cluster,
      Efficiency(share),
      terms(config, inputs.cluster, larger),
    ).speedup
    for network, batch, share, larger in itertools.product(
      inputs.networks, inputs.batches, config.shares, (False, True)
    )
  ]  # fmt: skip
  return min(speedups), max(speedups)
