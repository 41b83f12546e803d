"""What `scale` says of its curves: the table's rows, and where a curve stops and why."""

from collections.abc import Sequence

from ddl.perf.comm.patterns import Exchange, Visits
from ddl.perf.hardware.network import Network
from ddl.perf.planning import scaling
from ddl.perf.planning.scaling import Point
from experiments.costs.scale_curves import Curve

EFFICIENCY = (  # of strong scaling; with weak scaling both are over the same step
  "efficiency: speed-up per worker, over one that computes all examples;\n"
  "that of `plan` is over a step on as many examples per worker that exchanges nothing"
)
HEAD = ("nodes", "workers", "s/step", "examples/s", "speed-up", "efficiency", "communication", "limited by")


def head(curves: Sequence[Curve]) -> tuple[str, ...]:
  """HEAD, and what was measured where something was."""
  return HEAD + ("measured s/step", "error") * any(curve.measured for curve in curves)


def rows(curve: Curve, network: Network, width: int) -> list[tuple[str, ...]]:
  """Its points as words, of `head`, which has `width` columns."""
  return [(*_row(curve, point, network), *_against(curve, point))[:width] for point in curve.points]


def _against(curve: Curve, point: Point) -> tuple[str, str]:
  """Measured, and the prediction's error."""
  took = curve.measured.get(point.workers)
  return (f"{took:.4g}", f"{100 * (point.seconds / took - 1):+.1f} %") if took else ("-", "-")


def _row(curve: Curve, point: Point, network: Network) -> tuple[str, ...]:
  """A point as words, of HEAD; without figures where it does not fit."""
  if not curve.fits(point):
    room = f"memory: {curve.largest:,} of {point.examples:,} examples fit"
    return (f"{network.nodes(point.workers):,}", f"{point.workers:,}", *"-----", room)
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
  """Where it stops scaling, and what costs most there; from how many workers on the examples fit."""
  points = curve.possible
  told = _scales(points)
  if len(points) == len(curve.points):
    return told
  fewer = curve.points[-len(points) - 1]
  room = f"{fewer.workers:,} would have {fewer.examples:,} examples each, of which memory holds {curve.largest:,}"
  return f"fits from {points[0].workers:,} workers on ({room}) and {told}"


def _scales(points: Sequence[Point]) -> str:
  stop, first, last = scaling.stops(points), points[0], points[-1]
  top = max(point.speedup for point in points)
  best = next(point for point in points if point.speedup >= 0.995 * top)  # more workers add next to nothing
  if stop is None:
    if last.workers == 1:
      return "computes alone: there is nothing to scale."
    end = "scales to the end: " if len(points) > 1 else ""
    told = f"{end}{last.workers:,} workers are {last.speedup:.3g} times as fast as one"
    return f"{told}; {_most(last)}." if last.limit != "nothing" else f"{told}."
  if best is first and first.workers == 1:
    slowest = f"{stop.workers:,} take {first.speedup / stop.speedup:.3g} times as long as one for the same examples"
    return f"does not scale: {slowest}, and {_most(stop)}."
  if points.index(best) > points.index(stop):  # it slackens, and goes on
    told = f"scales poorly from {stop.workers:,} workers on, where {_most(stop)}"
    return f"{told}; {best.workers:,} workers are the fastest, {best.speedup:.3g} times as fast as one."
  before = points[points.index(stop) - 1]
  gain = stop.speedup / before.speedup
  if gain >= 1.5:  # over many workers at once: much, and still too little
    little = f"as fast as one, and those added bring less than half of what they could: {_most(stop)}."
    told = f"{stop.workers:,} workers are {stop.speedup:.3g} times {little}"
    start = f"scales to {before.workers:,} workers, {before.speedup:.3g} times as fast as one; "
    return f"scales poorly: {told}" if before.workers == 1 else f"{start}{told}"
  change = f"{stop.workers:,} are only {100 * (gain - 1):.0f} % faster" if gain > 1 else f"{stop.workers:,} are slower"
  change = change if abs(gain - 1) >= 0.005 else f"{stop.workers:,} are no faster"
  if before.workers == 1:
    return f"does not scale: {change}: {_most(stop)}."
  return f"scales to {before.workers:,} workers, {before.speedup:.3g} times as fast as one; {change}: {_most(stop)}."


def _most(point: Point) -> str:
  if point.limit == "nothing":
    return "no single thing costs much"
  verb = "cost" if point.limit in ("small batches", "stragglers", "taking turns") else "costs"
  return f"{point.limit} {verb} most, {100 * point.losses[point.limit] / point.seconds:.0f} % of a step"


ORDERED = {"fifo": "first come, first served", "priority": "by priority: the first layers' before others"}


def setting(curve: Curve) -> str:
  """What it sends when, and how, as words."""
  visits, how = curve.pattern.visits, curve.transport
  clocks = [visits] if visits else curve.pattern.exchanges
  told = [_clock(each) for each in clocks]
  parts = [f"{told.count(each)} x {each}" if told.count(each) > 1 else each for each in dict.fromkeys(told) if each]
  parts += [f"{how.servers} servers"] if visits and not visits.peers and how.servers > 1 else []
  if not how.overlap:
    parts.append("no overlap")
  elif curve.pattern.local:
    parts.append(f"messages {ORDERED[how.order]}")
  return ", ".join(parts)


def _clock(each: Visits | Exchange) -> str:
  """Its period and delay, unless it is at every step."""
  period = each.period if isinstance(each, Visits) else each.steady
  return f"period {period}, delay {each.delay}" if period > 1 or each.delay else ""
