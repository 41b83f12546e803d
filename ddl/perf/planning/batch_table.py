"""Examples per worker against the efficiency of each family: where synchronous SGD suffices, and what else would do.

Larger steps send as much and compute more, so that each family's efficiency grows with the examples. Beyond what the
memory holds, microbatches accumulate gradients: the exchange is that of the last one.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from ddl.perf import collectives
from ddl.perf.hardware import Cluster
from ddl.perf.planning import bounds, delays, synchronous
from ddl.perf.planning.batch import Job, Sizes
from ddl.perf.planning.islands import FRAGMENTS, STREAMING, Islands, averaged, islands, streaming

Exact = Callable[[int, int], float]  # (examples of a worker's step, microbatches) -> seconds of synchronous SGD
MOST_LINES = 5


class Size(NamedTuple):
  """Examples of a worker's step."""

  examples: int
  micro: int = 1  # microbatches, which share them evenly


class Cell(NamedTuple):
  """One family at one size."""

  efficiency: float
  setting: int | None = None  # the delay or the period that it takes


class Line(NamedTuple):
  """All families at one size."""

  size: Size
  step: float  # seconds without any exchange
  cells: dict[str, Cell]
  relative: float | None = None  # seconds of synchronous SGD to a loss over the least of all lines, where B_c is known


def threshold(job: Job, sizes: Sizes, exact: Exact, keep: float, accumulate: bool = True) -> Size | None:
  """The smallest size of those tried from which on synchronous SGD keeps that efficiency; None where there is none.

  Where memory ends before, as many microbatches as it takes; not where the data end, or they do not `accumulate`.
  """
  found = None
  for x in reversed(sizes.steps):
    if sizes.steps[x] / exact(x, 1) < keep:
      break
    found = Size(x)
  if found or sizes.largest == job.most or not accumulate:
    return found
  part = max(x for x in sizes.steps if not x & (x - 1))  # the largest power of two that fits
  step = sizes.steps[part]
  micro = delays.smallest_period(max(0.0, exact(part, 1) - step), step, share=1 - keep)
  return Size(part * micro, micro)


def largest_usual(job: Job, sizes: Sizes, workers: int) -> int:
  """The largest power of two with which the global batch is a usual one and fits, but not less than `sizes.enough`."""
  most = min(sizes.largest, job.usual.examples // workers) if job.usual else 0
  return max(sizes.enough, 2 ** (most.bit_length() - 1) if most else 0)


def choose(
  job: Job, sizes: Sizes, workers: int, enough: Size | None, exact: Exact, critical: float | None
) -> tuple[Size, str]:
  """Return the size, and the rule by which it is chosen, in words.

  With a known critical batch it is that of the least seconds to a loss. Else it is the one from which on synchronous
  SGD keeps its efficiency, as far as the global batch is a usual one, and not smaller than the device needs.
  """
  if critical:
    options = [Size(x) for x in sizes.steps] + ([enough] if enough and enough.micro > 1 else [])
    rate = {s: bounds.seconds_factor(workers * s.examples, critical, exact(*s)) for s in options}
    return min(options, key=lambda s: rate[s]), "the least seconds to a loss of those tried: (1 / B + 1 / B_c) T"
  usual = largest_usual(job, sizes, workers)
  borne = enough and job.usual and enough.examples * workers <= job.usual.examples
  if workers == 1 or (enough and enough.examples <= sizes.enough) or not (borne or usual > sizes.enough):
    return Size(sizes.enough), ""
  if enough and borne:
    return enough, "the fewest of 1, 2, 4, ... from which on synchronous SGD keeps its efficiency"
  return Size(usual), "the most with which the global batch is a usual one: synchronous SGD would need more"


def shown(job: Job, sizes: Sizes, *more: Size | None) -> list[Size]:
  """Sizes of the table: every fourth power of two from `job.least` on, the largest that fits, and some more."""
  last = max(sizes.steps)
  found = {Size(x) for x in sizes.steps if x >= min(job.least, last) and not x & (x - 1)}
  wanted = {size for size in more if size} | {Size(last)}
  ordered = sorted(found - wanted)
  step = max(1, -(-len(ordered) // max(1, MOST_LINES - len(wanted))))
  return sorted(wanted | set(ordered[::step]))


def lines(
  job: Job, cluster: Cluster, workers: int, sizes: Sequence[Size], exact: Exact, steps: Callable[[Size], float],
  *, share: float, sharded: bool, critical: float | None = None,
) -> list[Line]:  # fmt: skip
  """Return a line for each size.

  Args:
    steps: seconds of a worker's step on a size, without any exchange.
    share: of a round spent waiting, at most, which sets the periods.
    sharded: whether the parameters are in pieces, so that islands alone can average.
    critical: the critical batch in examples, where it is known.
  """
  land, found = islands(cluster, workers), []
  for size in sizes:
    step = steps(size)
    cells = {"synchronous": Cell(step / exact(*size))}
    if not sharded and workers > 1:
      half = synchronous.seconds(job, cluster, workers, size.examples, "bfloat16", size.micro)
      cells |= {"in bfloat16": Cell(step / half)} | _flat(job, cluster, workers, step, share)
      cells |= _between(job, land, size, step, share)
    found.append(Line(size, step, cells))
  if not critical:
    return found
  seconds = [bounds.seconds_factor(workers * each.size.examples, critical, exact(*each.size)) for each in found]
  return [each._replace(relative=took / min(seconds)) for each, took in zip(found, seconds, strict=True)]


def _flat(job: Job, cluster: Cluster, workers: int, step: float, share: float) -> dict[str, Cell]:
  """DaSGD and local SGD of single workers, and Streaming DiLoCo where there are no islands."""
  message = collectives.all_reduce(job.params_bytes, workers, cluster.network)
  period = delays.smallest_period(message, step, share=share)
  found = {"local_sgd": Cell(step / averaged(step, message, period), period)}
  if cluster.overlap:
    found = {"dasgd": Cell(1.0, delays.smallest_delay(message, step))} | found
  return found


def _between(job: Job, land: Islands, size: Size, step: float, share: float) -> dict[str, Cell]:
  inside = synchronous.seconds(job, land.inside, land.members, size.examples, micro=size.micro)
  quick = streaming(
    inside, land.message_seconds, job.params_bytes, period=STREAMING, fragments=FRAGMENTS, overlap=land.inside.overlap
  )
  found = {"streaming_diloco": Cell(step / quick.seconds, quick.delay)}
  if land.members > 1:
    message = land.message_seconds(job.params_bytes)
    period = delays.smallest_period(message, inside, share=share)
    found = {"hierarchical": Cell(step / averaged(inside, message, period), period)} | found
  return found
