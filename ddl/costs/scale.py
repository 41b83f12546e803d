"""Compute the scaling curves of the `scale` command, and describe them as tables and sentences."""

import math
from collections.abc import Mapping, Sequence
from functools import cache, lru_cache
from types import MappingProxyType
from typing import Any, NamedTuple

import optax

from ddl.algorithms import COLLECTIVE
from ddl.config.catalog import entry, factory, keyword_arguments, keywords, make_algorithm, named
from ddl.costs.cluster_clock import pattern_of, vector
from ddl.errors import OptionError
from ddl.models import MODELS
from ddl.names import short_name
from ddl.perf import neural_networks, scaling
from ddl.perf.cluster import Cluster, NetworkModel
from ddl.perf.patterns import ExchangePattern, Pattern, Visits
from ddl.perf.placement import Job, PlacedJob, place, table_job
from ddl.perf.scaling import Recorded, ScalingPoint, StepWork, Transport, expected_rates, stops
from ddl.perf.units import bytes_text, rate_text
from ddl.run.progress import bar

MOST_GRAPH = 4096  # maximum workers of a gossip algorithm, because it stores matrices [workers, workers]
WITH_MOMENTS = optax.rmsprop(0.1, momentum=0.9)  # has both moments that an algorithm may send
EFFICIENCY = (  # only for strong scaling; with weak scaling both definitions agree
  "efficiency: speed-up per worker, relative to one worker that computes all examples;\n"
  "`plan` compares with a step on the same examples per worker without an exchange"
)
HEAD = ("nodes", "workers", "s/step", "examples/s", "speed-up", "efficiency", "communication", "limited by")


class Curve(NamedTuple):
  """The scaling curve of one algorithm."""

  algorithm: str
  pattern: Pattern  # with the last point's number of workers
  transport: Transport
  points: list[ScalingPoint]
  measured: Mapping[int, float] = MappingProxyType({})  # workers -> seconds per step of real runs
  largest: float = math.inf  # examples of a step that fit in a worker's memory
  exposed: ScalingPoint | None = None  # for synchronous SGD: the last of `points` if nothing overlapped

  def fits(self, point: ScalingPoint) -> bool:
    """Return whether the point's step fits in a worker's memory."""
    return point.examples <= self.largest

  @property
  def possible(self) -> list[ScalingPoint]:
    """The points that fit in memory."""
    return [point for point in self.points if self.fits(point)]


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
  transport: Transport, *, batch: int, weak: bool, jitter: float, largest: float = math.inf,
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
  last = results[0].points[-1]
  if not results[0].possible:
    most = largest if weak else largest * last.workers
    condition = f"at most {most:,} ({largest:,} per worker fit into {bytes_text(cluster.device.usable)} of memory)"
    raise OptionError("batch", condition, f"{batch:,}", "" if weak else "Use a smaller batch or more workers.")
  return results


def head(curves: Sequence[Curve]) -> tuple[str, ...]:
  """Return the column names, including those of measurements if there are any."""
  return HEAD + ("measured s/step", "error") * any(curve.measured for curve in curves)


def rows(curve: Curve, network: NetworkModel, width: int) -> list[tuple[str, ...]]:
  """Format the points as table rows for the first `width` columns of `head`."""
  return [(*_row(curve, point, network), *_measured(curve, point))[:width] for point in curve.points]


def _measured(curve: Curve, point: ScalingPoint) -> tuple[str, str]:
  seconds = curve.measured.get(point.workers)
  return (f"{seconds:.4g}", f"{100 * (point.seconds / seconds - 1):+.1f} %") if seconds else ("-", "-")


