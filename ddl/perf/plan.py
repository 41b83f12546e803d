"""Plan a job on a cluster: choose examples, workers, delay and period, with reasons and limits.

The planner follows Zou et al. 2017, arXiv 1709.06622 (memory and convolutions), and the
hiding condition of DaSGD, arXiv 2006.00441. The choice of examples per worker also takes the exchange into account.

The planner recommends synchronous SGD if it is not much slower than the fastest algorithm. Otherwise, it recommends the
algorithm closest to SGD among those that are nearly the fastest. In order of increasing distance from SGD, these are
gradients in fewer bits, messages delayed by a few steps, averages between islands (sites or nodes), and long periods.
"""

import math
from collections.abc import Sequence
from functools import cache, partial
from typing import NamedTuple

from ddl.errors import OptionError
from ddl.perf import batch_size as batches
from ddl.perf import bounds, collectives, families, plan_rows, scaling
from ddl.perf.batch_size import BatchSize, tried_sizes
from ddl.perf.cluster import Cluster
from ddl.perf.device import step_seconds
from ddl.perf.families import FamilySettings, Speed
from ddl.perf.layers import StepMemory
from ddl.perf.patterns import Pattern
from ddl.perf.placement import TOLERANCE, Job
from ddl.perf.plan_rows import PlanRow

SHORTEST = 1e-5  # seconds of the shortest step that a machine can launch
WORTH = 1.5  # least speed-up for which several workers are recommended
NEARLY = 0.9  # share of the best rate at which a simpler algorithm is preferred
RANK = {  # algorithm -> distance from SGD; algorithms of equal rank are preferred in the order of `families`
  "sync_sgd": 0, "fsdp": 1, "hybrid_fsdp": 1, "tensor_zero1": 2, "dasgd": 3, "hierarchical_sgd": 4, "local_sgd": 5,
  "streaming_diloco": 6, "diloco": 7,
}  # fmt: skip
HALF = 0.5  # share of the best rate at which a class of algorithms closer to SGD is preferred (see `pick`)
FULL = ("float32", "bfloat16", "float16")  # number formats in which gradients lose little
LANGUAGE = ("streaming_diloco", "diloco")  # have published results only for language models
IMAGES = ("dasgd",)  # has published results only for images
SHOWN = {  # longest period or delay with published results, and their source
  "dasgd": (4, "its authors used a delay of 1 and a period of 4 (arXiv 2006.00441)"),
  "hierarchical_sgd": (16, "periods up to 16 are common (arXiv 1808.07217)"),
  "local_sgd": (16, "periods up to 16 are common (arXiv 1808.07217)"),
  "streaming_diloco": (500, "its published results are for language models with AdamW (arXiv 2501.18512)"),
  "diloco": (500, "its published results are for language models with AdamW (arXiv 2311.08105)"),
}
BANDWIDTHS = (0.1, 10.0)  # the advice is also computed with the main link's bandwidth times these factors


class PlanRequest(NamedTuple):
  """The requirements of a plan; 0 stands for an automatic choice."""

  batch: int = 0
  workers: int = 0
  efficiency: float = 0.8  # least efficiency of the workers
  exposed: float = 0.05  # largest share of a round spent waiting
  origin: str = "as requested"  # description of where `batch` comes from
  gradients: str = "float32"  # number format in which gradients are sent
  critical: float = 0.0  # the critical batch size in examples; 0: unknown
  micro: int = 1  # least number of microbatches, which must divide `batch` evenly


class SizeRow(NamedTuple):
  """The advice for one batch size."""

  size: BatchSize
  step: float  # seconds of a step without any exchange
  efficiency: float  # of synchronous SGD
  best: Speed  # the recommended algorithm
  relative: float | None = None  # synchronous SGD's seconds to a given loss / the smallest of all rows, if B_c is known


class TrainingPlan(NamedTuple):
  """All recommendations, and the predicted speeds."""

  rows: tuple[PlanRow, ...]
  settings: FamilySettings
  speeds: tuple[Speed, ...]
  table: tuple[SizeRow, ...]  # by examples per worker
  enough: BatchSize | None  # smallest batch with which synchronous SGD waits for at most the share `exposed`
  best: Speed  # the recommendation for several workers
  rule: str  # description of the rule that chose the batch; "": the smallest one that uses the device well
  single: Speed | None  # one worker with the examples of all workers, if this is recommended instead
  bandwidths: tuple[tuple[float, Speed], ...]  # (factor of BANDWIDTHS, recommendation), where it differs from `best`
  memory: StepMemory  # of a worker's step

  @property
  def advised(self) -> Speed:
    """The recommendation: one worker, or else the best algorithm for several."""
    return self.single or self.best

  @property
  def workers(self) -> int:
    """The number of workers of the recommendation."""
    return 1 if self.single else self.settings.workers


