"""The figures of one algorithm's programs: per step and device, from schedules and the cost model; and their tables."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from ddl.config.experiment import Experiment
from ddl.config.experiment import Part as ConfigPart
from ddl.costs import cluster_clock
from ddl.costs.cluster_clock import pattern_of
from ddl.engine import compiled_program as hlo_schedule
from ddl.engine.compiled_program import Collective
from ddl.engine.compiled_trainer import CompiledTrainer
from ddl.names import pluralize
from ddl.perf.cluster import Cluster
from ddl.perf.cluster_file import named
from ddl.perf.device import LayerWork
from ddl.perf.patterns import Op
from ddl.perf.units import bytes_text, columns, percent, seconds_text
from ddl.run.build import param_shapes
from experiments.dryrun import overlap
from experiments.dryrun.program import DryRunProgram, device_bytes

ANY = named("tpu_v5e")  # where the devices' cluster is not known; the seconds are not told then
MOST_STEPS = 1000  # whose seconds the cost model averages


class CollectiveRow(NamedTuple):
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
  rows: tuple[CollectiveRow, ...]
  compute: float  # seconds per step
  exposed: float
  hidden: float
  predicted: float  # seconds per step by the cost model, without the schedule

  @property
  def seconds(self) -> float:
    """Of a step by its schedule."""
    return self.compute + self.exposed


def figures(
  label: str, experiment: Experiment, trainer: CompiledTrainer, programs: Sequence[DryRunProgram],
  cluster: Cluster | None,
) -> Figures:  # fmt: skip
  """Return the figures of an algorithm. programs: of `analyse`."""
  steps = sum(program.count * program.steps for program in programs)
  flop = sum(program.count * hlo_schedule.flop(program.events) for program in programs) / steps
  moved = sum(program.count * hlo_schedule.sent_bytes(program.events) for program in programs) / steps
  rows, compute = _rows(programs, cluster, trainer.workers.devices, steps)
  largest = max(programs, key=lambda program: program.peak)
  predicted = _predicted(experiment, trainer, cluster, flop, moved) if cluster and flop else 0.0
  return Figures(
    label=label,
    workers=trainer.workers.count,
    members=trainer.workers.members,
    arguments=largest.arguments,
    temporary=largest.temporary,
    peak=largest.peak,
    refused=largest.refused,
    parts=parts(trainer),
    flop=flop,
    moved=moved,
    sent=sum(row.times * row.collective.sent for row in rows),
    rows=rows,
    compute=compute,
    exposed=sum(row.times * (row.link - row.hidden) for row in rows),
    hidden=sum(row.times * row.hidden for row in rows),
    predicted=predicted,
  )


def parts(trainer: CompiledTrainer) -> dict[str, float]:
  """Return the bytes per device of what stays between the calls."""
  names = {"params": "parameters", "state": "state of optimizer and algorithm", "messages": "messages in flight"}
  names["extra"] = "other state of the model"
  return {text: device_bytes(getattr(trainer.carry, name)) for name, text in names.items()}


def _rows(
  programs: Sequence[DryRunProgram], cluster: Cluster | None, devices: int, steps: int
) -> tuple[tuple[CollectiveRow, ...], float]:
  """(collectives per step, those alike together, seconds of compute per step)."""
  times, products, hidden, links = (defaultdict[Any, float](float) for _ in range(4))
  compute = 0.0
  for program in programs:
    priced = overlap.price(program.events, program.collectives, cluster or ANY, devices)
    compute += program.count * priced.compute
    for number, transfer in priced.transfers.items():
      key, often = program.collectives[number], program.count * transfer.times
      times[key] += often
      products[key] += often * transfer.kernels
      hidden[key] += often * (transfer.link - transfer.exposed)
      links[key] = transfer.link
  known = float(cluster is not None)
  rows = [
    CollectiveRow(
      key, times[key] / steps, products[key] / times[key], known * links[key], known * hidden[key] / times[key]
    )
    for key in sorted(times, key=lambda key: -key.nbytes * times[key])
  ]
  return tuple(rows), compute / steps * known


def _predicted(experiment: Experiment, trainer: CompiledTrainer, cluster: Cluster, flop: float, moved: float) -> float:
  """Seconds of a step as `compare --cluster` has them, without jitter: the algorithm's clock, not the schedule."""
  members = trainer.workers.members
  pattern = pattern_of(trainer.algorithm, param_shapes(trainer.model), experiment.workers)

  def shared(ops: Sequence[Op]) -> tuple[Op, ...]:
    return tuple(op._replace(nbytes=op.nbytes / members) for op in ops)

  exchanges = tuple(exchange._replace(ops=shared(exchange.ops)) for exchange in pattern.exchanges)
  pattern = pattern._replace(local=shared(pattern.local), exchanges=exchanges)
  step = [LayerWork(flop / experiment.batch, held=moved / cluster.device.width)]
  config = replace(
    experiment, times=ConfigPart("constant", {}), steps=min(experiment.steps, MOST_STEPS), microbatches=1
  )  # `step` is all of a step
  cluster_run = cluster_clock.on(config, pattern, cluster, step)
  return cluster_clock.clock(cluster_run, trainer.algorithm)(config.steps) / config.steps


