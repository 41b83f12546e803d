"""What `scale` asks of the cost model: numbers of nodes, a model by its layers, an algorithm's schedule; its words."""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from types import MappingProxyType
from typing import Any, NamedTuple

import optax

from ddl.algorithms import COLLECTIVE, SERVER
from ddl.models import MODELS
from ddl.perf import scaling, tables
from ddl.perf.clusters import Cluster
from ddl.perf.network import Network
from ddl.perf.scaling import Point, Schedule, Work
from experiments.parts import hyper, named

MOST = 65_536  # workers or nodes


class Curve(NamedTuple):
  """An algorithm's."""

  algorithm: str
  schedule: Schedule
  points: list[Point]
  measured: Mapping[int, float] = MappingProxyType({})  # workers -> seconds per step of real runs


def counts(flag: str, text: str) -> list[int]:
  """The numbers of "1,2,4", or of "1,2,...,128": doubled if that meets the end, else in equal steps.

  Raises:
    ValueError: one line, for anything else.
  """
  parts = [part.strip() for part in text.split(",")]
  dots = [i for i, part in enumerate(parts) if part in ("...", "…")]
  try:
    numbers = [int(part) for i, part in enumerate(parts) if i not in dots]
  except ValueError as error:
    raise ValueError(f"--{flag}={text} is not a list of whole numbers such as 1,2,4 or 1,2,...,128") from error
  if dots:
    if len(dots) > 1 or dots[0] < 2 or dots[0] != len(parts) - 2:
      raise ValueError(f"--{flag}={text}: ... stands between two numbers at least and the last one, as in 1,2,...,128")
    numbers = [*numbers[:-1], *_between(flag, *numbers[-3:])]
  if not all(1 <= n <= MOST for n in numbers) or any(a >= b for a, b in pairwise(numbers)):
    raise ValueError(f"--{flag}={text}: numbers from 1 to {MOST:,}, each larger than the one before")
  return numbers


def _between(flag: str, first: int, second: int, last: int) -> list[int]:
  """What comes after the second, up to the last."""
  if first > 0 and second == 2 * first:
    doubled = [second]
    while doubled[-1] < last:
      doubled.append(2 * doubled[-1])
    if doubled[-1] == last:
      return doubled[1:]
  step = second - first
  if step < 1 or last <= second or (last - second) % step or (last - second) // step > 200:
    raise ValueError(f"--{flag}: {first},{second},... comes to {last} neither by doubling nor in up to 200 equal steps")
  return list(range(second + step, last + 1, step))


def job(name: str, examples: int) -> tuple[Work, str]:
  """A model's FLOP and bytes by layers, and where they are from: its layer table, or XLA's count of our own model.

  Args:
    name: of a layer table, or else of a model of `ddl.models`, on synthetic data and with its own sizes.
    examples: of the step that XLA counts.

  Raises:
    ValueError: for an unknown name, with all that are known.
  """
  if name in tables.TABLES:
    return scaling.work(tables.TABLES[name]), "layer table, 6 FLOP per multiply-accumulate"
  named("model", tables.TABLES | MODELS, name)
  from experiments import compiled, leaves  # only now: a table needs no compiler
  from experiments import config as configs
  from experiments.workloads import SIZES, synthetic

  config = configs.base()
  config.algorithm.name, config.workers, config.batch = "sync_sgd", 1, examples
  config.model.update({"name": name, **SIZES.get(name, ({}, []))[0]})
  experiment = configs.build(config, synthetic(name))
  flop = compiled.compiled_step(experiment, examples).flop / examples
  found = leaves.leaves(experiment.model, compiled.batch_shapes(experiment, examples))
  work = Work(tuple(leaf.share * flop for leaf in found), tuple(float(leaf.nbytes) for leaf in found))
  sizes = ", ".join(f"{k} {v}" for k, v in experiment.resolved["model"].items() if k != "name")
  return work, f"XLA's count of ddl's own {name}" + (f" ({sizes})" if sizes else "")


def schedules(
  names: Sequence[str], *, period: int | None, delay: int | None, servers: int, overlap: bool, bucket: float = 25e6
) -> dict[str, Schedule]:
  """The algorithms' own period and delay; those given, where an algorithm has one as a setting.

  Raises:
    ValueError: for an unknown algorithm, values that it can't have, or a value that no algorithm takes.
  """
  if not names:
    raise ValueError("--algorithms is empty; name some, with commas between, as `python run.py list` shows them")
  found, given, taken = {}, {"period": period, "delay": delay}, set()
  for name in names:
    chosen = settings(name, period, delay)
    algorithm, _ = _algorithm(name, **chosen)
    taken |= set(chosen)
    found[name] = Schedule(
      period=algorithm.period,
      delay=algorithm.delay,
      round_robin=getattr(algorithm, "round_robin", False),
      servers=servers,
      overlap=overlap,
      probability=getattr(algorithm, "peer_probability", 1.0),
      bucket=bucket,
    )
  for key, value in given.items():
    if value is not None and key not in taken:
      raise ValueError(f"--{key}={value} is read by none of {', '.join(names)}")
  return found


