"""Compute the scaling curves of the `scale` command from a model's work and memory and the algorithms' messages."""

from collections.abc import Mapping, Sequence
from functools import cache, lru_cache
from typing import Any

import optax

from ddl.algorithms import COLLECTIVE
from ddl.config.catalog import entry, factory, keyword_arguments, keywords, make_algorithm, named
from ddl.costs.cluster_clock import pattern_of, vector
from ddl.errors import OptionError
from ddl.models import MODELS
from ddl.names import short_name
from ddl.perf import neural_networks, scaling
from ddl.perf.cluster import Cluster
from ddl.perf.patterns import Pattern
from ddl.perf.placement import Job, PlacedJob, place, table_job
from ddl.perf.scale_text import Curve
from ddl.perf.scaling import Recorded, StepWork, Transport
from ddl.perf.units import bytes_text
from ddl.run.progress import bar

MOST_GRAPH = 4096  # maximum workers of a gossip algorithm, because it stores matrices [workers, workers]
WITH_MOMENTS = optax.rmsprop(0.1, momentum=0.9)  # has both moments that an algorithm may send


def scaled_job(name: str, examples: int, cluster: Cluster) -> tuple[PlacedJob, str]:
  """Return a model on a cluster, and how its work and memory were counted, for the report.

  They are counted from a layer table or, for a model of `ddl.models`, by XLA.

  Args:
    name: the name of a layer table, or of a model, whose sizes are those of `step_cost.SIZES` or the defaults.
    examples: batch size of the step that XLA counts, on synthetic data.
    cluster: the cluster on which the model is placed.
  """
  if neural_networks.has(name):
    return table_job(name, cluster), "layer table, 6 FLOP per multiply-accumulate"
  named("model", dict.fromkeys(neural_networks.names()) | MODELS, name)
  from ddl.config import default_experiment
  from ddl.costs import step_cost  # imported lazily: a layer table needs no compiler
  from ddl.run.build import build

  model = {"name": name, **step_cost.SIZES.get(name, {})}
  components = build(default_experiment(model=model, workers=1, batch=examples), step_cost.synthetic(name))
  job, title = step_cost.experiment_job(components), step_cost.model_title(components)
  placed = place(Job(title, job.params_bytes, job.step, job.memory, kind=job.kind), cluster)
  return placed, f"XLA's count of ddl's {title}"


def work_of(job: Job) -> StepWork:
  """Return the work of a job's step, per layer."""
  return scaling.work_of(job.step, job.params_bytes)


def large_enough(workers: Sequence[int], job: Job) -> list[int]:
  """Return the numbers in `workers` that suffice to hold a job's sharded training state.

  Raises OptionError if none does.
  """
  counts = [count for count in workers if count >= job.split]
  if not counts:
    raise OptionError(
      "workers", f"at least {job.split} to hold the sharded training state of {job.title}", max(workers)
    )
  return counts


def settings(names: Sequence[str], *, period: int | None, delay: int | None) -> dict[str, dict[str, int]]:
  """Return, for each algorithm, those of the settings `period` and `delay` that are not None and that it has.

  Raises:
    ValueError: if there are no algorithms, or if `period` or `delay` is not None but no algorithm has this setting.
  """
  if not names:
    raise OptionError("algorithms", "one or more names (such as sync_sgd,dasgd)")
  values = {key: value for key, value in (("period", period), ("delay", delay)) if value is not None}
  by_name = {
    name: {key: values[key] for key in values if key in keywords(factory("algorithm", name))} for name in names
  }
  for key, value in values.items():
    if not any(key in settings for settings in by_name.values()):
      raise OptionError(key, f"unset for algorithms without this setting ({', '.join(names)})", value)
  return by_name


@lru_cache(maxsize=64)  # both ends of a range of efficiencies need the same messages
def recorded(name: str, *nbytes: float, **settings: Any) -> Recorded:
  """Return a function that maps a number of workers to the messages of the algorithm `name`.

  nbytes: bytes of the parameters of each layer; settings: hyperparameters that replace the algorithm's defaults.
  """
  sizes: list[tuple[float, float]] = []  # bytes of a visit, which are the same for any number of workers above 1

  @cache
  def pattern(workers: int) -> Pattern:
    spec = entry("algorithm", name)
    if workers > MOST_GRAPH and name in COLLECTIVE and spec.taxonomy.pattern == "peer to peer":
      raise OptionError("workers", f"at most {MOST_GRAPH:,} for {name}", f"{workers:,}")
    required = {key: 1 for key, x in keywords(spec.factory).items() if x.default is x.empty}  # such as a first step
    values = keyword_arguments("algorithm", {"name": name, **required, **settings}, workers)
    pattern = pattern_of(make_algorithm(name, WITH_MOMENTS, workers, values), vector(*nbytes), workers, *sizes)
    if pattern.visits and workers > 1 and not sizes:
      sizes.append((pattern.visits.up, pattern.visits.down))
    return pattern

  return pattern


def curves(
  work: StepWork, cluster: Cluster, workers: Sequence[int], algorithms: Mapping[str, Mapping[str, int]],
  transport: Transport, *, batch: int, weak: bool, jitter: float, largest: float = float("inf"),
) -> list[Curve]:  # fmt: skip
  """Return the scaling curve of each algorithm.

  Args:
    algorithms: name -> settings.
    batch: examples per step, of each worker if `weak`, else of all workers.
    largest: the number of examples per step that fit into a worker's memory.

  Raises:
    OptionError: for an invalid argument, or if the batch does not fit into memory with any number of workers.
  """
  results = []
  with bar("", len(algorithms) * len(workers)) as progress:
    for name, values in algorithms.items():
      pattern = recorded(name, *work.nbytes, **values)

      def tracked(count: int, pattern: Recorded = pattern, name: str = name) -> Pattern:
        progress.set_description(f"{short_name(name)}, {count:,} workers")
        progress.update()
        return pattern(count)

      points = scaling.curve(
        tracked, work, cluster, workers, batch=batch, weak=weak, jitter=jitter, transport=transport
      )
      sent, exposed = pattern(max(workers)), None
      if name == "sync_sgd" and sent.local and transport.overlap and cluster.overlap:
        exposed = scaling.curve(
          pattern, work, cluster, workers[-1:], batch=batch, weak=weak, jitter=jitter,
          transport=transport._replace(overlap=False),
        )[0]  # fmt: skip
      results.append(Curve(short_name(name), sent, transport, points, largest=largest, exposed=exposed))
  if transport.order != "fifo" and not (transport.overlap and any(curve.pattern.local for curve in results)):
    names = ", ".join(curve.algorithm for curve in results)
    condition = "fifo, unless exchanges overlap computation and an algorithm sends gradients layer by layer"
    raise OptionError("order", f"{condition} (algorithms: {names})", transport.order)
  last = results[0].points[-1]
  if not results[0].possible:
    most = largest if weak else largest * last.workers
    condition = f"at most {most:,} ({largest:,} per worker fit into {bytes_text(cluster.device.usable)} of memory)"
    raise OptionError("batch", condition, f"{batch:,}", "" if weak else "Use a smaller batch or more workers.")
  return results
