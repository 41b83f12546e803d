"""Compare published throughput on several devices with the event model, given the throughput on the fewest devices."""

from functools import cache
from typing import NamedTuple

from ddl.perf import cluster_file, neural_networks, scaling
from ddl.perf.cluster import INFINIBAND_LATENCY, NCCL, NVLINK_LATENCY, LinkModel, NetworkModel
from ddl.perf.collectives import all_reduce
from ddl.perf.device import LayerWork
from ddl.perf.timeline import Pass, simulate
from experiments.papers import page
from experiments.papers.page import Config, Section


class PublishedPoint(NamedTuple):
  """Throughput on a certain number of devices, in examples per second."""

  devices: int
  published: float
  hidden: float  # predicted, if messages overlap the backward pass
  after: float  # predicted, if messages are sent after it
  ideal: float  # without communication

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


def section(config: Config) -> Section:
  """Build the section with the median and the maximum errors, and all points."""
  curves = {name: points(config, system) for name, system in config.systems.items()}
  every = [point for scaled in curves.values() for point in scaled]
  hard = [point for point in every if point.efficiency < config.hard]
  sets = [
    (name, which, [abs(point.error(column)) for point in selected])
    for column, name in COLUMNS.items()
    for which, selected in (("all", every), (f"efficiency under {config.hard:g}", hard))
  ]
  return page.read("scaling", config=config, curves=curves, sets=sets)


def points(config: Config, system: Config) -> list[PublishedPoint]:
  """Predict the points of a system after the first one, from which the step time is derived."""
  rate, scaled = system.rates[0] / system.devices[0], []
  steps = {overlap: _step(config, system, overlap) for overlap in (True, False)}
  for index, count in enumerate(system.devices[1:], 1):
    examples = count * system.batch * system.each[index]
    hidden, after = (examples / seconds(config, system, index, steps[way], way) for way in (True, False))
    scaled.append(PublishedPoint(count, system.rates[index], hidden, after, count * rate))
  return scaled


def seconds(config: Config, system: Config, index: int, step: float, overlap: bool) -> float:
  """Predict the seconds of accumulated steps and their exchange, on the index-th number of devices."""
  work = _work(config, system)
  shares = scaling.step_pass(work, cluster_file.named("h100_ib400"), system.batch)
  layers = [step * layer / shares.seconds for layer in shares.forward]
  before = (system.each[index] - 1) * step  # seconds of the accumulation steps before the last one
  whole = Pass([*layers, before], [*layers, 0.0], [*layers, 0.0], [*work.nbytes, 0.0])
  links = network(config, system)

  @cache
  def cost(nbytes: float) -> float:
    return all_reduce(nbytes, system.devices[index], links)

  return simulate(whole, cost, bucket=config.bucket, overlap=overlap).seconds


def network(config: Config, system: Config) -> NetworkModel:
  """Build the network with NCCL, or with servers on all nodes, which move as many bytes as a ring of nodes."""
  inside = LinkModel(NVLINK_LATENCY, system.nvlink)
  if system.library:
    return NetworkModel(LinkModel(INFINIBAND_LATENCY, system.between), inside, system.per_node, library=NCCL)
  return NetworkModel(LinkModel(config.ethernet, system.between), inside, system.per_node)


def _step(config: Config, system: Config, overlap: bool) -> float:
  """Solve for the step time with which the first point, including exchanges, has its published throughput."""
  base = step = system.devices[0] * system.batch / system.rates[0]
  if system.devices[0] == 1:
    return base
  for _ in range(config.rounds):
    step += base - seconds(config, system, 0, step, overlap) / system.each[0]
  return step


def _work(config: Config, system: Config) -> scaling.StepWork:
  """Return the work of the network's layer table, or of equal layers if it has no table."""
  if system.network in neural_networks.names():
    return scaling.work(neural_networks.table(system.network))
  parts = (LayerWork(1e9),) * config.pieces  # the number of FLOP has no effect
  return scaling.StepWork(parts, (system.network / config.pieces,) * config.pieces)
