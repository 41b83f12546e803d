"""The planner: choose examples, workers, servers, delay and period for a job on a cluster, with reasons and limits.

Follows the guidelines of Zou et al. 2017, arXiv 1709.06622 (memory and convolutions, lemmas on workers and servers) and
the hiding condition of DaSGD, arXiv 2006.00441. The choice of examples per worker also takes the exchange into account.

Among the algorithms that are nearly the fastest, the planner recommends the one closest to SGD: exact algorithms first,
then gradients in fewer bits, messages delayed by a few steps, averages between islands (sites or nodes), long periods.
"""

import math
import textwrap
from collections.abc import Mapping, Sequence
from functools import cache, partial
from types import MappingProxyType
from typing import NamedTuple

from ddl.errors import OptionError
from ddl.names import pluralize
from ddl.perf import batch_size as batches
from ddl.perf import collectives, families, plan_rows, scaling
from ddl.perf.batch_size import BatchSize, EfficiencyRow, WorkerBatch, choose_batch, examples_factor, tried_sizes
from ddl.perf.cluster import Cluster
from ddl.perf.device import step_seconds
from ddl.perf.families import FamilySettings, Speed
from ddl.perf.placement import Job
from ddl.perf.plan_rows import PlanRow
from ddl.perf.units import columns, percent, rate_text, seconds_text

SHORTEST = 1e-5  # seconds; no machine launches a step faster
WORTH = 1.5  # least speed-up for which several workers are recommended
NEARLY = 0.9  # share of the best rate at which a simpler algorithm is preferred
ORDER = ("sync_sgd", "fsdp", "hybrid_fsdp", "dasgd", "hierarchical_sgd", "local_sgd", "streaming_diloco", "diloco")
HALF = 0.5  # non-language models use LANGUAGE algorithms only if all others are below this share of the best rate
LANGUAGE = ("streaming_diloco", "diloco")  # published results only for language models
SHOWN = {  # longest period or delay with published results, and their source
  "dasgd": (4, "its authors used a delay of 1 and a period of 4 (arXiv 2006.00441)"),
  "hierarchical_sgd": (16, "periods up to 16 are common (arXiv 1808.07217)"),
  "local_sgd": (16, "periods up to 16 are common (arXiv 1808.07217)"),
  "streaming_diloco": (500, "its published results are for language models with AdamW (arXiv 2501.18512)"),
  "diloco": (500, "its published results are for language models with AdamW (arXiv 2311.08105)"),
}
COMPRESSION = ("int8", "int4", "PowerSGD")  # prefixes of settings
ROUNDED = (
  "The cost of compression is assumed (four passes over the gradients, and 0.2 ms per matrix for PowerSGD). It is "
  "often higher, so measure the gain (arXiv 2103.00543)."
)


WIDTH = 118
CELLS = {  # family -> column title, including the setting in parentheses
  "synchronous": "sync_sgd",
  "in bfloat16": "bfloat16",
  "dasgd": "dasgd, delay",
  "local_sgd": "local_sgd, period",
  "hierarchical": "hierarchical, period",
  "streaming_diloco": "streaming, delay",
}


class PlanRequest(NamedTuple):
  """The requirements of a plan; 0 stands for an automatic choice."""

  batch: int = 0
  workers: int = 0
  servers: int = 0
  efficiency: float = 0.8  # least efficiency of the workers
  exposed: float = 0.05  # largest share of a round spent waiting
  origin: str = "as requested"  # description of where `batch` comes from
  gradients: str = "float32"  # number format in which gradients are sent
  critical: float = 0.0  # the critical batch size in examples; 0: unknown
  micro: int = 1  # number of microbatches, which divide `batch` evenly


class Recommendation(NamedTuple):
  """The recommended algorithm."""

  speed: Speed
  lines: tuple[str, ...]  # sentences, the recommendation first


