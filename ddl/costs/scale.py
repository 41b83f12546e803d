"""Scaling curves: numbers of nodes, a model's work and memory, each algorithm's messages, and the table in words."""

import math
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from itertools import pairwise
from types import MappingProxyType
from typing import Any, NamedTuple

import optax

from ddl.algorithms import COLLECTIVE
from ddl.config.catalog import entry, keyword_arguments, make_algorithm, named
from ddl.costs.cluster_clock import pattern_of, vector
from ddl.models import MODELS
from ddl.names import short_name
from ddl.perf.hardware import Cluster
from ddl.perf.hardware.cluster import Network
from ddl.perf.patterns import ExchangePattern, Pattern, Visits
from ddl.perf.planning import scaling, scenario
from ddl.perf.planning.batch import Job, largest_fitting
from ddl.perf.planning.placement import Placed, place, table_job
from ddl.perf.planning.scaling import Point, Recorded
from ddl.perf.planning.scenario import Transport, Work
from ddl.perf.step.memory import StepMemory, largest_batch, step_memory
from ddl.perf.tables import TABLES
from ddl.perf.units import bytes_text, rate_text
from ddl.run.progress import bar

MOST = 65_536  # workers or nodes
MOST_GRAPH = 4096  # of an algorithm on a graph, which holds matrices [workers, workers]


class Curve(NamedTuple):
  """Points of one algorithm."""

  algorithm: str
  pattern: Pattern  # on the last point's workers
  transport: Transport
  points: list[Point]
  measured: Mapping[int, float] = MappingProxyType({})  # workers -> seconds per step of real runs
  largest: float = math.inf  # examples of a worker's step that its memory holds

  def fits(self, point: Point) -> bool:
    """Whether a worker's memory holds the point's step."""
    return point.examples <= self.largest

  @property
  def possible(self) -> list[Point]:
    """The points that fit."""
    return [point for point in self.points if self.fits(point)]


def counts(flag: str, text: str) -> list[int]:
  """Return the numbers of "1,2,4", or of "1,2,...,128": doubled if that meets the end, else in equal steps."""
  parts = [part.strip() for part in text.split(",")]
  dots = [i for i, part in enumerate(parts) if part in ("...", "…")]
  try:
    numbers = [int(part) for i, part in enumerate(parts) if i not in dots]
  except ValueError as error:
    raise ValueError(f"--{flag}={text} is not a list of integers such as 1,2,4 or 1,2,...,128") from error
  if dots:
    if len(dots) > 1 or dots[0] < 2 or dots[0] != len(parts) - 2:
      raise ValueError(f"--{flag}={text}: ... stands between two numbers at least and the last one, as in 1,2,...,128")
    numbers = [*numbers[:-1], *_between(flag, *numbers[-3:])]
  if not all(1 <= n <= MOST for n in numbers) or any(a >= b for a, b in pairwise(numbers)):
    raise ValueError(f"--{flag}={text}: numbers from 1 to {MOST:,}, each larger than the one before")
  return numbers


def _between(flag: str, first: int, second: int, last: int) -> list[int]:
  """Return the numbers after the second, up to the last."""
  if first > 0 and second == 2 * first:
    doubled = [second * 2**i for i in range(1, last.bit_length())]
    if last in doubled:
      return doubled[: doubled.index(last) + 1]
  step = second - first
  if step < 1 or last <= second or (last - second) % step or (last - second) // step > 200:
    raise ValueError(f"--{flag}: {first},{second},... reaches {last} neither by doubling nor in up to 200 equal steps")
  return list(range(second + step, last + 1, step))


def job(name: str, examples: int, width: int = 4) -> tuple[Work, Callable[[float], int], str, str]:
  """Return (a model's work by layers, bytes of memory -> examples of a step that fit, the source of both, title).

  Args:
    name: of a layer table, or else of a model of `ddl.models` by XLA's count, on synthetic data with its own sizes.
    examples: of the step that XLA counts.
    width: bytes of a value of a table's feature maps in memory.
  """
  named("model", TABLES | MODELS, name)
  if name in TABLES:
    memory = step_memory(TABLES[name], extra_copies=1, width=width)  # with momentum, as in `plan`
    work = scenario.work(TABLES[name])
    return work, partial(largest_batch, memory), "layer table, 6 FLOP per multiply-accumulate", name
  from ddl.config import default_experiment
  from ddl.costs import step_cost  # here: a table needs no compiler
  from ddl.costs.workloads import SIZES, synthetic
  from ddl.run.build import build

  model = {"name": name, **SIZES.get(name, ({}, []))[0]}
  components = build(default_experiment(model=model, workers=1, batch=examples), synthetic(name))
  made = step_cost.experiment_job(components)
  work, title = scenario.work_of(made.step, made.params_bytes), step_cost.model_title(components)
  return work, partial(largest_fitting, made), f"XLA's count of ddl's own {title}", title


