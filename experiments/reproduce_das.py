"""Das et al. 2016, arXiv 1602.06709: speed-ups of N nodes over one, by the event model of a step.

Each layer has the groups of nodes with the least volume (`ddl.perf.hybrid`), its gradients leave first in first out as
the backward pass gives them, and inside a group the passes wait for the activations and their gradients. One node runs
the same mini-batch.
"""

import itertools

from scipy.optimize import root_scalar

from ddl.perf import clusters, hybrid, timeline
from ddl.perf.clusters import Cluster
from ddl.perf.compute import Efficiency, step_seconds
from ddl.perf.layers import Table
from ddl.perf.tables import TABLES
from ddl.perf.tables.totals import train_flop
from experiments.reproduce_page import Config, Prediction, Row, Section

PLAIN, EXAMPLES, SECONDS = "no fit", "half fitted", "fixed seconds fitted"


def speedup(table: Table, batch: float, nodes: int, cluster: Cluster, efficiency: Efficiency) -> float:
  """Seconds of a step of the whole mini-batch on one node over those of N nodes that share it."""

  def computing(flop: float, examples: float) -> float:
    return step_seconds(flop, examples, cluster.device, efficiency)

  link = cluster.network.between
  choices = hybrid.choices(table, batch, nodes, link.duplex)
  thirds = [computing(layer.train_flop / 3, batch / nodes) for layer in table]
  waits = [choice.volume.model / 2 / link.bandwidth for choice in choices]  # half forward, half backward
  both = [third + wait for third, wait in zip(thirds, waits, strict=True)]
  step = timeline.Pass(both, thirds, both, [choice.volume.data for choice in choices])
  latency = 2 * (nodes - 1).bit_length() * link.latency  # part-reduce, then part-broadcast
  found = timeline.simulate(step, lambda nbytes: latency + nbytes / link.bandwidth)
  return computing(train_flop(table), batch) / found.seconds


def section(config: Config) -> Section:
  """The table, once without a fit and twice with one on the same point."""
  fixed = _fixed_flop(config)
  seconds = fixed / clusters.named(config.rows[config.fitted].cluster).device.peak / config.share
  half = fixed / train_flop(TABLES[config.rows[config.fitted].network])
  rows, spans = [], []
  for name, inputs in config.rows.items():
    fits = name == config.fitted
    own = seconds * clusters.named(inputs.cluster).device.peak * config.share / train_flop(TABLES[inputs.network])
    predicted = {
      PLAIN: Prediction(_predicted(inputs, config.share, 0.0)),
      EXAMPLES: Prediction(_predicted(inputs, config.share, half), fits),
      SECONDS: Prediction(_predicted(inputs, config.share, own), fits),
    }
    rows.append(Row(name, inputs.reported, "x", predicted, inputs.unknown))
    spans.append(f"{name} {' to '.join(f'{x:.3g}x' for x in _span(inputs, config.shares))}")
  exchange = [
    f"{row.what} {100 * (1 - row.predicted[PLAIN].value / config.rows[row.what].nodes):.0f} %" for row in rows
  ]
  frame = train_flop(TABLES["cd_dnn"]) / train_flop(TABLES[config.rows[config.fitted].network])
  remarks = (
    f"*What is not known.* In no row the share of the peak that a node reaches ({config.share:g} is assumed) or the "
    f"messages' software. Without a fit, over shares of {' to '.join(f'{x:g}' for x in config.shares)} and over the "
    f"choices of the rows' last column: {'; '.join(spans)}.",
    f"*The fit.* *{EXAMPLES}*: efficiency = b / (b + half) of b examples per node, with half = {half:.2f} examples for "
    f"every network. *{SECONDS}*: the same point as {1e3 * seconds:.1f} ms that every step takes more, on any network "
    "and node. At the fitted point they are one number; they part where an example costs less. The second was added "
    "with the reported figures in sight, so that its errors are no test of it.",
    "*Where it is off, and why.* Without a fit every row is too fast: a step loses the part of the exchange that is "
    f"not hidden ({'; '.join(exchange)}), nothing to small batches. *half* is not one number for all "
    f"networks: an example of CD-DNN has {100 * frame:.1f} % of the FLOP of one of VGG-A, and is hardly touched by it. "
    "Imbalance, latency in software and activations that meet gradients on the link are not in the model.",
  )
  fitted = f"one parameter on *{config.fitted}* ({config.rows[config.fitted].reported:g}x), in two readings."
  return Section("Das et al. 2016: strong scaling", "configs/reproduce_das.py", fitted, rows, EXAMPLES, remarks)


def _fixed_flop(config: Config) -> float:
  """What a step costs beyond its examples, as FLOP, so that the fitted row comes out as reported."""
  inputs = config.rows[config.fitted]
  flop = train_flop(TABLES[inputs.network])
  most = inputs.batch / inputs.nodes  # with half at an example's share the speed-up is far below any reported one

  def difference(half: float) -> float:
    return _predicted(inputs, config.share, half) - inputs.reported

  return flop * root_scalar(difference, bracket=(0.0, most), xtol=1e-12).root


def _predicted(inputs: Config, share: float, half: float) -> float:
  cluster = clusters.named(inputs.cluster)
  return speedup(TABLES[inputs.network], inputs.batch, inputs.nodes, cluster, Efficiency(share, half))


def _span(inputs: Config, shares: tuple[float, ...]) -> tuple[float, float]:
  """The least and the most without a fit, over what is not known."""
  cluster = clusters.named(inputs.cluster)
  found = [
    speedup(TABLES[network], batch, inputs.nodes, cluster, Efficiency(share))
    for network, batch, share in itertools.product(inputs.networks, inputs.batches, shares)
  ]
  return min(found), max(found)
