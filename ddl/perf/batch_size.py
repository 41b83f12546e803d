"""Choose a number of examples per worker that fit in memory, use the device well, and hide the exchange.

Zou et al. 2017, arXiv 1709.06622, step 1: memory bounds the mini-batch X.

A larger step sends the same number of bytes and computes more, so the efficiency of every algorithm grows with X.
Beyond the memory limit, gradients are accumulated over microbatches, and only the last microbatch exchanges them.

With a global batch B and tuned learning rates, a run reaches a given loss (arXiv 1812.06162) after
steps = S_min (1 + B_c / B),   examples = E_min (1 + B / B_c),   E_min = B_c S_min,
where B_c is the critical batch size, estimated by the gradient noise scale B_simple of a run. If B_c is unknown, the
choice starts from a usual batch: a global batch size that published jobs of the same kind used (`UsualBatch`).
"""

import math
from collections.abc import Callable
from typing import NamedTuple

from ddl.errors import OptionError
from ddl.perf.bounds import smallest_period
from ddl.perf.cluster import Cluster
from ddl.perf.device import step_seconds
from ddl.perf.layers import largest_batch
from ddl.perf.placement import Job, UsualBatch
from ddl.perf.units import bytes_text

ENOUGH = 0.9  # share of the best rate that a recommended batch must reach
LARGEST = 2**14  # the largest number of examples that is tried
MOST_ROWS = 5  # batch sizes in the table
MOST_DOUBLED = 8  # number of times that accumulation doubles a batch

ExactSeconds = Callable[[int, int], float]  # (examples of a worker's step, microbatches) -> seconds of synchronous SGD


def examples_factor(batch: float, critical: float) -> float:
  """Return 1 + B / B_c: the examples to reach a given loss, divided by E_min, their number with very small batches."""
  return 1 + batch / critical


def seconds_factor(batch: float, critical: float, step: float) -> float:
  """Return (1 / B + 1 / B_c) T: the seconds to reach a given loss with steps of T seconds, divided by E_min."""
  return step * examples_factor(batch, critical) / batch


class BatchSize(NamedTuple):
  """The number of examples in a worker's step, and the number of microbatches that process them."""

  examples: int
  micro: int = 1  # microbatches of equal size