def plan(
  job: Job, cluster: Cluster, request: PlanRequest,
  configured: tuple[str, scaling.Recorded] | None = None,
) -> TrainingPlan:  # fmt: skip
  """Return all recommendations for a job on a cluster.

  Args:
    request: the requirements.
    configured: (name, number of workers -> messages) of an additional algorithm to predict as configured.
  """
  if not 0 < request.efficiency <= 1:
    raise OptionError("efficiency", "in (0, 1]", f"{request.efficiency:g}")
  if not 0 < request.exposed < 1:
    raise OptionError("exposed", "in (0, 1)", f"{request.exposed:g}")
  shards, critical = _shards(job, cluster, request.workers), request.critical or None
  most_examples = critical or (job.usual.examples if job.usual else math.inf)  # largest global batch of synchronous SGD
  counts = plan_rows.counts(cluster, request.workers, shards)

  @cache
  def seconds(workers: int, examples: float, micro: int = 1) -> float:
    return families.exact_seconds(job, cluster, workers, examples, micro, shards=shards, gradients=request.gradients)

  def fitted(workers: int) -> Job:
    if shards == 1:
      return job
    pieces = families.shardings(cluster.network, workers, shards)
    return job._replace(memory=families.sharded_memory(job, min(n for _, n in pieces), cluster.device.width))

  def alone(size: BatchSize) -> float:  # seconds of a worker's step without any exchange
    return size.micro * step_seconds(job.step, size.examples / size.micro, cluster.device, cluster.efficiency)

  first = tried_sizes(fitted(request.workers or shards), cluster, request.batch, request.micro)

  def share(workers: int) -> float:  # efficiency of synchronous SGD with a usual global batch
    size = first.requested if request.batch else batches.usual_size(job, first, workers, critical)
    large = size.examples >= first.enough and size.examples * workers <= most_examples
    return alone(size) / seconds(workers, *size) if request.batch or large else 0.0

  workers = request.workers or plan_rows.most_workers(share, counts, request.efficiency)
  if workers == 1 and not request.workers and cluster.workers:  # synchronous SGD is inefficient on two workers
    workers = cluster.workers
  sized = fitted(workers)
  sizes = tried_sizes(sized, cluster, request.batch, request.micro)

  exact = partial(seconds, workers)
  enough = batches.threshold(sized, sizes, exact, 1 - request.exposed, accumulate=shards == 1)
  size, rule = sizes.requested, request.origin
  if not request.batch:
    size, rule = batches.choose_size(sized, sizes, workers, enough, exact, critical)
  usual = math.inf if critical or request.batch or not job.usual else (1 + TOLERANCE) * job.usual.examples

  def advise(size: BatchSize, cluster: Cluster = cluster) -> tuple[FamilySettings, tuple[Speed, ...]]:
    settings = _settings(sized, cluster, request, size, alone(size), workers, shards)
    return settings, families.families(sized, cluster, settings, request.exposed)

  settings, speeds = advise(size)
  best = pick(speeds, job.language, usual)
  whole = batches.accumulated(workers * size.examples, sizes.largest)
  single = families.speed(
    settings._replace(workers=1, examples=whole.examples, micro=whole.micro, step=alone(whole)),
    "sync_sgd",
    "one worker",
    alone(whole),
  )
  small = workers > 1 == shards and (settings.step < SHORTEST or WORTH * single.rate > best.rate)
  table = []
  for other in batches.shown_sizes(sized, sizes, size, enough):
    took = exact(*other)
    relative = batches.seconds_factor(workers * other.examples, critical, took) if critical else None
    table.append(SizeRow(other, alone(other), alone(other) / took, pick(advise(other)[1], job.language), relative))
  if critical:
    least = min(row.relative or math.inf for row in table)
    table = [row._replace(relative=(row.relative or math.inf) / least) for row in table]
  bandwidths = []
  for factor in BANDWIDTHS if workers > 1 else ():
    changed = cluster.with_bandwidth(workers, factor * cluster.network.main_link(workers).bandwidth)
    other_best = pick(advise(size, changed)[1], job.language, usual)
    if other_best.algorithm != best.algorithm or (best.algorithm == "sync_sgd" and other_best.setting != best.setting):
      bandwidths.append((factor, other_best))
  if configured:
    speeds = (*speeds, _configured_speed(job, cluster, settings, *configured))
  final = tried_sizes(sized, cluster, *size)
  rows = [*plan_rows.one_worker(sized, cluster, final, rule)]
  rows.append(plan_rows.all_workers(sized, cluster, final, workers, counts, request.efficiency, seconds))
  if workers > 1:
    nbytes = families.message_bytes(job.params_bytes, request.gradients)
    rows.append(plan_rows.all_reduce(nbytes, workers, cluster.network))
  return TrainingPlan(
    tuple(rows),
    settings,
    speeds,
    tuple(table),
    enough,
    best,
    rule,
    single if small else None,
    tuple(bandwidths),
    sized.memory,
  )


