"""Examples per worker: what the memory holds, what the device needs, and what hides the exchange of each family.

Zou et al. 2017, arXiv 1709.06622, step 1: a step's memory bounds the mini-batch X; for each X that fits the 0-1 program
finds the best convolution algorithms in the memory left. The effect of X on convergence is not in the model, so the
smallest X with nearly the best examples per second is chosen. On a device whose algorithms were measured the step has
the fastest of each layer, as the program finds them if memory allows; on others the program's savings are separate.

Larger steps send as much and compute more, so that each family's efficiency grows with the examples. Beyond what the
memory holds, microbatches accumulate gradients: the exchange is that of the last one.

What a global batch B costs in convergence, with tuned learning rates (arXiv 1812.06162): to the same loss
steps = S_min (1 + B_c / B),   examples = E_min (1 + B / B_c),   E_min = B_c S_min,
B_c the critical batch, which the gradient noise scale B_simple of a run estimates. Where it is not known, a usual batch
stands for the largest that has been shown to cost nothing in a job of the kind.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from ddl.errors import OptionError
from ddl.perf import collectives, families, units
from ddl.perf.bounds import smallest_delay, smallest_period
from ddl.perf.cluster import Cluster
from ddl.perf.convolution import AlgorithmChoice, best_batch, choose, modelled, other_seconds
from ddl.perf.device import step_seconds
from ddl.perf.device_step import measured_costs
from ddl.perf.families import Islands, averaged, islands, streaming
from ddl.perf.layers import is_convolution
from ddl.perf.memory import StepMemory, largest_batch
from ddl.perf.placement import Job
from ddl.perf.units import bytes_text

ENOUGH = 0.9  # of the best rate
LARGEST = 2**14  # examples; no more are tried
MOST_ROWS = 5

ExactSeconds = Callable[[int, int], float]  # (examples of a worker's step, microbatches) -> seconds of synchronous SGD


def examples_factor(batch: float, critical: float) -> float:
  """1 + B / B_c: examples to a loss, over those that ever smaller batches need."""
  return 1 + units.positive("batch", batch) / units.positive("critical batch", critical)


def seconds_factor(batch: float, critical: float, step: float) -> float:
  """(1 / B + 1 / B_c) T: seconds to a loss over E_min, of steps of T seconds."""
  return units.positive("step (s)", step) * examples_factor(batch, critical) / batch


class ConvolutionProgram(NamedTuple):
  """Result of the 0-1 program over convolution algorithms at X."""

  direct: float  # seconds of all convolutions as the step counts them
  shared: AlgorithmChoice  # one workspace for all layers
  separate: AlgorithmChoice  # a workspace for each layer
  step: float  # seconds of the step with `shared`
  best: int  # the X of those tried with the best rate under the program


class WorkerBatch(NamedTuple):
  """A mini-batch X and its reasons."""

  examples: int
  largest: int  # that fits
  needed: float  # bytes at X, counted from layers
  exact: float | None  # bytes at X of the compiled step
  step: float  # seconds of a step on X
  best: int  # with the best rate of those tried
  best_rate: float  # examples per second of that
  program: ConvolutionProgram | None  # None without convolutions
  micro: int = 1  # microbatches: needed, exact and program are of one

  @property
  def rate(self) -> float:
    """Examples per second of one worker."""
    return self.examples / self.step


class TriedSizes(NamedTuple):
  """Mini-batches that are tried, with the seconds of their steps."""

  largest: int  # that fits
  steps: dict[int, float]  # X -> seconds
  best: int  # of them, with the most examples per second
  enough: int  # the smallest from `job.least` on with ENOUGH of that; the largest where there is none


def tried_sizes(job: Job, cluster: Cluster, requested: int = 0) -> TriedSizes:
  """Powers of two up to the largest X that fits, that one, and `requested` or `job.least`.

  ValueError if not even one example fits, or the requested X does not, with the largest that does.
  """
  fits = largest_fitting(job, cluster.device.memory)
  largest = min(fits, job.most or fits)
  if units.count("examples per worker", requested, 0) > largest:
    memory = f"which fit into the device's {bytes_text(cluster.device.memory)}"
    limit = "the data of each" if largest == job.most else memory
    raise OptionError("examples per worker", f"at most {largest}, {limit}", requested)
  last = min(largest, max(LARGEST, job.least, requested))
  tried = sorted({*(2**i for i in range(last.bit_length())), min(requested or job.least, last), last})
  steps = {x: step_seconds(job.step, x, cluster.device, cluster.efficiency) for x in tried}
  most = max(x / steps[x] for x in tried)
  best = next(x for x in tried if x / steps[x] >= most * (1 - 1e-9))
  enough = (x for x in tried if x >= job.least and x / steps[x] >= ENOUGH * best / steps[best])
  return TriedSizes(largest, steps, best, min(enough, default=last))


def choose_batch(job: Job, cluster: Cluster, requested: int = 0, micro: int = 1) -> WorkerBatch:
  """Return the smallest power of two from `job.least` on with ENOUGH of the best rate that fits; or the requested X.

  requested: X, which `micro` microbatches share evenly; 0: chosen.
  """
  sizes = tried_sizes(job, cluster, requested // micro)
  examples = requested // micro or sizes.enough
  return WorkerBatch(
    examples=examples * micro,
    largest=sizes.largest,
    needed=job.memory.total(examples),
    exact=job.exact(examples) if job.exact else None,
    step=micro * sizes.steps[examples],
    best=sizes.best,
    best_rate=sizes.best / sizes.steps[sizes.best],
    program=_program(job, cluster, list(sizes.steps), examples) if any(map(is_convolution, job.table)) else None,
    micro=micro,
  )


def largest_fitting(job: Job, limit: float) -> int:
  """Return the largest X whose step fits `limit` bytes: by the compiled program where there is one, else by the count.

  Each example is taken to add equally many bytes. ValueError if not even one fits, with the bytes that one needs.
  """
  if not job.exact:
    return largest_batch(job.memory, limit)
  some = max(job.least, 2)
  one, more = job.exact(1), job.exact(some)
  per_example = max((more - one) / (some - 1), 1.0)
  largest = largest_batch(StepMemory(per_example, one - per_example), limit)
  while 1 < largest <= LARGEST and job.exact(largest) > limit:
    largest = largest * 9 // 10
  return largest


def _program(job: Job, cluster: Cluster, tried: list[int], examples: int) -> ConvolutionProgram:
  device, efficiency = cluster.device, cluster.efficiency
  if job.shares is None or job.shares.whole:
    costs, other = modelled(job.table, device, efficiency), other_seconds(job.table, device, efficiency)
  else:
    costs, other = measured_costs(job.table, device, job.shares)
  choices = best_batch(job.memory, device.memory, tried, costs, other_seconds=other, shared=True)
  (choice,) = (x for x in choices if x.examples == examples)
  at_x = costs(examples)
  return ConvolutionProgram(
    direct=float(at_x.seconds[:, at_x.algorithms.index("direct")].sum()),
    shared=choice.choice,
    separate=choose(at_x, device.memory - job.memory.total(examples)),
    step=examples / choice.throughput,
    best=choices[0].examples,
  )


class BatchSize(NamedTuple):
  """Examples of a worker's step."""

  examples: int
  micro: int = 1  # microbatches, which share them evenly


