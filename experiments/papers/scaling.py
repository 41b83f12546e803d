"""Compare published throughput on several devices with predictions from the throughput on the fewest devices."""

import csv
import tomllib
from collections import Counter
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np

from ddl.perf import cluster_file, neural_networks, scaling
from ddl.perf.cluster import INFINIBAND_LATENCY, LIBRARIES, NVLINK_LATENCY, LinkModel, NetworkModel
from ddl.perf.collectives import all_reduce
from ddl.perf.device import LayerWork
from ddl.perf.scaling import ReachedRates
from ddl.perf.timeline import Pass, simulate
from experiments.papers import page
from experiments.papers.page import Config, Section


class ScaledSystem(NamedTuple):
  """A system of connected devices from published_scaling.toml."""

  title: str
  source: str
  inside: float  # bytes per second of a device's link inside its node, one way
  per_node: int
  between: float = 0.0  # bytes per second of a node, one way; 0: there is one node
  library: str = "nccl"  # in libraries.toml; "": servers on all nodes, which move as many bytes as a ring of nodes

  def network(self, config: Config) -> NetworkModel:
    """Return the network between the devices."""
    inside = LinkModel(NVLINK_LATENCY, self.inside)
    latency = INFINIBAND_LATENCY if self.library else config.ethernet
    between = LinkModel(latency, self.between or self.inside)
    return NetworkModel(between, inside, self.per_node, library=LIBRARIES.get(self.library))


class ScaledRun(NamedTuple):
  """A network trained on several numbers of devices of a system, always with the same number of examples per device."""

  system: str  # key in published_scaling.toml
  network: str  # name of a layer table, or the number of parameters in millions
  examples: int  # per device and step
  rates: dict[int, float]  # number of devices -> examples per second, starting with the fewest devices
  accumulated: dict[int, int]  # number of devices -> accumulation steps per exchange, if more than one


class PublishedPoint(NamedTuple):
  """Published and predicted throughput on a certain number of devices, in examples per second."""

  system: str
  devices: int
  several: bool  # whether the devices are in several nodes
  published: float
  hidden: float  # predicted, if messages overlap the backward pass
  after: float  # predicted, if messages are sent after the backward pass
  ideal: float  # linear scaling of the throughput on the fewest devices

  @property
  def efficiency(self) -> float:
    """Scaling efficiency: published throughput over ideal throughput."""
    return self.published / self.ideal

  def error(self, column: str) -> float:
    """Return the relative error: predicted / published - 1."""
    return getattr(self, column) / self.published - 1


COLUMNS = {
  "hidden": "messages overlap the backward pass", "after": "messages after it", "ideal": "baseline: no communication",
}  # fmt: skip


@cache
def systems() -> dict[str, ScaledSystem]:
  """Read the systems of published_scaling.toml: name -> system."""
  text = Path(__file__).with_name("published_scaling.toml").read_text(encoding="utf-8")
  return {name: ScaledSystem(**system) for name, system in tomllib.loads(text).items()}


@cache
def runs() -> list[ScaledRun]:
  """Read the runs of published_scaling.csv."""
  with Path(__file__).with_name("published_scaling.csv").open(newline="") as file:
    return [
      ScaledRun(
        row["system"], row["network"], int(row["examples"]), _by_devices(row["rates"]),
        {count: int(steps) for count, steps in _by_devices(row["accumulated"]).items()},
      )
      for row in csv.DictReader(file)
    ]  # fmt: skip


def _by_devices(text: str) -> dict[int, float]:
  pairs = (pair.split(":") for pair in text.split())
  return {int(devices): float(number) for devices, number in pairs}


