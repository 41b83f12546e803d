"""The planner: examples, workers, servers, delay and period for a job on a cluster, each with its reason and its limit.

The guidelines of Zou et al. 2017, arXiv 1709.06622 (memory and convolutions, lemma on workers, lemma on servers), and
the hiding condition of DaSGD, Zhou et al. 2020, arXiv 2006.00441. The examples are chosen with the exchange in sight.
"""

import math
from functools import cache
from typing import NamedTuple

from ddl.perf import collectives
from ddl.perf.hardware import Cluster
from ddl.perf.hardware.device import step_seconds
from ddl.perf.planning import batch_table, formats, rates, recommendation, rows, scaling, scenario, sharded
from ddl.perf.planning.batch import Batch, Job, choose_batch, tried_sizes
from ddl.perf.planning.batch_table import Line, Size
from ddl.perf.planning.rates import Settings, Speed, speed
from ddl.perf.planning.recommendation import Advice
from ddl.perf.planning.rows import PlanRow, choose_periods, choose_servers


class Wish(NamedTuple):
  """Requirements of a plan; 0: automatic."""

  batch: int = 0
  workers: int = 0
  servers: int = 0
  efficiency: float = 0.8  # of the workers, at least
  exposed: float = 0.05  # share of a round spent waiting, at most
  origin: str = "as given"  # of `batch`, in words
  gradients: str = "float32"  # format in which they are sent
  critical: float = 0.0  # the critical batch in examples; 0: unknown
  micro: int = 1  # microbatches, which share `batch` evenly


class Plan(NamedTuple):
  """Recommendations and the predicted rates with them."""

  rows: tuple[PlanRow, ...]
  settings: Settings
  speeds: tuple[Speed, ...]
  lines: tuple[Line, ...]  # examples per worker against efficiencies
  enough: Size | None  # from which on synchronous SGD waits for at most the share `exposed`
  advice: Advice