def _row(curve: Curve, point: ScalingPoint, network: NetworkModel) -> tuple[str, ...]:
  """Format a point as the cells of HEAD, without figures if its examples do not fit in memory."""
  size = f"{network.nodes(point.workers):,}", f"{point.workers:,}"
  if not curve.fits(point):
    return (*size, *"-----", f"memory: {curve.largest:,} of {point.examples:,} examples fit")
  return (
    *size,
    f"{point.seconds:.4g}",
    rate_text(point.examples_per_second),
    f"{point.speedup:.3g}x" if point.speedup < 1000 else f"{point.speedup:,.0f}x",
    f"{100 * point.efficiency:.1f} %",
    f"{100 * max(0.0, point.waiting):.1f} %",
    point.limit,
  )


def reached(curve: Curve, network: NetworkModel) -> str:
  """Describe what published runs of synchronous SGD reached relative to the last prediction; "" without this data."""
  last, exposed = curve.points[-1], curve.exposed
  if not exposed or not curve.fits(last):
    return ""
  several = network.nodes(last.workers) > 1
  rates = expected_rates(last.examples_per_second, exposed.examples_per_second, several)
  return f"expect {rates.range} examples/s on {last.workers:,} workers: {rates.text}"


def verdict(curve: Curve) -> str:
  """Describe how far the curve scales, what costs the most time there, and the fewest workers with enough memory."""
  points = curve.possible
  text = _scales(points)
  if len(points) == len(curve.points):
    return text
  fewer = curve.points[-len(points) - 1]
  room = f"{fewer.workers:,} would have {fewer.examples:,} examples each, of which {curve.largest:,} fit in memory"
  return f"fits in memory from {points[0].workers:,} workers ({room}) and {text}"


def _scales(points: Sequence[ScalingPoint]) -> str:
  stop, last = stops(points), points[-1]
  if last.workers == 1:
    return "has a single worker: there is nothing to scale."
  if stop is None:
    return f"{'scales over the whole range: ' if len(points) > 1 else ''}{_speedup(last)}; {_most(last)}."
  top = max(point.speedup for point in points)
  best = next(point for point in points if point.speedup >= 0.995 * top)  # more workers add next to nothing
  if points.index(best) > points.index(stop):
    return f"scales poorly from {stop.workers:,} workers, where {_most(stop)}; at best {_speedup(best)}."
  before = points[points.index(stop) - 1]
  start = "does not scale" if before.workers == 1 else f"scales to {before.workers:,} workers ({before.speedup:.3g}x)"
  return f"{start}: {_speedup(stop)}, and {_most(stop)}."


def _speedup(point: ScalingPoint) -> str:
  return f"{point.workers:,} workers are {point.speedup:.3g} times as fast as one"


def _most(point: ScalingPoint) -> str:
  if point.limit == "nothing":
    return "no single limit costs much"
  return f"the largest loss is {100 * point.losses[point.limit] / point.seconds:.0f} % of a step: {point.limit}"


def setting(curve: Curve) -> str:
  """Describe the periods, delays and transport of an algorithm."""
  visits, transport = curve.pattern.visits, curve.transport
  lasting = [exchange for exchange in curve.pattern.exchanges if not exchange.ends]
  clocks = [_clock(message) for message in ([visits] if visits else lasting)]
  parts = [
    f"{clocks.count(text)} x {text}" if clocks.count(text) > 1 else text for text in dict.fromkeys(clocks) if text
  ]
  if visits and not visits.peers and transport.servers > 1:
    parts.append(f"{transport.servers} servers")
  if not transport.overlap:
    parts.append("no overlap")
  elif curve.pattern.local:
    parts.append("messages first come, first served")
  if transport.overlap and transport.outer and any(not x.delay for x in curve.pattern.exchanges):
    parts.append("sent layer by layer during the last backward pass, which ddl does not do")
  return ", ".join(parts)


def _clock(message: Visits | ExchangePattern) -> str:
  """Describe period and delay; "" if the message is sent at every step without a delay."""
  period = message.period if isinstance(message, Visits) else message.steady
  return f"period {period}, delay {message.delay}" if period > 1 or message.delay else ""