def placed(name: str, work: Work, cluster: Cluster) -> Placed:
  """Return a layer table's job, or one of these parts, with the efficiency that is known of it on the cluster."""
  if name in TABLES:
    return table_job(name, cluster)
  return place(Job(name, sum(work.nbytes), work.parts, StepMemory(0.0, 0.0)), cluster)


def work_and_room(made: Job) -> tuple[Work, Callable[[float], int], str]:
  """Return (work by layers, bytes of memory -> examples of a step that fit, title) of a placed table."""
  return scenario.work_of(made.step, made.params_bytes), partial(largest_batch, made.memory), made.title


def enough(workers: Sequence[int], made: Job) -> list[int]:
  """Return the numbers of workers that can hold a job's states; ValueError if none does."""
  found = [count for count in workers if count >= made.split]
  if not found:
    raise ValueError(
      f"{made.title}: its states are split over {made.split} devices; give --workers={made.split} or more"
    )
  return found


def settings(names: Sequence[str], *, period: int | None, delay: int | None) -> dict[str, dict[str, int]]:
  """Return, by algorithm, those of period and delay that are given and that it takes; ValueError if none takes one."""
  if not names:
    raise ValueError("--algorithms is empty; name some, with commas between, as `python run.py list` shows them")
  given = {key: value for key, value in (("period", period), ("delay", delay)) if value is not None}
  specs = {name: entry("algorithm", name) for name in names}
  found = {name: {key: given[key] for key in given if key in spec.hyper} for name, spec in specs.items()}
  for key, value in given.items():
    if not any(key in chosen for chosen in found.values()):
      raise ValueError(f"--{key}={value} is read by none of {', '.join(names)}")
  return found


def recorded(name: str, *nbytes: float, **settings: Any) -> Recorded:
  """Return an algorithm's messages for parameters of so many bytes by layer, with these and else its own settings."""

  sizes: list[tuple[float, float]] = []  # bytes of a visit among several workers, which are those among any

  @cache
  def pattern(workers: int) -> Pattern:
    spec = entry("algorithm", name)
    if workers > MOST_GRAPH and name in COLLECTIVE and spec.taxonomy.pattern == "peer to peer":
      raise ValueError(f"{name} with {workers:,} workers: its graph is made for up to {MOST_GRAPH:,}; give fewer")
    unset = {key: 1 for key, declared in spec.hyper.items() if declared.default is None}  # such as a first step
    chosen = keyword_arguments("algorithm", {"name": name, **unset, **settings}, workers)
    algorithm = make_algorithm(name, optax.sgd(0.1), workers, chosen)
    found = pattern_of(algorithm, vector(*nbytes), workers, *sizes)
    if found.visits and workers > 1 and not sizes:
      sizes.append((found.visits.up, found.visits.down))
    return found

  return pattern


def curves(
  work: Work, cluster: Cluster, workers: Sequence[int], algorithms: Mapping[str, Mapping[str, int]],
  transport: Transport, *, batch: int, weak: bool, jitter: float, largest: float = math.inf,
) -> list[Curve]:  # fmt: skip
  """Return a curve for each algorithm with its settings, in their order.

  Raises:
    ValueError: as `scaling.curve`, for invalid settings, an order without effect, or if no point's examples fit.
  """
  made = []
  with bar("", len(algorithms) * len(workers)) as progress:
    for name, chosen in algorithms.items():
      sent = recorded(name, *work.nbytes, **chosen)

      def shown(count: int, sent: Recorded = sent, name: str = name) -> Pattern:
        progress.set_description(f"{short_name(name)}, {count:,} workers")
        progress.update()
        return sent(count)

      points = scaling.curve(shown, work, cluster, workers, batch=batch, weak=weak, jitter=jitter, transport=transport)
      made.append(Curve(short_name(name), sent(max(workers)), transport, points, largest=largest))
  if transport.order != "fifo" and not (transport.overlap and any(curve.pattern.local for curve in made)):
    named = ", ".join(curve.algorithm for curve in made)
    raise ValueError(f"--order={transport.order} changes nothing: no gradients leave layer by layer in {named} here")
  last = made[0].points[-1]
  if not made[0].possible:
    most = largest if weak else largest * last.workers
    raise ValueError(
      f"{last.examples:,} examples on each of {last.workers:,} workers do not fit: a worker's memory "
      f"({bytes_text(cluster.device.memory)}) holds {largest:,}; give --batch={most} at most"
      + (" or more workers" if not weak else "")
    )
  return made