def plan(
  job: Job, cluster: Cluster, wish: Wish, overhead: float | None = None, own: tuple[str, scaling.Recorded] | None = None
) -> Plan:
  """Return all recommendations for a job on a cluster.

  Args:
    overhead: R_O of one worker alone, its host's seconds over those of computing, where that was measured; else the
      fixed part of a step is that of the cluster's efficiency curve.
    own: an algorithm by its name, whose speed with its own settings is predicted beside those of the families.

  Raises:
    ValueError: one line, for invalid values: memory too small for one example on all workers together, a link without
      bandwidth, more workers than the cluster has, more servers than parameters.
  """
  if not 0 < wish.efficiency <= 1 or not 0 < wish.exposed < 1:
    raise ValueError(f"efficiency is {wish.efficiency:g} and exposed {wish.exposed:g}; both are shares between 0 and 1")
  formats.message_bytes(job.params_bytes, wish.gradients)  # ValueError for an unknown one
  shards, critical = _shards(job, cluster, wish.workers), wish.critical or None
  borne = critical or (job.usual.examples if job.usual else math.inf)  # examples of a step that cost little
  range_ = rows.counts(cluster, wish.workers, wish.efficiency, shards)

  @cache
  def seconds(workers: int, examples: float, micro: int = 1) -> float:
    return rates.exact_seconds(job, cluster, workers, examples, micro, shards=shards, gradients=wish.gradients)

  part = wish.batch // wish.micro

  def fitted(workers: int) -> Job:
    pieces = rates.ways(cluster.network, workers, shards)
    return job._replace(memory=sharded.memory(job, min(pieces.values()), cluster.device.width)) if shards > 1 else job

  first = tried_sizes(fitted(wish.workers or shards), cluster, part)

  def share(workers: int) -> float:  # efficiency of synchronous SGD on as many examples as are usual
    if wish.batch:
      return wish.micro * first.steps[part] / seconds(workers, wish.batch, wish.micro)
    x = batch_table.largest_usual(job, first, workers)
    return first.steps[x] / seconds(workers, x) if x * workers <= borne else 0.0

  workers = wish.workers or rows.most_workers(share, range_)
  if workers == 1 and not wish.workers and cluster.workers:  # synchronous SGD keeps not even two busy: other algorithms
    workers = cluster.workers
  sized = fitted(workers)
  sizes = tried_sizes(sized, cluster, part)

  def exact(examples: int, micro: int) -> float:
    return seconds(workers, examples, micro)

  enough = batch_table.threshold(sized, sizes, exact, 1 - wish.exposed, accumulate=shards == 1)
  size, rule = Size(wish.batch, wish.micro), wish.origin
  if not wish.batch:
    size, rule = batch_table.choose(sized, sizes, workers, enough, exact, critical)
  batch = choose_batch(sized, cluster, *size)
  settings, rest = _settings(sized, cluster, wish, batch, workers, shards)
  speeds = rates.families(sized, cluster, settings, wish.exposed)
  small = None
  if batch.examples > sizes.enough and not wish.batch:
    fewer = _settings(sized, cluster, wish, choose_batch(sized, cluster, sizes.enough), workers, shards)[0]
    small = fewer, rates.families(sized, cluster, fewer, wish.exposed)
  whole = workers * batch.examples
  most = min(whole, sizes.largest)  # of one worker alone, in microbatches
  alone = whole / most * step_seconds(job.step, most, cluster.device, cluster.efficiency) if shards == 1 else math.inf
  advice = recommendation.advise(
    sized, settings, speeds, enough, share=wish.exposed, alone=alone, critical=critical, small=small
  )
  lines = batch_table.lines(
    sized, cluster, workers, batch_table.shown(sized, sizes, size, enough), exact,
    lambda s: s.micro * sizes.steps[s.examples // s.micro],
    share=wish.exposed, sharded=shards > 1, critical=critical,
  )  # fmt: skip
  if own:
    speeds = (*speeds, _own(job, cluster, settings, *own))
  sharing = rows.worker_rows(sized, cluster, batch, workers, range_, seconds, overhead)
  one_worker = rows.rows(sized, cluster, batch, given=rule)
  found = (*one_worker, *_pieces(sized, shards, settings), *sharing, *rest)
  return Plan(found, settings, speeds, tuple(lines), enough, advice)


def _settings(
  job: Job, cluster: Cluster, wish: Wish, batch: Batch, workers: int, shards: int
) -> tuple[Settings, list[PlanRow]]:
  """Servers, delay and periods for a step on so many examples, and the rows of all."""
  step, share = batch.step, wish.exposed
  visit, served, servers, serving = choose_servers(job, cluster, workers, step, given=wish.servers)
  message = collectives.all_reduce(job.params_bytes, workers, cluster.network)
  delay, periods, waits = choose_periods(message, visit, served, step, share=share, overlap=cluster.overlap)
  settings = Settings(
    job.params_bytes, batch.examples, step, workers, servers, delay, *periods,
    micro=batch.micro, shards=shards, gradients=wish.gradients,
  )  # fmt: skip
  if workers == 1:
    return settings, [PlanRow("exchange", "none", "a single worker exchanges nothing", "no servers, delay or periods")]
  return settings, [*_exchanging(job, cluster, settings), *([serving, *waits] if shards == 1 else [])]


def _shards(job: Job, cluster: Cluster, workers: int) -> int:
  """The least power of two of workers whose memory together holds a step on one example of each; 1 where one's does."""
  limit = cluster.device.memory
  if job.split > 1:
    return job.split
  if job.exact or job.memory.total(1) <= limit or workers == 1:
    return 1
  most = workers or cluster.workers or rows.TRIED
  fitting = (
    2**i for i in range(1, most.bit_length()) if sharded.memory(job, 2**i, cluster.device.width).total(1) <= limit
  )
  return next(fitting, 1)  # of 1 the error tells the bytes


def _pieces(job: Job, shards: int, settings: Settings) -> list[PlanRow]:
  if shards == 1:
    return []
  why = f"one worker has not the memory for the parameters and their copies; {shards} or more share them"
  return [
    PlanRow("shards", str(shards), why, f"at least so many of the {settings.workers} workers hold a copy together")
  ]


def _own(job: Job, cluster: Cluster, settings: Settings, name: str, recorded: scaling.Recorded) -> Speed:
  """Speed of an algorithm by its messages, as in `scaling`."""
  work = scenario.work_of(job.step, job.params_bytes)._replace(micro=settings.micro)
  transport = scenario.Transport(settings.servers)
  (point,) = scaling.curve(
    recorded, work, cluster, [settings.workers], batch=settings.examples, weak=True, transport=transport
  )
  return speed(settings, name, "as configured", point.seconds)


def _exchanging(job: Job, cluster: Cluster, settings: Settings) -> list[PlanRow]:
  network, workers = cluster.network, settings.workers
  nbytes = formats.message_bytes(job.params_bytes, settings.gradients)
  found = [rows.all_reduce(nbytes, workers, network)]
  if job.table:
    weighted = tuple(layer for layer in job.table if layer.params and layer.macs)
    found.append(rows.messages([4.0 * layer.params for layer in weighted], workers, network))
    found.append(rows.groups(weighted, settings.examples * workers, workers, network.between.duplex))
  return found
