"""Compute an algorithm's memory, work and seconds per step and device, and format the tables."""

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
from ddl.perf import scaling
from ddl.perf.cluster import Cluster
from ddl.perf.cluster_file import named
from ddl.perf.device import LayerWork
from ddl.perf.patterns import Op
from ddl.perf.units import bytes_text, columns, percent, seconds_text
from ddl.run.build import param_shapes, params_bytes
from experiments.dryrun import overlap
from experiments.dryrun.program import DryRunProgram, device_bytes

ANY = named("tpu_v5e")  # stands in for unknown devices, for which no seconds are reported
MOST_STEPS = 1000  # maximum number of steps that the cost model averages over


class CollectiveRow(NamedTuple):
  """A group of identical collectives of a program; seconds are 0 without a cluster."""

  collective: Collective
  times: float  # executions per step
  products: float  # mean number of matrix products that overlap an execution
  link: float  # seconds of one execution
  hidden: float  # part of these seconds that compute hides


class Figures(NamedTuple):
  """Memory, work and seconds of one algorithm; seconds are 0 without a cluster."""

  label: str
  workers: int
  members: int
  arguments: float  # bytes per device
  temporary: float
  peak: float
  refused: bool  # whether the program needs too much memory to compile; then only `peak` and `parts` are known
  parts: dict[str, float]  # bytes per device of each part of the trainer's state, see `parts`
  flop: float  # per step and device
  moved: float  # bytes of memory traffic per step and device
  sent: float  # bytes that collectives send per step and device
  rows: tuple[CollectiveRow, ...]
  compute: float  # seconds per step
  exposed: float  # seconds of exposed communication per step
  hidden: float  # seconds of hidden communication per step
  predicted: float  # seconds per step by the cost model, without the schedule

  @property
  def seconds(self) -> float:
    """Seconds per step: compute and exposed communication."""
    return self.compute + self.exposed


def figures(
  label: str, experiment: Experiment, trainer: CompiledTrainer, programs: Sequence[DryRunProgram],
  cluster: Cluster | None,
) -> Figures:  # fmt: skip
  """Compute the memory, work and time of an algorithm. programs: from `analyse` or `of_run`."""
  steps = sum(program.count * program.steps for program in programs)
  flop = sum(program.count * hlo_schedule.flop(program.events) for program in programs) / steps
  moved = sum(program.count * hlo_schedule.memory_traffic(program.events) for program in programs) / steps
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
  """Return the bytes per device of each part of the state that a trainer passes from one call to the next."""
  names = {"params": "parameters", "state": "state of optimizer and algorithm", "messages": "messages in flight"}
  names["extra"] = "other state of the model"
  return {text: device_bytes(getattr(trainer.carry, name)) for name, text in names.items()}


def _rows(
  programs: Sequence[DryRunProgram], cluster: Cluster | None, devices: int, steps: int
) -> tuple[tuple[CollectiveRow, ...], float]:
  """Group identical collectives; return the groups and the seconds of compute per step."""
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
  """Predict the seconds of a step from the algorithm's messages, as `compare --cluster` does, without the schedule."""
  members = trainer.workers.members
  pattern = pattern_of(trainer.algorithm, param_shapes(trainer.model), experiment.workers)

  def shared(ops: Sequence[Op]) -> tuple[Op, ...]:
    return tuple(op._replace(nbytes=op.nbytes / members) for op in ops)

  exchanges = tuple(exchange._replace(ops=shared(exchange.ops)) for exchange in pattern.exchanges)
  pattern = pattern._replace(local=shared(pattern.local), exchanges=exchanges)
  part = LayerWork(flop / experiment.batch, held=moved / cluster.device.width)
  work = scaling.work_of([part], params_bytes(trainer.model) / members)
  config = replace(
    experiment, times=ConfigPart("constant", {}), steps=min(experiment.steps, MOST_STEPS), microbatches=1
  )  # microbatches=1, because `work` covers the whole step
  cluster_run = cluster_clock.on(config, pattern, cluster, work)
  return cluster_clock.clock(cluster_run, trainer.algorithm)(config.steps) / config.steps


MOST_ROWS = 8  # maximum number of collectives listed per algorithm
SMALL = 0.01  # share of a step below which exposed communication needs no explanation