class TrainingPlan(NamedTuple):
  """All recommendations, and the predicted rates."""

  rows: tuple[PlanRow, ...]
  settings: FamilySettings
  speeds: tuple[Speed, ...]
  table: tuple[EfficiencyRow, ...]  # efficiencies by examples per worker
  enough: BatchSize | None  # smallest batch with which synchronous SGD waits for at most the share `exposed`
  recommendation: Recommendation


def plan(
  job: Job, cluster: Cluster, request: PlanRequest, overhead: float | None = None,
  configured: tuple[str, scaling.Recorded] | None = None,
) -> TrainingPlan:  # fmt: skip
  """Return all recommendations for a job on a cluster.

  Args:
    request: the requirements.
    overhead: measured R_O of a single worker: seconds of its host per second of computation. None: the fixed part of a
      step follows from the cluster's efficiency curve.
    configured: (name, messages) of an additional algorithm to predict with its configured settings.
  """
  if not 0 < request.efficiency <= 1:
    raise OptionError("efficiency", "in (0, 1]", f"{request.efficiency:g}")
  if not 0 < request.exposed < 1:
    raise OptionError("exposed", "in (0, 1)", f"{request.exposed:g}")
  families.message_bytes(job.params_bytes, request.gradients)  # raises ValueError for an unknown format
  shards, critical = _shards(job, cluster, request.workers), request.critical or None
  most_examples = critical or (job.usual.examples if job.usual else math.inf)  # largest step without much loss
  counts = plan_rows.counts(cluster, request.workers, request.efficiency, shards)

  @cache
  def seconds(workers: int, examples: float, micro: int = 1) -> float:
    return families.exact_seconds(job, cluster, workers, examples, micro, shards=shards, gradients=request.gradients)

  part = request.batch // request.micro

  def fitted(workers: int) -> Job:
    if shards == 1:
      return job
    pieces = families.shardings(cluster.network, workers, shards)
    return job._replace(memory=families.sharded_memory(job, min(pieces.values()), cluster.device.width))

  first = tried_sizes(fitted(request.workers or shards), cluster, part)

  def share(workers: int) -> float:  # efficiency of synchronous SGD with a usual global batch
    if request.batch:
      return request.micro * first.steps[part] / seconds(workers, request.batch, request.micro)
    x = batches.largest_usual(job, first, workers)
    return first.steps[x] / seconds(workers, x) if x * workers <= most_examples else 0.0

  workers = request.workers or plan_rows.most_workers(share, counts)
  if workers == 1 and not request.workers and cluster.workers:  # synchronous SGD is inefficient even on two workers
    workers = cluster.workers
  sized = fitted(workers)
  sizes = tried_sizes(sized, cluster, part)

  exact = partial(seconds, workers)
  enough = batches.threshold(sized, sizes, exact, 1 - request.exposed, accumulate=shards == 1)
  size, rule = BatchSize(request.batch, request.micro), request.origin
  if not request.batch:
    size, rule = batches.choose_size(sized, sizes, workers, enough, exact, critical)
  batch = choose_batch(sized, cluster, *size)
  settings, exchange_rows = _settings(sized, cluster, request, batch, workers, shards)
  speeds = families.families(sized, cluster, settings, request.exposed)
  small = None
  if batch.examples > sizes.enough and not request.batch:
    fewer = _settings(sized, cluster, request, choose_batch(sized, cluster, sizes.enough), workers, shards)[0]
    small = fewer, families.families(sized, cluster, fewer, request.exposed)
  whole = workers * batch.examples
  most = min(whole, sizes.largest)  # a single worker computes all examples in microbatches of this size
  single = whole / most * step_seconds(job.step, most, cluster.device, cluster.efficiency) if shards == 1 else math.inf
  recommendation = recommend(
    sized, settings, speeds, enough, share=request.exposed, single=single, critical=critical, small=small
  )
  table = batches.efficiency_table(
    sized, cluster, workers, batches.shown_sizes(sized, sizes, size, enough), exact,
    lambda s: s.micro * sizes.steps[s.examples // s.micro],
    share=request.exposed, sharded=shards > 1, critical=critical,
  )  # fmt: skip
  if configured:
    speeds = (*speeds, _configured_speed(job, cluster, settings, *configured))
  rows = [*plan_rows.one_worker(sized, cluster, batch, rule)]
  if shards > 1:
    why = f"the parameters and their states do not fit in one worker's memory, but fit in that of {shards} workers"
    limit = f"memory: at least {shards} of the {workers} workers must share a copy"
    rows.append(PlanRow("shards", str(shards), why, limit))
  rows += [*plan_rows.all_workers(sized, cluster, batch, workers, counts, seconds, overhead), *exchange_rows]
  return TrainingPlan(tuple(rows), settings, speeds, tuple(table), enough, recommendation)


def _settings(
  job: Job, cluster: Cluster, request: PlanRequest, batch: WorkerBatch, workers: int, shards: int
) -> tuple[FamilySettings, list[PlanRow]]:
  """Return the settings (servers, delay, periods) for a batch, and the plan's rows about them."""
  step, share, network = batch.step, request.exposed, cluster.network
  visit, served, servers, serving = plan_rows.choose_servers(job, cluster, workers, step, requested=request.servers)
  message = collectives.all_reduce(job.params_bytes, workers, network)
  delay, periods, waits = plan_rows.choose_periods(message, visit, served, step, share=share, overlap=cluster.overlap)
  settings = FamilySettings(
    job.params_bytes, batch.examples, step, workers, servers, delay, *periods,
    micro=batch.micro, shards=shards, gradients=request.gradients,
  )  # fmt: skip
  if workers == 1:
    return settings, [PlanRow("exchange", "none", "a single worker exchanges nothing", "no servers, delay or periods")]
  rows = [plan_rows.all_reduce(families.message_bytes(job.params_bytes, request.gradients), workers, network)]
  if job.table:
    weighted = tuple(layer for layer in job.table if layer.params and layer.macs)
    rows.append(plan_rows.messages([4.0 * layer.params for layer in weighted], workers, network))
    rows.append(plan_rows.groups(weighted, batch.examples * workers, workers, network.between.duplex))
  return settings, [*rows, *([serving, *waits] if shards == 1 else [])]


def _shards(job: Job, cluster: Cluster, workers: int) -> int:
  """Return the smallest number of workers, a power of two, that can hold one copy of the parameters together.

  Each of them must also have memory for a step on one example.
  """
  limit = cluster.device.memory
  if job.split > 1:
    return job.split
  if job.exact or job.memory.total(1) <= limit or workers == 1:
    return 1
  most = workers or cluster.workers or plan_rows.TRIED
  counts = (2**i for i in range(1, most.bit_length()))
  fitting = (n for n in counts if families.sharded_memory(job, n, cluster.device.width).total(1) <= limit)
  return next(fitting, 1)  # if none fits, a later error for 1 names the bytes


def _configured_speed(
  job: Job, cluster: Cluster, settings: FamilySettings, name: str, recorded: scaling.Recorded
) -> Speed:
  """Predict the speed of an algorithm from its messages with the model of `scaling`."""
  work = scaling.work_of(job.step, job.params_bytes)._replace(micro=settings.micro)
  transport = scaling.Transport(settings.servers)
  (point,) = scaling.curve(
    recorded, work, cluster, [settings.workers], batch=settings.examples, weak=True, transport=transport
  )
  return families.speed(settings, name, "as configured", point.seconds)


def pick(speeds: Sequence[Speed], language: bool = True) -> Speed:
  """Return the first algorithm in ORDER that is nearly the fastest and has published results.

  A rate of at least NEARLY times the best one is nearly the fastest. Published results exist for the settings in SHOWN.

  If the job is not a language model, algorithms of LANGUAGE are considered only if all others are slower than HALF of
  the best rate.
  """
  known = [x for x in speeds if x.algorithm in ORDER and x.steps <= SHOWN.get(x.algorithm, (0, ""))[0]]
  others = [x for x in known if x.algorithm not in LANGUAGE]
  best = max(x.rate for x in known)
  if not language and others and max(x.rate for x in others) >= HALF * best:
    known, best = others, max(x.rate for x in others)
  return min((x for x in known if x.rate >= NEARLY * best), key=lambda x: ORDER.index(x.algorithm))


def recommend(
  job: Job, settings: FamilySettings, speeds: Sequence[Speed], enough: BatchSize | None, *, share: float, single: float,
  critical: float | None, small: tuple[FamilySettings, Sequence[Speed]] | None,
) -> Recommendation:  # fmt: skip
  """Recommend an algorithm; state how many examples synchronous SGD needs, and how the batch slows convergence.

  Args:
    settings: the settings of all predictions.
    speeds: predictions at `settings`.
    enough: the smallest batch size with which synchronous SGD waits for at most `share` of a step.
    share: largest share of a step spent waiting.
    single: seconds that one worker takes for the examples of all workers.
    critical: the critical batch size in examples; None: unknown.
    small: settings and predictions with fewer examples, if fewer suffice to use the device well.
  """
  best = pick(speeds, job.language)
  several = f"With several workers: {_described(best, settings)}"
  if settings.workers > 1 and settings.step < SHORTEST:
    first = f"Recommended: one worker. A step of {seconds_text(settings.step)} is too short to be worth an exchange."
    return Recommendation(best, (first, several, *_note(best)))
  lines = [f"Recommended: {_described(best, settings)}"]
  if settings.workers == 1:
    return Recommendation(best, (lines[0],))
  if single < WORTH * best.seconds:
    first = (
      f"Recommended: one worker. It takes {seconds_text(single)} for all {settings.workers * settings.examples:,} "
      f"examples of a step; {settings.workers} workers take {seconds_text(best.seconds)}, which is too small a gain."
    )
    lines = [first, several]
  lines += [*_note(best), _enough(job, enough, settings, share), _cost(job, settings, critical)]
  if small:
    other = pick(small[1], job.language)
    if other.algorithm != best.algorithm or (other.setting != best.setting and best.algorithm not in SHOWN):
      lines += [f"With fewer examples: {_described(other, small[0])}", *_note(other)]
  return Recommendation(best, tuple(lines))


def _note(best: Speed) -> list[str]:
  """Return a note on published results if the algorithm is not SGD, or on assumptions if gradients are compressed."""
  if best.algorithm in SHOWN:
    return [f"{best.algorithm} is not equivalent to SGD: {SHOWN[best.algorithm][1]}."]
  return [ROUNDED] if best.setting.startswith(COMPRESSION) else []


def _described(best: Speed, settings: FamilySettings) -> str:
  s = settings
  micro = f" in {s.micro} microbatches" if s.micro > 1 else ""
  return (
    f"{best.algorithm} ({best.setting}) with {pluralize(s.examples, 'example')} per worker{micro} "
    f"({s.examples * s.workers:,} per step): {percent(best.efficiency)} efficiency on "
    f"{pluralize(s.workers, 'worker')}, {rate_text(best.rate)} examples/s."
  )


def _enough(job: Job, enough: BatchSize | None, settings: FamilySettings, share: float) -> str:
  efficiency = percent(1 - share)
  if enough is None:
    return f"Synchronous SGD does not reach {efficiency} efficiency with any number of examples that fits in memory."
  whole = f"{enough.examples * settings.workers:,} per step"
  if enough.micro == 1:
    examples = f"{pluralize(enough.examples, 'example')} per worker ({whole})"
    return f"With at least {examples}, synchronous SGD has at least {efficiency} efficiency."
  part = enough.examples // enough.micro
  unusual = ", more than a usual batch" if job.usual and enough.examples * settings.workers > job.usual.examples else ""
  return (
    f"With gradients accumulated over {enough.micro} microbatches of {part} ({enough.examples:,} examples per worker, "
    f"{whole}{unusual}), synchronous SGD has {efficiency} efficiency."
  )


def _cost(job: Job, settings: FamilySettings, critical: float | None) -> str:
  whole = settings.workers * settings.examples
  if critical:
    more = examples_factor(whole, critical)
    return (
      f"The critical batch is {critical:,.0f} examples, estimated from the run's gradient noise scale. With {whole:,} "
      f"examples per step, reaching a loss takes 1 + B / B_c = {more:.3g} times the examples that very small batches "
      "need (arXiv 1812.06162)."
    )
  known = f" {job.usual.source[0].upper()}{job.usual.source[1:]}." if job.usual else ""
  return (
    f"It is unknown how much {whole:,} examples per step slow convergence.{known} To estimate it, train with "
    "--config.noise_batches=16 and pass the run's folder with --run=FOLDER."
  )


def text(
  job: Job, name: str, cluster: Cluster, result: TrainingPlan, sends: str = "",
  ends: Mapping[str, TrainingPlan] = MappingProxyType({}),
) -> str:  # fmt: skip
  """Format the plan: the recommendation first, then the tables, then the formulas and the limits.

  Args:
    name: the cluster's name.
    result: the plan.
    sends: a sentence about the messages of the config's algorithm.
    ends: description of the device's efficiency -> plan with the batch, workers and servers of `result`, for both ends
      of an efficiency range.
  """
  lines = [f"{job.title} on {cluster.title}", *textwrap.wrap(f"source: {cluster.source}", WIDTH)]
  if result.settings.step < SHORTEST:
    warning = (
      f"Warning: a step of {seconds_text(result.settings.step)} is shorter than its launch on a real machine, which "
      "takes at least tens of microseconds. The cluster's description has no such time (device.start), so the "
      "efficiencies below are too low, and the delays and periods too long."
    )
    lines += ["", *textwrap.wrap(warning, WIDTH)]
  lines.append("")
  convergence = "These predictions do not include convergence: "
  convergence += f"python run.py compare --config=FILE --cluster={name} plots accuracy against seconds."
  for sentence in (*result.recommendation.lines, *map(_end, ends, ends.values()), sends, convergence):
    lines += textwrap.wrap(sentence, WIDTH, subsequent_indent="  ")
  lines += ["", *_sizes(result), "", *_speeds(result), "", "reasons and limits"]
  for row in result.rows:
    lines.append(f"{row.quantity}: {row.value}")
    for sentence in (row.why, f"limit: {row.limit}"):
      lines += textwrap.wrap(sentence, WIDTH, initial_indent="    ", subsequent_indent="    ")
  return "\n".join(lines)


def _end(shares: str, result: TrainingPlan) -> str:
  s, exact = result.settings, result.speeds[0]
  return (
    f"With {shares}, a step on {pluralize(s.examples, 'example')} takes {seconds_text(s.step)}, {exact.algorithm} has "
    f"{percent(exact.efficiency)} efficiency, and {result.recommendation.speed.algorithm} is recommended."
  )


def _sizes(result: TrainingPlan) -> list[str]:
  """Format the table of efficiencies by examples per worker."""
  names = list(result.table[0].cells)
  relative = result.table[0].relative is not None
  head = ["examples/worker", "step", *(CELLS[name] for name in names), *["time to a loss"] * relative]
  return columns([head, *(_row(row, names) for row in result.table)], left=1)


def _row(row: EfficiencyRow, names: Sequence[str]) -> list[str]:
  examples, micro = row.size
  cells = [f"{examples:,}" + (f" ({micro} x {examples // micro})" if micro > 1 else ""), seconds_text(row.step)]
  for efficiency, setting in (row.cells[name] for name in names):
    cells.append(percent(efficiency) + ("" if setting is None else f" ({setting})"))
  return [*cells, *([f"{row.relative:.3g}x"] if row.relative is not None else [])]


def _speeds(result: TrainingPlan) -> list[str]:
  """Format the table of predicted speeds of all families."""
  head = [f"with {pluralize(result.settings.examples, 'example')} each", "", "step", "efficiency", "examples/s"]
  rows = [
    [speed.algorithm, speed.setting, seconds_text(speed.seconds), percent(speed.efficiency), rate_text(speed.rate)]
    for speed in result.speeds
  ]
  return columns([head, *rows], left=2)