def accumulated(examples: int, largest: int) -> BatchSize:
  """Split a batch into a small number of equal microbatches of at most `largest` examples.

  If the batch has no suitable divisor, the remainder is dropped.
  """
  least = math.ceil(examples / largest)
  micro = next((micro for micro in range(least, 2 * least) if examples % micro == 0), least)
  return BatchSize(examples // micro * micro, micro)


class TriedSizes(NamedTuple):
  """Candidate mini-batches with the seconds of their steps."""

  largest: int  # most examples that memory and data allow
  steps: dict[int, float]  # candidate -> seconds of its step
  best: int  # the candidate with the most examples per second
  enough: int  # the smallest candidate >= `job.least` with at least ENOUGH of the best rate; if none, the largest
  requested: BatchSize  # the requested batch, split into microbatches that fit

  @property
  def part(self) -> int:
    """Examples of a microbatch of the requested batch."""
    return self.requested.examples // self.requested.micro

  @property
  def step(self) -> float:
    """Seconds of a step on the requested batch."""
    return self.requested.micro * self.steps[self.part]


def tried_sizes(job: Job, cluster: Cluster, requested: int = 0, micro: int = 1) -> TriedSizes:
  """Return the sizes of mini-batches to choose from, and the seconds of their steps.

  The candidates are powers of two, a microbatch of `requested`, and the largest size that memory and data allow. They
  exceed LARGEST only if `job.least` or the microbatch does. If `requested` does not fit in `micro` microbatches, more
  are used; `requested=0` stands for `job.least`.

  Raises:
    ValueError: if `requested` exceeds the examples of a worker, or if not even one example fits in memory.
  """
  limit = cluster.device.usable
  if job.remat and job.memory.total(1) > limit >= job.remat().total(1):
    condition = f"True (without it, not even one example fits in {bytes_text(limit)})"
    raise OptionError("config.model.remat", condition, False)
  fits = largest_batch(job.memory, limit)
  largest = min(fits, job.most or fits)
  if requested > (most := (job.most or math.inf) * micro):
    raise OptionError("batch (examples per worker)", f"at most {most} (all examples of a worker)", requested)
  size = BatchSize(requested or min(job.least, largest), micro if requested else 1)
  if size.examples > size.micro * largest:  # use the largest divisor of `requested` that fits
    size = BatchSize(requested, requested // next(x for x in range(largest, 0, -1) if requested % x == 0))
  part = size.examples // size.micro
  last = min(largest, max(LARGEST, job.least, part))
  tried = sorted({*(2**i for i in range(last.bit_length())), part, last})
  steps = {x: step_seconds(job.step, x, cluster.device, cluster.efficiency) for x in tried}
  most = max(x / steps[x] for x in tried)
  best = next(x for x in tried if x / steps[x] >= most * (1 - 1e-9))
  enough = (x for x in tried if x >= job.least and x / steps[x] >= ENOUGH * best / steps[best])
  return TriedSizes(largest, steps, best, min(enough, default=last), size)


def threshold(
  job: Job, sizes: TriedSizes, exact: ExactSeconds, least: float, accumulate: bool = True
) -> BatchSize | None:
  """Return the smallest batch size at and above which synchronous SGD has at least the efficiency `least`.

  If no such batch fits in memory, return one that is split into microbatches, or None if `accumulate` is False or a
  worker has too few examples.
  """
  smallest = None
  for x in reversed(sizes.steps):
    if sizes.steps[x] / exact(x, 1) < least:
      break
    smallest = BatchSize(x)
  if smallest or sizes.largest == job.most or not accumulate:
    return smallest
  part = max(x for x in sizes.steps if not x & (x - 1))  # the largest power of two that fits
  step = sizes.steps[part]
  micro = smallest_period(max(0.0, exact(part, 1) - step), step, share=1 - least)
  return BatchSize(part * micro, micro)


def usual_size(job: Job, sizes: TriedSizes, workers: int, critical: float | None = None) -> BatchSize:
  """Return a worker's share of a global batch, split into microbatches that fit.

  The global batch is the critical one if known, else the largest usual one; without either, return `sizes.enough`.
  """
  usual = UsualBatch(int(critical), "a measured run") if critical else job.usual
  if not usual:
    return BatchSize(sizes.enough)
  most = usual.per_worker(workers)
  return accumulated(min(most, job.most or most), sizes.largest)


def choose_size(
  job: Job, sizes: TriedSizes, workers: int, enough: BatchSize | None, exact: ExactSeconds, critical: float | None
) -> tuple[BatchSize, str]:
  """Return the batch size of a worker, and a description of the rule that chose it.

  If the critical batch size is known, the batch minimizes the seconds to reach a given loss. Otherwise it is the
  smallest usual global batch with which a step uses the device well (`sizes.enough`) and synchronous SGD is efficient
  (`enough`), but at most the largest usual one; without a usual batch, it is `sizes.enough`. Gradients are accumulated
  if memory is too small.
  """
  if critical:
    part = max(x for x in sizes.steps if not x & (x - 1))  # the largest power of two that fits
    options = [BatchSize(x) for x in sizes.steps] + [BatchSize(part * 2**i, 2**i) for i in range(1, MOST_DOUBLED)]
    options = options if job.most is None else [x for x in options if x.examples <= job.most]
    best = min(options, key=lambda size: seconds_factor(workers * size.examples, critical, exact(*size)))
    return best, "the size that reaches a given loss in the fewest seconds, (1 / B + 1 / B_c) T"
  if not job.usual:
    return BatchSize(sizes.enough), ""
  most = usual_size(job, sizes, workers)
  first = max(1, round((job.usual.start or job.usual.examples) / workers))
  needed = max(first, sizes.enough, enough.examples if enough else most.examples)
  if needed >= most.examples:
    return most, "about the largest usual global batch" if job.usual.start else "about the usual global batch"
  rule = "the usual global batch" if needed == first else "the smallest usual size that uses the device and links well"
  return accumulated(needed, sizes.largest), rule


def shown_sizes(job: Job, sizes: TriedSizes, *more: BatchSize | None) -> list[BatchSize]:
  """Select the batch sizes for the table: some powers of two >= `job.least`, the largest candidate, and `more`."""
  last = max(sizes.steps)
  powers = {BatchSize(x) for x in sizes.steps if x >= min(job.least, last) and not x & (x - 1)}
  required = {size for size in more if size} | {BatchSize(last)}
  ordered = sorted(powers - required)
  step = max(1, -(-len(ordered) // max(1, MOST_ROWS - len(required))))
  return sorted(required | set(ordered[::step]))