def summary(figures: Sequence[Figures], cluster: Cluster | None) -> str:
  """Format a table with one row per algorithm: memory, work, exposed and hidden communication."""
  head = ["per device", "memory", "arguments", "temporary", "FLOP/step", "bytes/step", "sent/step"]
  head += ["compute", "exposed", "hidden", "step", "cost model"] if cluster else []
  rows = [head]
  for algorithm in figures:
    if algorithm.refused:
      rows.append([algorithm.label, f">= {bytes_text(algorithm.peak)}", *["-"] * (len(head) - 2)])
      continue
    row = [algorithm.label, *map(bytes_text, (algorithm.peak, algorithm.arguments, algorithm.temporary))]
    row += [f"{algorithm.flop:.3g}", bytes_text(algorithm.moved), bytes_text(algorithm.sent)]
    times = (algorithm.compute, algorithm.exposed, algorithm.hidden, algorithm.seconds, algorithm.predicted)
    rows.append(row + ([seconds_text(value) if value else "0" for value in times] if cluster else []))
  return "\n".join(columns(rows, left=1))


def collectives(figures: Figures, priced: bool) -> str:
  """Format a table with one row per distinct collective. priced: whether to show seconds."""
  head = ["  collective", "times/step", "bytes", "group", "asynchronous", "overlapped products"]
  rows = [head + (["link", "hidden"] if priced else [])]
  for row in figures.rows[:MOST_ROWS]:
    one = row.collective
    group = f"{one.size} along {one.axis}" if one.axis else f"{one.size}"
    line = [f"  {one.kind}", f"{row.times:.3g}", bytes_text(one.nbytes), group]
    line += ["yes" if one.starts else "no", f"{row.products:.3g}" if one.starts else "-"]
    hidden = percent(row.hidden / row.link) if row.link else "-"
    rows.append(line + ([seconds_text(row.link), hidden] if priced else []))
  left = figures.rows[MOST_ROWS:]
  collectives = pluralize(round(sum(row.times for row in left)), "smaller collective")
  more = f"\n  and {collectives} per step of {pluralize(len(left), 'kind')}"
  return "\n".join(columns(rows, left=1)) + more * bool(left)


def verdict(figures: Figures, cluster: Cluster) -> str:
  """Summarize in a sentence how much communication an algorithm hides."""
  label, total = figures.label, figures.exposed + figures.hidden
  if figures.refused:
    return f"{label}: not compiled, see below"
  if not total:
    return f"{label}: no communication"
  share = f"{label} hides {percent(figures.hidden / total)} of its communication"
  share += f" ({seconds_text(figures.hidden) if figures.hidden else '0'} of {seconds_text(total)} per step)"
  if figures.exposed < SMALL * figures.seconds:
    return f"{share}; waiting takes {percent(figures.exposed / figures.seconds)} of a step"
  first = max(figures.rows, key=lambda row: row.times * (row.link - row.hidden))
  why = (
    "which overlaps no compute" if not first.collective.starts else "which takes longer than the overlapping compute"
  )
  most = f"the {first.collective.kind} of {bytes_text(first.collective.nbytes)}"
  return f"{share}; waiting takes {percent(figures.exposed / figures.seconds)} of a step, mostly for {most}, {why}"


def too_large(figures: Figures, limit: float, other: Figures | None, target: str) -> str:
  """Describe in one line which parts of a program that exceeds `limit` need the most memory, and what would fit."""
  total = sum(figures.parts.values())
  rest = {"gradients, activations and other temporaries": figures.peak - total}
  parts = {name: size for name, size in (figures.parts | rest).items() if size > 0}
  biggest = sorted(parts, key=lambda name: -parts[name])[:3]
  largest_parts = ", ".join(f"{name} {bytes_text(parts[name])}" for name in biggest)
  needs = "at least " * figures.refused + bytes_text(figures.peak)
  line = f"{figures.label} needs {needs} per device ({largest_parts}), but a {target} device has {bytes_text(limit)}: "
  ways = []
  if other:
    ways.append(f"--members={other.members} fits ({pluralize(other.workers, 'worker')}, {bytes_text(other.peak)} each)")
  if total < limit:
    ways.append("a smaller config.batch, config.microbatches above 1 or config.model.remat reduces the activations")
  return line + (
    ", or ".join(ways) or "no tried number of members up to 16 fits; use a smaller model or devices with more memory"
  )