EFFICIENCY = (  # of strong scaling; with weak scaling both are over the same step
  "efficiency: speed-up per worker, over one that computes all examples;\n"
  "that of `plan` is over a step on as many examples per worker that exchanges nothing"
)
HEAD = ("nodes", "workers", "s/step", "examples/s", "speed-up", "efficiency", "communication", "limited by")
ORDERED = {"fifo": "first come, first served", "priority": "by priority: the first layers' before others"}


def head(curves: Sequence[Curve]) -> tuple[str, ...]:
  """Return HEAD, and the columns of measurements where there are any."""
  return HEAD + ("measured s/step", "error") * any(curve.measured for curve in curves)


def rows(curve: Curve, network: Network, width: int) -> list[tuple[str, ...]]:
  """Return the points as cells of `head`, which has `width` columns."""
  return [(*_row(curve, point, network), *_measured(curve, point))[:width] for point in curve.points]


def _measured(curve: Curve, point: Point) -> tuple[str, str]:
  took = curve.measured.get(point.workers)
  return (f"{took:.4g}", f"{100 * (point.seconds / took - 1):+.1f} %") if took else ("-", "-")


def _row(curve: Curve, point: Point, network: Network) -> tuple[str, ...]:
  """Cells of HEAD; without figures where the examples do not fit."""
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


def verdict(curve: Curve) -> str:
  """Where the curve stops scaling, and what costs most there; from how many workers on the examples fit."""
  points = curve.possible
  text = _scales(points)
  if len(points) == len(curve.points):
    return text
  fewer = curve.points[-len(points) - 1]
  room = f"{fewer.workers:,} would have {fewer.examples:,} examples each, of which memory holds {curve.largest:,}"
  return f"fits from {points[0].workers:,} workers on ({room}) and {text}"


def _scales(points: Sequence[Point]) -> str:
  stop, last = scaling.stops(points), points[-1]
  if last.workers == 1:
    return "computes alone: there is nothing to scale."
  if stop is None:
    return f"{'scales to the end: ' if len(points) > 1 else ''}{_speedup(last)}; {_most(last)}."
  top = max(point.speedup for point in points)
  best = next(point for point in points if point.speedup >= 0.995 * top)  # more workers add next to nothing
  if points.index(best) > points.index(stop):
    return f"scales poorly from {stop.workers:,} workers on, where {_most(stop)}; at best {_speedup(best)}."
  before = points[points.index(stop) - 1]
  start = "does not scale" if before.workers == 1 else f"scales to {before.workers:,} workers ({before.speedup:.3g}x)"
  return f"{start}: {_speedup(stop)}, and {_most(stop)}."


def _speedup(point: Point) -> str:
  return f"{point.workers:,} workers are {point.speedup:.3g} times as fast as one"


def _most(point: Point) -> str:
  if point.limit == "nothing":
    return "no single limit costs much"
  return f"the largest loss is {100 * point.losses[point.limit] / point.seconds:.0f} % of a step: {point.limit}"


def setting(curve: Curve) -> str:
  """Clocks and transport of an algorithm."""
  visits, transport = curve.pattern.visits, curve.transport
  clocks = [_clock(each) for each in ([visits] if visits else curve.pattern.exchanges)]
  parts = [
    f"{clocks.count(each)} x {each}" if clocks.count(each) > 1 else each for each in dict.fromkeys(clocks) if each
  ]
  if visits and not visits.peers and transport.servers > 1:
    parts.append(f"{transport.servers} servers")
  if not transport.overlap:
    parts.append("no overlap")
  elif curve.pattern.local:
    parts.append(f"messages {ORDERED[transport.order]}")
  return ", ".join(parts)


def _clock(each: Visits | ExchangePattern) -> str:
  """Period and delay, unless it is at every step."""
  period = each.period if isinstance(each, Visits) else each.steady
  return f"period {period}, delay {each.delay}" if period > 1 or each.delay else ""