MOST_ROWS = 8  # collectives of one algorithm that are listed
SMALL = 0.01  # share of a step below which an exposed collective is not worth a word


def summary(figures: Sequence[Figures], cluster: Cluster | None) -> str:
  """A line for each algorithm: memory, work, and what is exposed and hidden."""
  head = ["per device", "memory", "arguments", "temporary", "FLOP/step", "bytes/step", "sent/step"]
  head += ["compute", "exposed", "hidden", "step", "cost model"] if cluster else []
  rows = [head]
  for each in figures:
    if each.refused:
      rows.append([each.label, f">= {bytes_text(each.peak)}", *["-"] * (len(head) - 2)])
      continue
    row = [each.label, *map(bytes_text, (each.peak, each.arguments, each.temporary))]
    row += [f"{each.flop:.3g}", bytes_text(each.moved), bytes_text(each.sent)]
    times = (each.compute, each.exposed, each.hidden, each.seconds, each.predicted)
    rows.append(row + ([seconds_text(value) if value else "0" for value in times] if cluster else []))
  return "\n".join(columns(rows, left=1))


def collectives(each: Figures, priced: bool) -> str:
  """A line for each kind of collective of one algorithm."""
  head = ["  collective", "times/step", "bytes", "group", "asynchronous", "products meanwhile"]
  rows = [head + (["link", "hidden"] if priced else [])]
  for row in each.rows[:MOST_ROWS]:
    one = row.collective
    group = f"{one.size} along {one.axis}" if one.axis else f"{one.size}"
    line = [f"  {one.kind}", f"{row.times:.3g}", bytes_text(one.nbytes), group]
    line += ["yes" if one.starts else "no", f"{row.products:.3g}" if one.starts else "-"]
    hidden = percent(row.hidden / row.link) if row.link else "-"
    rows.append(line + ([seconds_text(row.link), hidden] if priced else []))
  left = each.rows[MOST_ROWS:]
  collectives = pluralize(round(sum(row.times for row in left)), "collective")
  more = f"\n  and {pluralize(len(left), 'smaller kind')} of {collectives} a step"
  return "\n".join(columns(rows, left=1)) + more * bool(left)


def verdict(each: Figures, cluster: Cluster) -> str:
  """What an algorithm hides, in a sentence."""
  total = each.exposed + each.hidden
  if each.refused:
    return f"{each.label}: not compiled, see below"
  if not total:
    return f"{each.label}: nothing is sent"
  share = f"{each.label} hides {percent(each.hidden / total)} of its communication"
  share += f" ({seconds_text(each.hidden) if each.hidden else '0'} of {seconds_text(total)} a step)"
  if each.exposed < SMALL * each.seconds:
    return f"{share}; waits take {percent(each.exposed / each.seconds)} of a step"
  first = max(each.rows, key=lambda row: row.times * (row.link - row.hidden))
  why = "that nothing runs beside" if not first.collective.starts else "that the compute beside it is too short for"
  most = f"the {first.collective.kind} of {bytes_text(first.collective.nbytes)}"
  return f"{share}; waits take {percent(each.exposed / each.seconds)} of a step, most for {most} {why}"


def too_large(each: Figures, limit: float, other: Figures | None, target: str) -> str:
  """What is too big, and what would fit, in a line."""
  total = sum(each.parts.values())
  rest = {"gradients, activations and other temporaries": each.peak - total}
  parts = {name: size for name, size in (each.parts | rest).items() if size > 0}
  biggest = sorted(parts, key=lambda name: -parts[name])[:3]
  largest_parts = ", ".join(f"{name} {bytes_text(parts[name])}" for name in biggest)
  needs = "at least " * each.refused + bytes_text(each.peak)
  line = f"{each.label} needs {needs} of a device's {bytes_text(limit)} on {target} ({largest_parts}): "
  ways = []
  if other:
    ways.append(f"--members={other.members} fits ({pluralize(other.workers, 'worker')}, {bytes_text(other.peak)} each)")
  if total < limit:
    ways.append("or a smaller config.batch, config.microbatches above 1 or config.model.remat for the activations")
  return line + (", ".join(ways) or "no number of members up to 16 fits; a smaller model, or devices with more memory")
