"""Das et al. 2016, arXiv 1602.06709: speed-ups of N nodes over one, by the event model of a step.

Each layer has the groups of nodes with the least volume (`ddl.perf.planning.hybrid`) and takes the larger of a node's
seconds of FLOP and of memory traffic. Gradients are sent first in, first out during the backward pass, and inside
a group the passes wait for the activations and their gradients. One node runs the same mini-batch.
"""

import itertools
import math
from collections.abc import Callable

from scipy.optimize import root_scalar

from ddl.perf import hardware
from ddl.perf.hardware import Cluster
from ddl.perf.hardware.device import Efficiency, step_seconds
from ddl.perf.hardware.network import Link, Network
from ddl.perf.planning import hybrid, scenario
from ddl.perf.step import timeline
from ddl.perf.step.event_model import Pass
from ddl.perf.step.layers import Table
from ddl.perf.tables import TABLES
from ddl.perf.tables.totals import parts, train_flop
from experiments.papers.page import Config, Prediction, Row, Section, remarks

PERFECT = Network(Link(0.0, math.inf))
PLAIN, EXAMPLES, SECONDS = "no fit", "half fitted", "fixed seconds fitted"


def speedup(
  table: Table, batch: float, nodes: int, cluster: Cluster, efficiency: Efficiency, start: float = 0.0
) -> float:
  """Seconds of a step of the whole mini-batch on one node over those of N nodes that share it.

  start: additional seconds of every step.
  """
  cluster = cluster._replace(device=cluster.device._replace(start=start), efficiency=efficiency)
  link = cluster.network.between
  choices = hybrid.choices(table, batch, nodes, link.duplex)
  shares = [hybrid.part(layer, nodes, choice.groups) for layer, choice in zip(table, choices, strict=True)]
  thirds = scenario.step_pass(scenario.work_of(shares, 0.0), cluster, batch / nodes).weights
  waits = [choice.volume.model / 2 / link.bandwidth for choice in choices]  # half forward, half backward
  both = [third + wait for third, wait in zip(thirds, waits, strict=True)]
  step = Pass(both, thirds, both, [choice.volume.data for choice in choices])
  latency = 2 * (nodes - 1).bit_length() * link.latency  # part-reduce, then part-broadcast
  found = timeline.simulate(step, lambda nbytes: latency + nbytes / link.bandwidth)
  return step_seconds(parts(table), batch, cluster.device, efficiency) / found.seconds


def section(config: Config) -> Section:
  """Table without a fit, and with two fits on the same point."""
  half, start = _fitted(config)
  rows, spans, exchange, moving = [], [], [], 0.0
  for name, inputs in config.rows.items():
    fits = name == config.fitted
    predicted = {
      PLAIN: Prediction(_predicted(inputs, config.share)),
      EXAMPLES: Prediction(_predicted(inputs, config.share, half=half), fits),
      SECONDS: Prediction(_predicted(inputs, config.share, start=start), fits),
    }
    rows.append(Row(name, inputs.reported, "x", predicted, inputs.unknown))
    spans.append(f"{name} {' to '.join(f'{x:.3g}x' for x in _span(inputs, config.shares))}")
    alone = _predicted(inputs, config.share, network=PERFECT)
    moving = max(moving, 1 - alone / inputs.nodes)
    exchange.append(f"{name} {100 * (alone - predicted[PLAIN].value) / inputs.nodes:.0f} %")
  frame = train_flop(TABLES["cd_dnn"]) / train_flop(TABLES[config.rows[config.fitted].network])
  text = remarks(
    "das", config=config, half=half, start_ms=1e3 * start, exchange="; ".join(exchange), moving=100 * moving,
    frame=100 * frame, low=config.shares[0], high=config.shares[1], spans="; ".join(spans),
  )  # fmt: skip
  fitted = f"one parameter on *{config.fitted}* ({config.rows[config.fitted].reported:g}x), in two readings."
  return Section("Das et al. 2016: strong scaling", "configs/reproduce_das.py", fitted, rows, EXAMPLES, text)


def _fitted(config: Config) -> tuple[float, float]:
  """(half in examples, additional seconds of every step), each by itself, so that the fitted row is as reported."""
  inputs = config.rows[config.fitted]

  def root(predicted: Callable[[float], float], most: float) -> float:
    return root_scalar(lambda x: predicted(x) - inputs.reported, bracket=(0.0, most), xtol=1e-12).root

  # With half at an example's share, or a second, the speed-up is far below any reported one.
  half = root(lambda x: _predicted(inputs, config.share, half=x), inputs.batch / inputs.nodes)
  return half, root(lambda x: _predicted(inputs, config.share, start=x), 1.0)


def _predicted(
  inputs: Config, share: float, *, half: float = 0.0, start: float = 0.0, network: Network | None = None
) -> float:
  cluster = hardware.named(inputs.cluster)
  cluster = cluster._replace(network=network or cluster.network)
  return speedup(TABLES[inputs.network], inputs.batch, inputs.nodes, cluster, Efficiency(share, half), start)


def _span(inputs: Config, shares: tuple[float, ...]) -> tuple[float, float]:
  """The least and the most without a fit, over the unknown inputs."""
  cluster = hardware.named(inputs.cluster)
  found = [
    speedup(TABLES[network], batch, inputs.nodes, cluster, Efficiency(share))
    for network, batch, share in itertools.product(inputs.networks, inputs.batches, shares)
  ]
  return min(found), max(found)
