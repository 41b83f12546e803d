"""Describe scaling curves as tables and sentences for the `scale` command."""

import math
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

from ddl.perf.cluster import NetworkModel
from ddl.perf.patterns import ExchangePattern, Pattern, Visits
from ddl.perf.scaling import ScalingPoint, Transport, expected_rates, stops
from ddl.perf.units import rate_text

EFFICIENCY = (  # only for strong scaling; with weak scaling both definitions agree
  "efficiency: speed-up per worker, relative to one worker that computes all examples;\n"
  "`plan` compares with a step on the same examples per worker without an exchange"
)
HEAD = ("nodes", "workers", "s/step", "examples/s", "speed-up", "efficiency", "communication", "limited by")
ORDERED = {"fifo": "first come, first served", "priority": "by priority: first layers first"}


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
    parts.append(f"messages {ORDERED[transport.order]}")
  if transport.overlap and transport.outer and any(not x.delay for x in curve.pattern.exchanges):
    parts.append("sent layer by layer during the last backward pass, which ddl does not do")
  return ", ".join(parts)


def _clock(message: Visits | ExchangePattern) -> str:
  """Describe period and delay; "" if the message is sent at every step without a delay."""
  period = message.period if isinstance(message, Visits) else message.steady
  return f"period {period}, delay {message.delay}" if period > 1 or message.delay else ""
