"""The planner's first question: how many examples per worker, under the memory of its device.

Zou et al. 2017, arXiv 1709.06622, step 1: what a step holds bounds the mini-batch X; for each X that fits the 0-1
program finds the best convolution algorithms in the memory left. What X does to convergence the model can't know, so
it takes the smallest X whose throughput is nearly the best.
"""

from collections.abc import Callable
from typing import NamedTuple

from ddl.perf.clusters import Cluster
from ddl.perf.compute import step_seconds
from ddl.perf.convolution import NOTHING, BatchChoice, DoesNotFit, best_batch
from ddl.perf.convolution_costs import modelled, other_seconds
from ddl.perf.layers import Table
from ddl.perf.memory import StepMemory, largest_batch
from ddl.perf.units import bytes_text

ENOUGH = 0.9  # of the best throughput
LARGEST = 2**14  # examples; no more are tried


class Job(NamedTuple):
  """What is trained; all per worker."""

  title: str
  params_bytes: float
  flop_per_example: float  # of a training step
  memory: StepMemory  # counted from layers
  table: Table = ()  # the layers, where there is a table; its convolutions enter the 0-1 program
  exact: Callable[[int], float] | None = None  # X -> bytes of the compiled step, where there is one
  least: int = 32  # examples from which on X is chosen
  most: int | None = None  # examples that there are


class Batch(NamedTuple):
  """A mini-batch X and its reasons."""

  examples: int
  largest: int  # that fits
  needed: float  # bytes at X, counted from layers
  exact: float | None  # bytes at X of the compiled step
  best: int  # with the best throughput of those tried
  share: float  # throughput at X over that
  separate: BatchChoice | None  # convolution algorithms at X, each layer with a workspace of its own
  shared: BatchChoice | None  # all with one workspace; None without convolutions
  plain: float  # seconds of all convolutions by the first algorithm (gemm)


def choose_batch(job: Job, cluster: Cluster, asked: int = 0) -> Batch:
  """The smallest power of two from `job.least` on with 90 % of the best throughput; or the X asked for.

  Raises:
    ValueError: if not even one example fits, or not the X asked for; it says what would.
  """
  fits = _largest(job, cluster.device.memory)
  largest = min(fits, job.most or fits)
  if asked < 0 or asked > largest:
    wrong = "can't be" if asked < 0 else "are too many"
    raise ValueError(f"{asked} examples per worker {wrong}: {_room(job, cluster, largest)}")
  last = min(largest, max(LARGEST, job.least, asked))
  tried = sorted({*(2**i for i in range(last.bit_length())), min(asked or job.least, last), last})
  found = _throughput(job, cluster, tried, shared=True)
  if asked and asked not in found:
    raise ValueError(f"{asked} examples per worker leave no memory to convolutions; {max(found)} do")
  best = max(found, key=lambda x: found[x].throughput)
  enough = (x for x in found if x >= job.least and found[x].throughput >= ENOUGH * found[best].throughput)
  chosen = asked or min(enough, default=max(found))
  has_choice = bool(found[chosen].choice.algorithms)
  return Batch(
    examples=chosen,
    largest=largest,
    needed=job.memory.total(chosen),
    exact=job.exact(chosen) if job.exact else None,
    best=best,
    share=found[chosen].throughput / found[best].throughput,
    separate=_separate(job, cluster, chosen) if has_choice else None,
    shared=found[chosen] if has_choice else None,
    plain=_plain(job, cluster, chosen) if has_choice else 0.0,
  )


def _room(job: Job, cluster: Cluster, largest: int) -> str:
  if largest == job.most:
    return f"there are {largest}"
  return f"{largest} is the most that fits into the device's {bytes_text(cluster.device.memory)}"


def _largest(job: Job, limit: float) -> int:
  """That fits, by the compiled program where there is one: each example adds as many bytes as another, or nearly so."""
  if not job.exact:
    return largest_batch(job.memory, limit)
  some = max(job.least, 2)
  one, more = job.exact(1), job.exact(some)
  each = max((more - one) / (some - 1), 1.0)
  found = largest_batch(StepMemory(each, one - each, 0.0, 0.0), limit)
  while 1 < found <= LARGEST and job.exact(found) > limit:
    found = found * 9 // 10
  return found


def _throughput(job: Job, cluster: Cluster, tried: list[int], *, shared: bool) -> dict[int, BatchChoice]:
  """Of those that fit: by the convolutions' best algorithms where there is a table, else by the step's efficiency."""
  device, efficiency = cluster.device, cluster.efficiency
  if not job.table:
    return {x: BatchChoice(x, NOTHING, x / step_seconds(job.flop_per_example, x, device, efficiency)) for x in tried}
  costs, other = modelled(job.table, device, efficiency), other_seconds(job.table, device, efficiency)
  found = best_batch(job.memory, device.memory, tried, costs, other_seconds=other, shared=shared)
  return {x.examples: x for x in found}


def _separate(job: Job, cluster: Cluster, examples: int) -> BatchChoice | None:
  try:
    return _throughput(job, cluster, [examples], shared=False)[examples]
  except DoesNotFit:
    return None


def _plain(job: Job, cluster: Cluster, examples: int) -> float:
  return float(modelled(job.table, cluster.device, cluster.efficiency)(examples).seconds[:, 0].sum())
