"""Examples per worker, under the memory of its device: the first step of a plan.

Zou et al. 2017, arXiv 1709.06622, step 1: a step's memory bounds the mini-batch X; for each X that fits the 0-1 program
finds the best convolution algorithms in the memory left. The effect of X on convergence is not in the model, so the
smallest X with nearly the best examples per second is chosen. Those are of `step_seconds`, as everywhere. On a device
whose algorithms were measured the step has the fastest of each layer, as the program finds them if memory allows; on
others the program's savings are separate, as the quality of a kernel's implementation is not in its models.
"""

from collections.abc import Callable
from typing import NamedTuple

from ddl.perf import units
from ddl.perf.devices.model import Shares, measured_costs
from ddl.perf.hardware import Cluster
from ddl.perf.hardware.device import Step, step_parts, step_seconds
from ddl.perf.planning.bounds import Usual
from ddl.perf.step.convolution import Choice, best_batch, choose, is_convolution, modelled, other_seconds
from ddl.perf.step.layers import Table
from ddl.perf.step.memory import StepMemory, largest_batch
from ddl.perf.units import bytes_text

ENOUGH = 0.9  # of the best rate
LARGEST = 2**14  # examples; no more are tried


class Job(NamedTuple):
  """A training job; all per worker."""

  title: str
  params_bytes: float
  step: Step  # by layers
  memory: StepMemory  # counted from layers
  table: Table = ()  # the layers, where there is a table; its convolutions enter the 0-1 program
  kind: str = ""  # of network, as in `lookup`, where there is no table
  exact: Callable[[int], float] | None = None  # X of a microbatch -> bytes of the compiled step, where there is one
  least: int = 32  # examples from which on X is chosen
  most: int | None = None  # examples that each worker has
  data: int | None = None  # examples of all workers
  shares: Shares | None = None  # of the device's rates, with which `step` was made
  split: int = 1  # devices over which the parameters' states are split
  recomputed: bool = False  # activations
  states: str = ""  # of the parameters, in words
  source: str = ""  # of the step's efficiency, in words
  language: bool = False  # whether it is a language model's
  usual: Usual | None = None  # a global batch that jobs of the kind are known to bear

  @property
  def flop_per_example(self) -> float:
    """FLOP per example of a training step."""
    return sum(part.flop for part in step_parts(self.step))


class Program(NamedTuple):
  """Result of the 0-1 program over convolution algorithms at X."""

  direct: float  # seconds of all convolutions as the step counts them
  shared: Choice  # one workspace for all layers
  separate: Choice  # each layer with a workspace of its own
  step: float  # seconds of the step with `shared`
  best: int  # the X of those tried with the best rate under the program


class Batch(NamedTuple):
  """A mini-batch X and its reasons."""

  examples: int
  largest: int  # that fits
  needed: float  # bytes at X, counted from layers
  exact: float | None  # bytes at X of the compiled step
  step: float  # seconds of a step on X
  best: int  # with the best rate of those tried
  best_rate: float  # examples per second of that
  program: Program | None  # None without convolutions
  micro: int = 1  # microbatches: needed, exact and program are of one

  @property
  def rate(self) -> float:
    """Examples per second of one worker."""
    return self.examples / self.step


class Sizes(NamedTuple):
  """Mini-batches that are tried, with the seconds of their steps."""

  largest: int  # that fits
  steps: dict[int, float]  # X -> seconds
  best: int  # of them, with the most examples per second
  enough: int  # the smallest from `job.least` on with ENOUGH of that; the largest where there is none


def tried_sizes(job: Job, cluster: Cluster, given: int = 0) -> Sizes:
  """Powers of two up to the largest X that fits, that one, and `given` or `job.least`.

  ValueError if not even one example fits, or the given X does not, with the largest that does.
  """
  fits = largest_fitting(job, cluster.device.memory)
  largest = min(fits, job.most or fits)
  if units.count("examples per worker", given, 0) > largest:
    room = (
      f"there are {largest} for each worker"
      if largest == job.most
      else f"{largest} is the most that fits into the device's {bytes_text(cluster.device.memory)}"
    )
    raise ValueError(f"{given} examples per worker are too many: {room}")
  last = min(largest, max(LARGEST, job.least, given))
  tried = sorted({*(2**i for i in range(last.bit_length())), min(given or job.least, last), last})
  steps = {x: step_seconds(job.step, x, cluster.device, cluster.efficiency) for x in tried}
  most = max(x / steps[x] for x in tried)
  best = next(x for x in tried if x / steps[x] >= most * (1 - 1e-9))
  enough = (x for x in tried if x >= job.least and x / steps[x] >= ENOUGH * best / steps[best])
  return Sizes(largest, steps, best, min(enough, default=last))


def choose_batch(job: Job, cluster: Cluster, given: int = 0, micro: int = 1) -> Batch:
  """Return the smallest power of two from `job.least` on with ENOUGH of the best rate that fits; or the given X.

  Args:
    given: X; 0: chosen.
    micro: number of microbatches, which share the given X evenly.

  Raises:
    ValueError: as `tried_sizes`, for a microbatch.
  """
  sizes = tried_sizes(job, cluster, given // micro)
  chosen = given // micro or sizes.enough
  return Batch(
    examples=chosen * micro,
    largest=sizes.largest,
    needed=job.memory.total(chosen),
    exact=job.exact(chosen) if job.exact else None,
    step=micro * sizes.steps[chosen],
    best=sizes.best,
    best_rate=sizes.best / sizes.steps[sizes.best],
    program=_program(job, cluster, list(sizes.steps), chosen) if any(map(is_convolution, job.table)) else None,
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
  each = max((more - one) / (some - 1), 1.0)
  found = largest_batch(StepMemory(each, one - each), limit)
  while 1 < found <= LARGEST and job.exact(found) > limit:
    found = found * 9 // 10
  return found


def _program(job: Job, cluster: Cluster, tried: list[int], chosen: int) -> Program:
  device, efficiency = cluster.device, cluster.efficiency
  if job.shares is None or job.shares.whole:
    costs, other = modelled(job.table, device, efficiency), other_seconds(job.table, device, efficiency)
  else:
    costs, other = measured_costs(job.table, device, job.shares)
  found = best_batch(job.memory, device.memory, tried, costs, other_seconds=other, shared=True)
  (there,) = (x for x in found if x.examples == chosen)
  here = costs(chosen)
  return Program(
    direct=float(here.seconds[:, here.algorithms.index("direct")].sum()),
    shared=there.choice,
    separate=choose(here, device.memory - job.memory.total(chosen)),
    step=chosen / there.throughput,
    best=found[0].examples,
  )
