"""The planner: examples, workers, servers, delay and period for a job on a cluster, each with its reason and its limit.

The guidelines of Zou et al. 2017, arXiv 1709.06622 (memory and convolutions, lemma on workers, lemma on servers), and
the hiding condition of DaSGD, Zhou et al. 2020, arXiv 2006.00441.
"""

from typing import NamedTuple

from ddl.perf.comm import collectives
from ddl.perf.comm.patterns import Op, Pattern
from ddl.perf.hardware import Cluster
from ddl.perf.planning import advice, batch_rows, scaling, scenario
from ddl.perf.planning.advice import Row
from ddl.perf.planning.algorithm_rates import Settings, Speed, speed, speeds
from ddl.perf.planning.batch import Job, choose_batch
from ddl.perf.planning.node_counts import choose_servers, choose_workers
from ddl.perf.planning.period_rows import choose_periods


class Wish(NamedTuple):
  """Requirements of a plan; 0: automatic."""

  batch: int = 0
  workers: int = 0
  servers: int = 0
  efficiency: float = 0.8  # of the workers, at least
  exposed: float = 0.05  # share of a round spent waiting, at most
  origin: str = "as given"  # of `batch`, in words


class Plan(NamedTuple):
  """Recommendations and the predicted rates with them."""

  rows: tuple[Row, ...]
  settings: Settings
  speeds: tuple[Speed, ...]


def plan(
  job: Job, cluster: Cluster, wish: Wish, overhead: float | None = None, own: tuple[str, scaling.Recorded] | None = None
) -> Plan:
  """Return all recommendations for a job on a cluster.

  Args:
    overhead: R_O of one worker alone, its host's seconds over those of computing, where that was measured; else the
      fixed part of a step is that of the cluster's efficiency curve.
    own: an algorithm by its name, whose speed with its own settings is predicted beside those of the families.

  Raises:
    ValueError: one line, for invalid values: memory too small for one example, a link without bandwidth, more workers
      than the cluster has, more servers than parameters.
  """
  if not 0 < wish.efficiency <= 1 or not 0 < wish.exposed < 1:
    raise ValueError(f"efficiency is {wish.efficiency:g} and exposed {wish.exposed:g}; both are shares between 0 and 1")
  batch = choose_batch(job, cluster, wish.batch)
  x, step = batch.examples, batch.step
  workers, sharing = choose_workers(job, cluster, x, step, given=wish.workers, least=wish.efficiency, measured=overhead)
  visit, served, servers, serving = choose_servers(job, cluster, workers, step, given=wish.servers)
  message = collectives.all_reduce(job.params_bytes, workers, cluster.network)
  delay, periods, rows = choose_periods(message, visit, served, step, share=wish.exposed, overlap=cluster.overlap)
  settings = Settings(job.params_bytes, x, step, workers, servers, delay, *periods)
  exchange = [*_exchanging(job, cluster, workers, x), serving, *rows]
  if workers == 1:
    exchange = [Row("exchange", "none", "a single worker exchanges nothing", "no servers, delay or periods")]
  found = [*_overlapped(job, cluster, settings), *speeds(settings, cluster)]
  if own:
    found.append(_speed(job, cluster, settings, *own))
  rows = (*batch_rows.rows(job, cluster, batch, given=wish.origin if wish.batch else ""), *sharing, *exchange)
  return Plan(rows, settings, tuple(found))


def _overlapped(job: Job, cluster: Cluster, settings: Settings) -> tuple[Speed, ...]:
  """Synchronous SGD whose gradients leave during the backward pass, as in `scaling`."""
  if settings.workers == 1 or not cluster.overlap:
    return ()
  gradients = Pattern(local=(Op("all_reduce", job.params_bytes),))
  found = _speed(job, cluster, settings, "sync_sgd", lambda _: gradients)
  return (found._replace(setting="gradients leave as they appear"),)


def _speed(job: Job, cluster: Cluster, settings: Settings, name: str, recorded: scaling.Recorded) -> Speed:
  """Speed of an algorithm by its messages, as in `scaling`."""
  work, transport = scenario.work_of(job.step, job.params_bytes), scenario.Transport(settings.servers)
  (point,) = scaling.curve(
    recorded, work, cluster, [settings.workers], batch=settings.examples, weak=True, transport=transport
  )
  return speed(settings, name, "as configured", point.seconds)


def _exchanging(job: Job, cluster: Cluster, workers: int, x: int) -> list[Row]:
  network = cluster.network
  found = [advice.all_reduce(job.params_bytes, workers, network)]
  if job.table:
    weighted = tuple(layer for layer in job.table if layer.params and layer.macs)
    found.append(advice.messages([4.0 * layer.params for layer in weighted], workers, network))
    found.append(advice.groups(weighted, x * workers, workers, network.between.duplex))
  return found