class FamilyCell(NamedTuple):
  """One family at one size."""

  efficiency: float
  setting: int | None = None  # the delay or the period that it takes


class EfficiencyRow(NamedTuple):
  """All families at one size."""

  size: BatchSize
  step: float  # seconds without any exchange
  cells: dict[str, FamilyCell]
  relative: float | None = None  # seconds of synchronous SGD to a loss over the least of all rows, where B_c is known


def threshold(
  job: Job, sizes: TriedSizes, exact: ExactSeconds, keep: float, accumulate: bool = True
) -> BatchSize | None:
  """The smallest size of those tried from which on synchronous SGD keeps that efficiency; None where there is none.

  Where memory ends before, as many microbatches as it takes; not where the data end, or they do not `accumulate`.
  """
  smallest = None
  for x in reversed(sizes.steps):
    if sizes.steps[x] / exact(x, 1) < keep:
      break
    smallest = BatchSize(x)
  if smallest or sizes.largest == job.most or not accumulate:
    return smallest
  part = max(x for x in sizes.steps if not x & (x - 1))  # the largest power of two that fits
  step = sizes.steps[part]
  micro = smallest_period(max(0.0, exact(part, 1) - step), step, share=1 - keep)
  return BatchSize(part * micro, micro)


def largest_usual(job: Job, sizes: TriedSizes, workers: int) -> int:
  """The largest power of two with which the global batch is a usual one and fits, but not less than `sizes.enough`."""
  most = min(sizes.largest, job.usual.examples // workers) if job.usual else 0
  return max(sizes.enough, 2 ** (most.bit_length() - 1) if most else 0)


def choose_size(
  job: Job, sizes: TriedSizes, workers: int, enough: BatchSize | None, exact: ExactSeconds, critical: float | None
) -> tuple[BatchSize, str]:
  """Return the size, and a description of the rule by which it is chosen.

  With a known critical batch it is that of the least seconds to a loss. Else it is the one from which on synchronous
  SGD keeps its efficiency, as far as the global batch is a usual one, and not smaller than the device needs.
  """
  if critical:
    options = [BatchSize(x) for x in sizes.steps] + ([enough] if enough and enough.micro > 1 else [])
    rate = {s: seconds_factor(workers * s.examples, critical, exact(*s)) for s in options}
    return min(options, key=lambda s: rate[s]), "the least seconds to a loss of those tried: (1 / B + 1 / B_c) T"
  usual = largest_usual(job, sizes, workers)
  known = enough and job.usual and enough.examples * workers <= job.usual.examples
  if workers == 1 or (enough and enough.examples <= sizes.enough) or not (known or usual > sizes.enough):
    return BatchSize(sizes.enough), ""
  if enough and known:
    return enough, "the fewest of 1, 2, 4, ... from which on synchronous SGD keeps its efficiency"
  return BatchSize(usual), "the most with which the global batch is a usual one: synchronous SGD would need more"


def shown_sizes(job: Job, sizes: TriedSizes, *more: BatchSize | None) -> list[BatchSize]:
  """Sizes of the table: every fourth power of two from `job.least` on, the largest that fits, and some more."""
  last = max(sizes.steps)
  powers = {BatchSize(x) for x in sizes.steps if x >= min(job.least, last) and not x & (x - 1)}
  wanted = {size for size in more if size} | {BatchSize(last)}
  ordered = sorted(powers - wanted)
  step = max(1, -(-len(ordered) // max(1, MOST_ROWS - len(wanted))))
  return sorted(wanted | set(ordered[::step]))


def efficiency_table(
  job: Job, cluster: Cluster, workers: int, sizes: Sequence[BatchSize], exact: ExactSeconds,
  steps: Callable[[BatchSize], float], *, share: float, sharded: bool, critical: float | None = None,
) -> list[EfficiencyRow]:  # fmt: skip
  """Return a row for each size.

  steps: seconds of a worker's step on a size, without any exchange; share: of a round spent waiting, at most, by which
  periods are set; sharded: whether the parameters are in pieces, so that only islands can average.
  """
  land, rows = islands(cluster, workers), []
  for size in sizes:
    step = steps(size)
    cells = {"synchronous": FamilyCell(step / exact(*size))}
    if not sharded and workers > 1:
      half = families.synchronous_seconds(job, cluster, workers, size.examples, "bfloat16", size.micro)
      cells |= {"in bfloat16": FamilyCell(step / half)} | _flat(job, cluster, workers, step, share)
      cells |= _between(job, land, size, step, share)
    rows.append(EfficiencyRow(size, step, cells))
  if not critical:
    return rows
  seconds = [seconds_factor(workers * row.size.examples, critical, exact(*row.size)) for row in rows]
  return [row._replace(relative=each / min(seconds)) for row, each in zip(rows, seconds, strict=True)]


def _flat(job: Job, cluster: Cluster, workers: int, step: float, share: float) -> dict[str, FamilyCell]:
  """DaSGD and local SGD of single workers."""
  message = collectives.all_reduce(job.params_bytes, workers, cluster.network)
  period = smallest_period(message, step, share=share)
  cells = {"local_sgd": FamilyCell(step / averaged(step, message, period), period)}
  if cluster.overlap:
    cells = {"dasgd": FamilyCell(1.0, smallest_delay(message, step))} | cells
  return cells


def _between(job: Job, land: Islands, size: BatchSize, step: float, share: float) -> dict[str, FamilyCell]:
  """Hierarchical SGD where there are islands, and Streaming DiLoCo."""
  inside = families.synchronous_seconds(job, land.inside, land.members, size.examples, micro=size.micro)
  seconds, delay = streaming(inside, land.message_seconds, job.params_bytes, overlap=land.inside.overlap)
  cells = {"streaming_diloco": FamilyCell(step / seconds, delay)}
  if land.members > 1:
    message = land.message_seconds(job.params_bytes)
    period = smallest_period(message, inside, share=share)
    cells = {"hierarchical": FamilyCell(step / averaged(inside, message, period), period)} | cells
  return cells
