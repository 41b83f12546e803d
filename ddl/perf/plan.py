"""The planner: examples, workers, servers, delay and period for a job on a cluster, each with its reason and its limit.

After the guidelines of Zou et al. 2017, arXiv 1709.06622 (memory and convolutions, lemmas on workers and servers), and
the hiding condition of DaSGD, arXiv 2006.00441. The examples are chosen with the exchange in sight.

The recommendation is the algorithm that changes SGD least of those that are nearly the fastest: exact ones first, then
gradients in fewer bits, a message that is a few steps old, averages between islands, and periods of hundreds of steps.
"""

import math
import textwrap
from collections.abc import Mapping, Sequence
from functools import cache, partial
from types import MappingProxyType
from typing import NamedTuple

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

SHORTEST = 1e-5  # seconds: no machine starts a step sooner
WORTH = 1.5  # speed-up below which several workers are not
NEARLY = 0.9  # of the most examples per second, for which a simpler algorithm is preferred
ORDER = ("sync_sgd", "fsdp", "hybrid_fsdp", "dasgd", "hierarchical_sgd", "local_sgd", "streaming_diloco", "diloco")
HALF = 0.5
LANGUAGE = ("streaming_diloco", "diloco")  # shown to train language models
SHOWN = {  # steps up to which the algorithm's authors show it to train as well
  "dasgd": (4, "DaSGD's authors took a delay of 1 and a period of 4 (arXiv 2006.00441)"),
  "hierarchical_sgd": (16, "periods up to 16 are common (arXiv 1808.07217)"),
  "local_sgd": (16, "periods up to 16 are common (arXiv 1808.07217)"),
  "streaming_diloco": (500, "shown only for language models, with AdamW (arXiv 2501.18512)"),
  "diloco": (500, "shown only for language models, with AdamW (arXiv 2311.08105)"),
}
COMPRESSION = ("int8", "int4", "PowerSGD")  # first words of settings
ROUNDED = (
  "What compression costs is assumed (four passes over the gradients, of PowerSGD 0.2 ms a matrix too); it often takes "
  "more, so measure its gain (arXiv 2103.00543)."
)


WIDTH = 118
CELLS = {  # of a row: what a column is called, with what is in brackets in it
  "synchronous": "sync_sgd",
  "in bfloat16": "bfloat16",
  "dasgd": "dasgd, delay",
  "local_sgd": "local_sgd, period",
  "hierarchical": "hierarchical, period",
  "streaming_diloco": "streaming, delay",
}


class PlanRequest(NamedTuple):
  """Requirements of a plan; 0: automatic."""

  batch: int = 0
  workers: int = 0
  servers: int = 0
  efficiency: float = 0.8  # of the workers, at least
  exposed: float = 0.05  # share of a round spent waiting, at most
  origin: str = "as given"  # of `batch`: a description
  gradients: str = "float32"  # format in which they are sent
  critical: float = 0.0  # the critical batch in examples; 0: unknown
  micro: int = 1  # microbatches, which share `batch` evenly


class Recommendation(NamedTuple):
  """The recommended algorithm."""

  speed: Speed
  lines: tuple[str, ...]  # sentences, the recommendation first


class TrainingPlan(NamedTuple):
  """Recommendations and the predicted rates with them."""

  rows: tuple[PlanRow, ...]
  settings: FamilySettings
  speeds: tuple[Speed, ...]
  table: tuple[EfficiencyRow, ...]  # examples per worker against efficiencies
  enough: BatchSize | None  # from which on synchronous SGD waits for at most the share `exposed`
  recommendation: Recommendation