def _settings(
  job: Job, cluster: Cluster, request: PlanRequest, size: BatchSize, step: float, workers: int, shards: int
) -> FamilySettings:
  """Return the settings for a batch: a delay that hides an exchange, and periods that expose at most a share of it."""
  message = collectives.all_reduce(job.params_bytes, workers, cluster.network)
  delay = bounds.smallest_delay(message, step) if cluster.overlap else 0
  periods = (bounds.smallest_period(message, step, share=request.exposed, delay=steps) for steps in (delay, 0))
  return FamilySettings(
    job.params_bytes, size.examples, step, workers, delay, *periods,
    micro=size.micro, shards=shards, gradients=request.gradients,
  )  # fmt: skip


def _shards(job: Job, cluster: Cluster, workers: int) -> int:
  """Return the smallest number of workers, a power of two, that can hold one copy of the parameters together.

  Each of them must also have memory for a step on one example.
  """
  limit = cluster.device.usable
  if job.split > 1:
    return job.split
  if job.memory.total(1) <= limit or workers == 1:
    return 1
  most = workers or cluster.workers or plan_rows.TRIED
  counts = (2**i for i in range(1, most.bit_length()))
  fitting = (n for n in counts if families.sharded_memory(job, n, cluster.device.width).total(1) <= limit)
  return next(fitting, 1)  # if none fits, a later error states the bytes that one worker needs


def _configured_speed(
  job: Job, cluster: Cluster, settings: FamilySettings, name: str, recorded: scaling.Recorded
) -> Speed:
  """Predict the speed of an algorithm from its messages with the model of `scaling`."""
  work = job.work._replace(micro=settings.micro)
  pattern = recorded(settings.workers) if settings.workers > 1 else Pattern()
  transport = scaling.Transport(overlap=cluster.overlap)
  run = scaling.Scenario(pattern, work, cluster, settings.workers, settings.examples, transport)
  return families.speed(settings, name, "as configured", scaling.seconds_of(run))


def pick(speeds: Sequence[Speed], language: bool = True, most: float = math.inf) -> Speed:
  """Return the algorithm with the lowest RANK that is nearly the fastest of its class and has published results.

  An algorithm is nearly the fastest if its rate is at least NEARLY times the best rate of the class. Delays and periods
  must not exceed those in SHOWN. Algorithms with more than `most` examples per step are considered only if all have
  more. For language models, PowerSGD ranks last and is no yardstick for others, because its cost is only assumed.

  The classes are nested: (1) synchronous algorithms with gradients of at least 16 bits; (2) also algorithms that
  compress gradients further or are not equivalent to SGD; (3) also those without published results for the job's kind
  of data, which class 2 omits (LANGUAGE, IMAGES). Class 2 is used if it has at least HALF of the best rate of class 3,
  and class 1 if it has at least HALF of the best rate of the class that it replaces.
  """
  known = [x for x in speeds if x.algorithm in RANK and x.steps <= SHOWN.get(x.algorithm, (0, ""))[0]]
  known = [x for x in known if x.batch <= most] or known
  exact = [x for x in known if x.algorithm not in SHOWN and (x.setting.startswith(FULL) or x.algorithm != "sync_sgd")]
  others = [x for x in known if x.algorithm not in (IMAGES if language else LANGUAGE)]

  def rank(x: Speed) -> int:
    return len(RANK) if language and x.setting.startswith("PowerSGD") else RANK[x.algorithm]

  def fastest(group: Sequence[Speed]) -> float:
    return max((x.rate for x in group if rank(x) < len(RANK)), default=0.0)

  allowed = others if fastest(others) >= HALF * fastest(known) else known
  allowed = exact if fastest(exact) >= HALF * fastest(allowed) else allowed
  best = max(x.rate for x in allowed)
  return min((x for x in allowed if x.rate >= NEARLY * best), key=rank)