def section(config: Config) -> Section:
  """Build the section with the median errors, the rates that runs reached, and the errors by system."""
  every = [point for run in runs() for point in points(config, run)]
  kinds = {"one node": False, "several nodes": True}
  groups = {nodes: [point for point in every if point.several == several] for nodes, several in kinds.items()}
  both = [
    (nodes, which, selected)
    for nodes, group in groups.items()
    for which, selected in (
      ("all", group),
      (f"efficiency under {config.hard:g}", [point for point in group if point.efficiency < config.hard]),
    )
  ]
  sets = [
    (name, nodes, which, errors(selected, column))
    for column, name in COLUMNS.items()
    for nodes, which, selected in both
  ]
  rates = {nodes: reached(group) for nodes, group in groups.items()}
  covered = [(nodes, which, covers(every, selected)) for nodes, which, selected in both]
  by_system = {name: [point for point in every if point.system == name] for name in systems()}
  return page.read(
    "scaling", config=config, sets=sets, reached=rates, covered=covered, points=by_system, all=systems(), errors=errors
  )


def errors(points: Sequence[PublishedPoint], column: str) -> list[float]:
  """Return the absolute relative errors of the predictions in one of COLUMNS."""
  return [abs(point.error(column)) for point in points]


def reached(points: Sequence[PublishedPoint]) -> ReachedRates:
  """Return the 10th and the 90th percentile of the ratios of published rates to those predicted without overlap."""
  low, high = np.quantile([point.published / point.after for point in points], (0.1, 0.9)).tolist()
  return ReachedRates(low, high, len(points), len({point.system for point in points}))


def covers(every: Sequence[PublishedPoint], points: Sequence[PublishedPoint]) -> float:
  """Return the share of `points` whose published value lies in the interval derived from the other systems.

  every: the points of all systems.
  """
  inside = Counter[bool]()
  for name in {point.system for point in points}:
    own = [point for point in points if point.system == name]
    others = [point for point in every if point.system != name and point.several == own[0].several]
    rates = reached(others)
    for point in own:
      low, high = scaling.rate_interval(point.hidden, point.after, rates)
      inside[low <= point.published <= high] += 1
  return inside[True] / inside.total()


def points(config: Config, run: ScaledRun) -> list[PublishedPoint]:
  """Predict all points of a run except the first, from which the step time is derived."""
  (first, base), system, predicted = next(iter(run.rates.items())), systems()[run.system], []
  steps = {overlap: _step(config, run, overlap) for overlap in (True, False)}
  for count, rate in [*run.rates.items()][1:]:
    examples = count * run.examples * run.accumulated.get(count, 1)
    hidden, after = (examples / seconds(config, run, count, steps[way], way) for way in (True, False))
    ideal = count * base / first
    predicted.append(PublishedPoint(run.system, count, count > system.per_node, rate, hidden, after, ideal))
  return predicted


def seconds(config: Config, run: ScaledRun, devices: int, step: float, overlap: bool) -> float:
  """Predict the seconds of all accumulation steps and their exchange. step: seconds of one step without exchange."""
  shares, links = _pass(run.network, run.examples, config.pieces), systems()[run.system].network(config)
  layers = [step * layer / shares.seconds for layer in shares.forward]
  before = (run.accumulated.get(devices, 1) - 1) * step  # seconds of the accumulation steps before the last one
  whole = Pass([*layers, before], [*layers, 0.0], [*layers, 0.0], [*shares.nbytes, 0.0])

  @cache
  def cost(nbytes: float) -> float:
    return all_reduce(nbytes, devices, links)

  return simulate(whole, cost, bucket=config.bucket, overlap=overlap).seconds


def _step(config: Config, run: ScaledRun, overlap: bool) -> float:
  """Solve for the step time that, with exchanges, reproduces the published throughput of the first point."""
  first, rate = next(iter(run.rates.items()))
  base = step = first * run.examples / rate
  if first == 1:
    return base
  for _ in range(config.rounds):
    step += base - seconds(config, run, first, step, overlap) / run.accumulated.get(first, 1)
  return step


@cache
def _pass(network: str, examples: int, pieces: int) -> Pass:
  """Divide a step among the layers of the network's table, or among `pieces` equal layers if it has no table."""
  if network in neural_networks.names():
    work = scaling.work(neural_networks.table(network))
  else:
    parts = (LayerWork(1e9),) * pieces  # the number of FLOP has no effect
    work = scaling.StepWork(parts, (4e6 * float(network) / pieces,) * pieces)
  return scaling.step_pass(work, cluster_file.named("h100_ib400"), examples)
