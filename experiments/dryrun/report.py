"""The figures of one algorithm's programs: per step and device, from schedules and the cost model."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from ddl.perf.hardware import CLUSTERS, Cluster
from ddl.perf.hardware.device import Part
from ddl.runtime.trainer import Trainer
from ddl.runtime.xla import schedule as hlo_schedule
from ddl.runtime.xla.hlo import Collective
from experiments.config.experiment import Experiment
from experiments.config.parts.part import Part as ConfigPart
from experiments.costs import cluster_clock
from experiments.costs.param_flops import param_shapes
from experiments.costs.patterns import pattern_of
from experiments.dryrun import overlap
from experiments.dryrun.program import Program, device_bytes

ANY = CLUSTERS["tpu_v5e"]  # where the devices' cluster is not known; the seconds are not told then
MOST_STEPS = 1000  # whose seconds the cost model averages


class Row(NamedTuple):
  """Collectives that are alike."""

  collective: Collective
  times: float  # per step
  products: float  # that run meanwhile, on average
  link: float  # seconds of one; 0 without a cluster
  hidden: float  # seconds of these


class Figures(NamedTuple):
  """Of one algorithm; seconds are 0 without a cluster."""

  label: str
  workers: int
  members: int
  arguments: float  # bytes per device
  temporary: float
  peak: float
  refused: bool  # the compiler gives up: `peak` alone is known
  parts: dict[str, float]  # of the arguments, bytes per device
  flop: float  # per step and device
  moved: float  # bytes per step and device
  sent: float  # bytes per step and device
  rows: tuple[Row, ...]
  compute: float  # seconds per step
  exposed: float
  hidden: float
  predicted: float  # seconds per step by the cost model, without the schedule

  @property
  def seconds(self) -> float:
    """Of a step by its schedule."""
    return self.compute + self.exposed


def figures(
  label: str, experiment: Experiment, trainer: Trainer, programs: Sequence[Program], cluster: Cluster | None
) -> Figures:
  """Return them. programs: of `analyse`."""
  steps = sum(each.count * each.steps for each in programs)
  flop = sum(each.count * hlo_schedule.flop(each.events) for each in programs) / steps
  moved = sum(each.count * hlo_schedule.nbytes(each.events) for each in programs) / steps
  rows, compute = _rows(programs, cluster, trainer.workers.devices, steps)
  largest = max(programs, key=lambda each: each.peak)
  predicted = _predicted(experiment, trainer, cluster, flop, moved) if cluster and flop else 0.0
  return Figures(
    label=label,
    workers=trainer.workers.count,
    members=trainer.workers.members,
    arguments=largest.arguments,
    temporary=largest.temporary,
    peak=largest.peak,
    refused=bool(largest.refused),
    parts=parts(trainer),
    flop=flop,
    moved=moved,
    sent=sum(each.times * each.collective.sent for each in rows),
    rows=rows,
    compute=compute,
    exposed=sum(each.times * (each.link - each.hidden) for each in rows),
    hidden=sum(each.times * each.hidden for each in rows),
    predicted=predicted,
  )


def parts(trainer: Trainer) -> dict[str, float]:
  """Return the bytes per device of what stays between the calls."""
  names = {"params": "parameters", "state": "state of optimizer and algorithm", "messages": "messages in flight"}
  names["extra"] = "other state of the model"
  return {text: device_bytes(getattr(trainer.carry, name)) for name, text in names.items()}


def _rows(
  programs: Sequence[Program], cluster: Cluster | None, devices: int, steps: int
) -> tuple[tuple[Row, ...], float]:
  """(collectives per step, those alike together, seconds of compute per step)."""
  times, products, hidden, links = (defaultdict[Any, float](float) for _ in range(4))
  compute = 0.0
  for each in programs:
    priced = overlap.price(each.events, each.collectives, cluster or ANY, devices)
    compute += each.count * priced.compute
    for number, transfer in priced.transfers.items():
      key, often = each.collectives[number], each.count * transfer.times
      times[key] += often
      products[key] += often * transfer.kernels
      hidden[key] += often * (transfer.link - transfer.exposed)
      links[key] = transfer.link
  known = float(cluster is not None)
  rows = [
    Row(key, times[key] / steps, products[key] / times[key], known * links[key], known * hidden[key] / times[key])
    for key in sorted(times, key=lambda key: -key.nbytes * times[key])
  ]
  return tuple(rows), compute / steps * known


def _predicted(experiment: Experiment, trainer: Trainer, cluster: Cluster, flop: float, moved: float) -> float:
  """Seconds of a step as `compare --cluster` has them, without jitter: the algorithm's clock, not the schedule."""
  members = trainer.workers.members
  pattern = pattern_of(trainer.algorithm, param_shapes(trainer.model), experiment.workers)
  share = [each._replace(nbytes=each.nbytes / members) for each in pattern.local]
  exchanges = [
    each._replace(ops=tuple(op._replace(nbytes=op.nbytes / members) for op in each.ops)) for each in pattern.exchanges
  ]
  pattern = pattern._replace(local=tuple(share), exchanges=tuple(exchanges))
  step = [Part(flop / experiment.batch, held=moved / cluster.device.width)]
  config = replace(
    experiment, times=ConfigPart("constant", {}), steps=min(experiment.steps, MOST_STEPS), microbatches=1
  )  # `step` is all of a step
  there = cluster_clock.on(config, pattern, cluster, step)
  return cluster_clock.clock(there, trainer.algorithm)(config.steps) / config.steps