def plan(
  job: Job, cluster: Cluster, request: PlanRequest, overhead: float | None = None,
  configured: tuple[str, scaling.Recorded] | None = None,
) -> TrainingPlan:  # fmt: skip
  """Return all recommendations for a job on a cluster.

  Args:
    overhead: R_O of a single worker, its host's seconds over those of computing, where that was measured; else the
      fixed part of a step is that of the cluster's efficiency curve.
    configured: an algorithm by its name, whose speed with its configured settings is predicted beside the families.
  """
  if not 0 < request.efficiency <= 1 or not 0 < request.exposed < 1:
    raise ValueError(
      f"efficiency and exposed must be shares between 0 and 1, got {request.efficiency:g} and {request.exposed:g}."
    )
  families.message_bytes(job.params_bytes, request.gradients)  # ValueError for an unknown one
  shards, critical = _shards(job, cluster, request.workers), request.critical or None
  borne = critical or (job.usual.examples if job.usual else math.inf)  # examples of a step that cost little
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

  def share(workers: int) -> float:  # efficiency of synchronous SGD on as many examples as are usual
    if request.batch:
      return request.micro * first.steps[part] / seconds(workers, request.batch, request.micro)
    x = batches.largest_usual(job, first, workers)
    return first.steps[x] / seconds(workers, x) if x * workers <= borne else 0.0

  workers = request.workers or plan_rows.most_workers(share, counts)
  if workers == 1 and not request.workers and cluster.workers:  # synchronous SGD does not keep even two busy
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
  most = min(whole, sizes.largest)  # of a single worker, in microbatches
  alone = whole / most * step_seconds(job.step, most, cluster.device, cluster.efficiency) if shards == 1 else math.inf
  recommendation = recommend(
    sized, settings, speeds, enough, share=request.exposed, alone=alone, critical=critical, small=small
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
    why = f"one worker has not the memory for the parameters and their copies; {shards} or more share them"
    limit = f"at least so many of the {workers} workers hold a copy together"
    rows.append(PlanRow("shards", str(shards), why, limit))
  rows += [*plan_rows.all_workers(sized, cluster, batch, workers, counts, seconds, overhead), *exchange_rows]
  return TrainingPlan(tuple(rows), settings, speeds, tuple(table), enough, recommendation)


def _settings(
  job: Job, cluster: Cluster, request: PlanRequest, batch: WorkerBatch, workers: int, shards: int
) -> tuple[FamilySettings, list[PlanRow]]:
  """Return servers, delay and periods for a step on so many examples, and the rows of all."""
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
  """The least power of two of workers whose memory together holds a step on one example of each; 1 where one's does."""
  limit = cluster.device.memory
  if job.split > 1:
    return job.split
  if job.exact or job.memory.total(1) <= limit or workers == 1:
    return 1
  most = workers or cluster.workers or plan_rows.TRIED
  counts = (2**i for i in range(1, most.bit_length()))
  fitting = (n for n in counts if families.sharded_memory(job, n, cluster.device.width).total(1) <= limit)
  return next(fitting, 1)  # of 1 the error tells the bytes


def _configured_speed(
  job: Job, cluster: Cluster, settings: FamilySettings, name: str, recorded: scaling.Recorded
) -> Speed:
  """Return the speed of an algorithm by its messages, as in `scaling`."""
  work = scaling.work_of(job.step, job.params_bytes)._replace(micro=settings.micro)
  transport = scaling.Transport(settings.servers)
  (point,) = scaling.curve(
    recorded, work, cluster, [settings.workers], batch=settings.examples, weak=True, transport=transport
  )
  return families.speed(settings, name, "as configured", point.seconds)


def pick(speeds: Sequence[Speed], language: bool = True) -> Speed:
  """Return the first in ORDER, of one name the first, that has NEARLY the best rate of those within SHOWN.

  For a job that is no language model, those shown only for language models count where the others have less than HALF
  of their rate.
  """
  known = [each for each in speeds if each.algorithm in ORDER and each.steps <= SHOWN.get(each.algorithm, (0, ""))[0]]
  others = [each for each in known if each.algorithm not in LANGUAGE]
  best = max(each.rate for each in known)
  if not language and others and max(each.rate for each in others) >= HALF * best:
    known, best = others, max(each.rate for each in others)
  return min((each for each in known if each.rate >= NEARLY * best), key=lambda each: ORDER.index(each.algorithm))


def recommend(
  job: Job, settings: FamilySettings, speeds: Sequence[Speed], enough: BatchSize | None, *, share: float, alone: float,
  critical: float | None, small: tuple[FamilySettings, Sequence[Speed]] | None,
) -> Recommendation:  # fmt: skip
  """Return what to run, from how many examples on synchronous SGD suffices, and what so many cost.

  Args:
    speeds: predictions at `settings`.
    alone: seconds that one worker takes for the examples of all.
    enough: the size from which on synchronous SGD waits for at most `share`.
    critical: the critical batch in examples, where it is known.
    small: settings and predictions with fewer examples, where the recommended ones are more than the device needs.
  """
  best = pick(speeds, job.language)
  several = f"Among several: {_described(best, settings)}"
  if settings.workers > 1 and settings.step < SHORTEST:
    first = f"Recommended: one worker. A step of {seconds_text(settings.step)} is too short to be worth an exchange."
    return Recommendation(best, (first, several, *_note(best)))
  lines = [f"Recommended: {_described(best, settings)}"]
  if settings.workers == 1:
    return Recommendation(best, (lines[0],))
  if alone < WORTH * best.seconds:
    first = (
      f"Recommended: one worker. It takes {seconds_text(alone)} for all {settings.workers * settings.examples:,} "
      f"examples of a step, {settings.workers} workers take {seconds_text(best.seconds)}: it is too small for them."
    )
    lines = [first, several]
  lines += [*_note(best), _enough(job, enough, settings, share), _cost(job, settings, critical)]
  if small:
    other = pick(small[1], job.language)
    if other.algorithm != best.algorithm or (other.setting != best.setting and best.algorithm not in SHOWN):
      lines += [f"Where a step should have fewer: {_described(other, small[0])}", *_note(other)]
  return Recommendation(best, tuple(lines))


def _note(best: Speed) -> list[str]:
  """What has been shown of an algorithm that is not SGD, or of gradients that are not those of SGD."""
  if best.algorithm in SHOWN:
    return [f"{best.algorithm} is another algorithm than SGD: {SHOWN[best.algorithm][1]}."]
  return [ROUNDED] if best.setting.startswith(COMPRESSION) else []


def _described(best: Speed, settings: FamilySettings) -> str:
  s = settings
  micro = f" in {s.micro} microbatches" if s.micro > 1 else ""
  return (
    f"{best.algorithm} ({best.setting}) with {pluralize(s.examples, 'example')} per worker{micro}, "
    f"{s.examples * s.workers:,} a step: {percent(best.efficiency)} of {pluralize(s.workers, 'worker')}, "
    f"{rate_text(best.rate)} examples/s."
  )


def _enough(job: Job, enough: BatchSize | None, settings: FamilySettings, share: float) -> str:
  efficiency = f"synchronous SGD keeps {percent(1 - share)}"
  if enough is None:
    return f"With no number of examples that fits {efficiency}."
  whole = f"{enough.examples * settings.workers:,} a step"
  if enough.micro == 1:
    return f"From {pluralize(enough.examples, 'example')} per worker on ({whole}) {efficiency}."
  part = enough.examples // enough.micro
  unusual = ", more than usual" if job.usual and enough.examples * settings.workers > job.usual.examples else ""
  return (
    f"By accumulating gradients over {enough.micro} microbatches of {part} ({enough.examples:,} examples per worker, "
    f"{whole}{unusual}) {efficiency}."
  )


def _cost(job: Job, settings: FamilySettings, critical: float | None) -> str:
  whole = settings.workers * settings.examples
  if critical:
    more = examples_factor(whole, critical)
    return (
      f"The critical batch is {critical:,.0f} examples, by the run's gradient noise: steps of {whole:,} take "
      f"1 + B / B_c = {more:.3g} times the examples to a loss that small steps take (arXiv 1812.06162)."
    )
  known = f" {job.usual.source[0].upper()}{job.usual.source[1:]}." if job.usual else ""
  return (
    f"What {whole:,} examples a step cost in convergence is unknown here.{known} A run with --config.noise_batches=16 "
    "measures the critical batch: --run=FOLDER."
  )


def text(
  job: Job, name: str, cluster: Cluster, result: TrainingPlan, sends: str = "",
  ends: Mapping[str, TrainingPlan] = MappingProxyType({}),
) -> str:  # fmt: skip
  """Return the plan as text: the recommendation first, then the tables, then the formulas and the limits.

  sends: what the config's algorithm sends; ends: by the device's efficiency in words, the same settings at each end of
  its range.
  """
  lines = [f"{job.title} on {cluster.title}", *textwrap.wrap(f"source: {cluster.source}", WIDTH)]
  if result.settings.step < SHORTEST:
    warning = (
      f"Warning: a step of {seconds_text(result.settings.step)} is shorter than a machine takes to start one, tens of "
      "microseconds and more. This cluster's entry has no such time: the efficiencies below are too low, the delays "
      "and periods too long."
    )
    lines += ["", *textwrap.wrap(warning, WIDTH)]
  lines.append("")
  left_out = f"The progress per example is in no number here: python run.py compare --config=FILE --cluster={name}"
  left_out += " sets accuracy against seconds."
  for sentence in (*result.recommendation.lines, *map(_end, ends, ends.values()), sends, left_out):
    lines += textwrap.wrap(sentence, WIDTH, subsequent_indent="  ")
  lines += ["", *_sizes(result), "", *_speeds(result), "", "why, and what limits it"]
  for row in result.rows:
    lines.append(f"{row.quantity}: {row.value}")
    for sentence in (row.why, f"limit: {row.limit}"):
      lines += textwrap.wrap(sentence, WIDTH, initial_indent="    ", subsequent_indent="    ")
  return "\n".join(lines)


def _end(shares: str, result: TrainingPlan) -> str:
  s, exact = result.settings, result.speeds[0]
  return (
    f"With {shares}: a step on {s.examples} takes {seconds_text(s.step)}; {exact.algorithm} keeps "
    f"{percent(exact.efficiency)}; recommended is {result.recommendation.speed.algorithm}."
  )


def _sizes(result: TrainingPlan) -> list[str]:
  """Return the examples per worker against the efficiency of each family."""
  names = list(result.table[0].cells)
  relative = result.table[0].relative is not None
  head = ["examples each", "a step", *(CELLS[name] for name in names), *["time to a loss"] * relative]
  return columns([head, *(_row(row, names) for row in result.table)], left=1)


def _row(row: EfficiencyRow, names: Sequence[str]) -> list[str]:
  examples, micro = row.size
  cells = [f"{examples:,}" + (f" ({micro} x {examples // micro})" if micro > 1 else ""), seconds_text(row.step)]
  for efficiency, setting in (row.cells[name] for name in names):
    cells.append(percent(efficiency) + ("" if setting is None else f" ({setting})"))
  return [*cells, *([f"{row.relative:.3g}x"] if row.relative is not None else [])]


def _speeds(result: TrainingPlan) -> list[str]:
  """Return the predictions of the families."""
  head = [f"with {result.settings.examples:,} per worker", "", "a step", "efficiency", "examples/s"]
  rows = [
    [speed.algorithm, speed.setting, seconds_text(speed.seconds), percent(speed.efficiency), rate_text(speed.rate)]
    for speed in result.speeds
  ]
  return columns([head, *rows], left=2)
