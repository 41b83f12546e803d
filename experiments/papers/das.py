"""Das et al. 2016, arXiv 1602.06709: speed-ups of N nodes over one, without a fit and with one, see `das_step`."""

import itertools
import statistics
from collections.abc import Callable

from scipy.optimize import root_scalar

from ddl.perf import cluster_file, networks
from ddl.perf.cluster import Cluster
from ddl.perf.device import Efficiency
from ddl.perf.layers import train_flop
from experiments.papers.das_step import PLAIN, DasStep, Terms, all_reduce_rate, step
from experiments.papers.page import Config, Prediction, ReportedRow, Section, number, remarks, table

VOLUMES, TERMS, EXAMPLES, SECONDS = "no fit: volumes", "no fit: measured terms", "half fitted", "fixed seconds fitted"


def terms(config: Config, cluster: str, larger: bool = False) -> Terms:
  """Return the terms of a cluster: what was measured on its kind of link, and a core for the messages.

  larger: by the all-reduces of larger messages, where there are any.
  """
  link, cores = cluster_file.named(cluster).network.between, config.cores[cluster]
  found = config.larger if larger else config.reduced
  rates = [all_reduce_rate(*each) / link.bandwidth for each in found]
  share = statistics.fmean(rates) if config.kinds[cluster] == "fdr" else config.framing
  return Terms(halves=True, rate=share, cores=(cores - 1) / cores)


def section(config: Config) -> Section:
  """Table without a fit, in two readings, and with two fits on the same point."""
  half, start = _fitted(config)
  rows, spans, cumulative = [], [], []
  for name, inputs in config.rows.items():
    fits, here = name == config.fitted, terms(config, inputs.cluster)
    predicted = {
      VOLUMES: Prediction(_step(inputs, config.share).speedup),
      TERMS: Prediction(_step(inputs, config.share, terms=here).speedup),
      EXAMPLES: Prediction(_step(inputs, config.share, half=half).speedup, fits),
      SECONDS: Prediction(_step(inputs, config.share, start=start).speedup, fits),
    }
    rows.append(ReportedRow(name, inputs.reported, "x", predicted, inputs.unknown))
    spans.append(f"{name} {' to '.join(f'{x:.3g}x' for x in _span(config, inputs))}")
    cumulative.append(_cumulative(config, name, inputs, here))
  head = (
    "no fit, speed-up", "volumes of the paper", "and both halves of an exchange", "and measured rates",
    "and a core for messages", "reported", "missing, ms of a step",
  )  # fmt: skip
  text = remarks("das", config=config, half=half, start_ms=1e3 * start, spans="; ".join(spans), **_figures(config))
  fitted = f"nothing, or one parameter on *{config.fitted}* ({config.rows[config.fitted].reported:g}x), in two curves."
  return Section(
    "Das et al. 2016: strong scaling", "configs/reproduce_das.py", fitted, rows, TERMS,
    [table(head, cumulative), *text], curves=(EXAMPLES, SECONDS),
  )  # fmt: skip


def _cumulative(config: Config, name: str, inputs: Config, here: Terms) -> tuple[str, ...]:
  ways = (PLAIN, Terms(halves=True), here._replace(cores=1.0), here)
  found = [_step(inputs, config.share, terms=each) for each in ways]
  missing = 1e3 * (found[-1].alone / inputs.reported - found[-1].seconds)
  return (name, *(number(each.speedup, "x") for each in found), number(inputs.reported, "x"), f"{missing:.0f}")


def _figures(config: Config) -> dict[str, object]:
  """Values of the remarks: parts of a step, and what the missing seconds would be per message."""

  def at(name: str) -> DasStep:
    inputs = config.rows[name]
    return _step(inputs, config.share, terms=terms(config, inputs.cluster))

  few, many = config.fitted, config.grown
  missing = {name: at(name).alone / config.rows[name].reported - at(name).seconds for name in (few, many)}
  parts = "; ".join(
    f"{name} {100 * found.waiting / found.seconds:.0f} % and {100 * max(0.0, found.exposed) / found.seconds:.0f} %"
    for name, found in ((name, at(name)) for name in config.rows)
  )
  frame = train_flop(networks.table("cd_dnn")) / train_flop(networks.table(config.rows[few].network))
  fdr = {larger: terms(config, "cori_fdr", larger).rate for larger in (False, True)}
  return {
    "parts": parts,
    "few": few,
    "many": many,
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
    networks.table(inputs.network), inputs.batch, inputs.nodes, cluster, Efficiency(share, half), terms, start
  )


def _span(config: Config, inputs: Config) -> tuple[float, float]:
  """The least and the most with the terms, over the unknown inputs and both measured rates."""
  cluster = cluster_file.named(inputs.cluster)
  found = [
    step(
      networks.table(network), batch, inputs.nodes, cluster, Efficiency(share), terms(config, inputs.cluster, larger)
    ).speedup
    for network, batch, share, larger in itertools.product(
      inputs.networks, inputs.batches, config.shares, (False, True)
    )
  ]  # fmt: skip
  return min(found), max(found)
