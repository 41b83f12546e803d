"""Words of `scale`: the table's rows, where a curve stops scaling and why, and each algorithm's setting."""

from collections.abc import Sequence

from ddl.perf.comm.patterns import Exchange, Visits
from ddl.perf.hardware.network import Network
from ddl.perf.planning import scaling
from ddl.perf.planning.scaling import Point
from ddl.perf.units import rate_text
from experiments.costs.scale.curves import Curve

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


def _clock(each: Visits | Exchange) -> str:
  """Period and delay, unless it is at every step."""
  period = each.period if isinstance(each, Visits) else each.steady
  return f"period {period}, delay {each.delay}" if period > 1 or each.delay else ""