def settings(name: str, period: int | None, delay: int | None) -> dict[str, int]:
  """Those of period and delay that are given and that the algorithm takes."""
  given = {"period": period, "delay": delay}
  return {key: value for key, value in given.items() if value is not None and key in _algorithm(name)[1]}


def _algorithm(name: str, **settings: Any) -> tuple[Any, Any]:
  """(the algorithm, its hyper-parameters), of four workers; their number changes no schedule."""
  spec = named("algorithm", COLLECTIVE | SERVER, name)
  unset = {key: 1 for key, declared in spec.hyper.items() if declared.default is None}  # such as a first step
  chosen = hyper(spec, {"name": name, **unset, **settings}, 4)
  where = {"axis_name": "workers"} if name in COLLECTIVE else {"workers": 4}
  return spec.factory(optax.sgd(0.1), **chosen, **where), spec.hyper


def curves(
  work: Work, cluster: Cluster, workers: Sequence[int], found: dict[str, Schedule], *, batch: int, weak: bool,
  jitter: float,
) -> list[Curve]:  # fmt: skip
  """One for each algorithm. Raises as `scaling.curve`."""
  return [
    Curve(
      name,
      schedule,
      scaling.curve(name, work, cluster, workers, batch=batch, weak=weak, schedule=schedule, jitter=jitter),
    )
    for name, schedule in found.items()
  ]


HEAD = ("nodes", "workers", "s/step", "examples/s", "speed-up", "efficiency", "communication", "limited by")


def head(curves: Sequence[Curve]) -> tuple[str, ...]:
  """HEAD, and what was measured where something was."""
  return HEAD + ("measured s/step", "error") * any(curve.measured for curve in curves)


def rows(curve: Curve, network: Network, width: int) -> list[tuple[str, ...]]:
  """Its points as words, of `head`, which has `width` columns."""
  return [(*_row(point, network), *_against(curve, point))[:width] for point in curve.points]


def _against(curve: Curve, point: Point) -> tuple[str, str]:
  """Measured, and the prediction's error."""
  took = curve.measured.get(point.workers)
  return (f"{took:.4g}", f"{100 * (point.seconds / took - 1):+.1f} %") if took else ("-", "-")


def _row(point: Point, network: Network) -> tuple[str, ...]:
  """A point as words, of HEAD."""
  rate = point.examples_per_second
  return (
    f"{network.nodes(point.workers):,}",
    f"{point.workers:,}",
    f"{point.seconds:.4g}",
    f"{rate:.4g}" if rate < 1000 else f"{rate:,.0f}",
    f"{point.speedup:.3g}x" if point.speedup < 1000 else f"{point.speedup:,.0f}x",
    f"{100 * point.efficiency:.1f} %",
    f"{100 * max(0.0, point.waiting):.1f} %",
    point.limit,
  )


def verdict(curve: Curve) -> str:
  """Where it stops scaling, and what costs most there."""
  stop, last = scaling.stops(curve.points), curve.points[-1]
  first, best = curve.points[0], max(curve.points, key=lambda point: point.speedup)
  if stop is not None and best is first and first.workers == 1:
    slowest = f"{stop.workers:,} take {first.speedup / stop.speedup:.3g} times as long as one for the same examples"
    return f"does not scale: {slowest}, and {_most(stop)}."
  if stop is not None and curve.points.index(best) > curve.points.index(stop):  # it slackens, and goes on
    told = f"scales poorly from {stop.workers:,} workers on, where {_most(stop)}"
    return f"{told}; {best.workers:,} workers are the fastest, {best.speedup:.3g} times as fast as one."
  if stop is None:
    told = f"scales to the end: {last.workers:,} workers are {last.speedup:.3g} times as fast as one"
    return f"{told}; {_most(last)}." if last.limit != "nothing" else f"{told}."
  before = curve.points[curve.points.index(stop) - 1]
  gain = stop.speedup / before.speedup
  change = f"{stop.workers:,} are {100 * (gain - 1):.0f} % faster" if gain > 1 else f"{stop.workers:,} are slower"
  change = change if abs(gain - 1) >= 0.005 else f"{stop.workers:,} are no faster"
  return f"scales to {before.workers:,} workers, {before.speedup:.3g} times as fast as one; {change}: {_most(stop)}."


def _most(point: Point) -> str:
  if point.limit == "nothing":
    return "no single thing costs much"
  verb = "cost" if point.limit in ("small batches", "stragglers", "taking turns") else "costs"
  return f"{point.limit} {verb} most, {100 * point.losses[point.limit] / point.seconds:.0f} % of a step"


def setting(curve: Curve) -> str:
  """Its schedule as words."""
  schedule = curve.schedule
  parts = [f"period {schedule.period}", f"delay {schedule.delay}"] if schedule.period > 1 or schedule.delay else []
  parts += [f"{schedule.servers} servers"] if schedule.servers > 1 else []
  parts += [] if schedule.overlap else ["no overlap"]
  return ", ".join(parts)
