"""Compare published times of NCCL's all-reduce with predictions of `ddl.perf.collectives`, by system."""

import statistics
from collections.abc import Callable, Iterable

from ddl.perf import collectives
from ddl.perf.cluster import NCCL, NVLINK_LATENCY, LinkModel, NetworkModel
from experiments.papers import page
from experiments.papers.page import Config, Section

PointFilter = Callable[[Config, int], bool]  # (curve, bytes) -> whether the point is in the set
Cost = Callable[[Config, int], float]  # (curve, bytes) -> seconds


def _within(least: int, most: int) -> PointFilter:
  return lambda curve, size: not curve.fitted and least <= size <= most


SETS: dict[str, PointFilter] = {
  "fitted": lambda curve, _: curve.fitted,
  "held out": lambda curve, _: not curve.fitted,
  "held out, looked up after the fit": lambda curve, _: curve.late,
  "held out, to 64 KB": _within(0, 2**16),
  "held out, 256 KB to 4 MB": _within(2**18, 2**22),
  "held out, from 16 MB": _within(2**24, 2**40),
}


def section(config: Config) -> Section:
  """Build the section with the median and the maximum error of each set, and all points."""
  costs: dict[str, tuple[PointFilter, Cost]] = {name: (keep, seconds) for name, keep in SETS.items()}
  costs["baseline: held out, textbook"] = SETS["held out"], plain
  sets = [
    (name, len({system for system, *_ in _points(config, keep)}), errors(config, keep, cost))
    for name, (keep, cost) in costs.items()
  ]
  curves = {}  # name: {bytes: (seconds as published, error)}
  for name, curve in config.curves.items():
    points = _points(config, lambda other, _, curve=curve: other is curve)
    curves[name] = {size: (published, error) for _, size, published, error in points}
  medians = {name: statistics.median(abs(error) for _, error in points.values()) for name, points in curves.items()}
  newer = errors(config, lambda curve, _: not curve.fitted and not curve.older)
  worst = max(_points(config, SETS["held out"]), key=lambda point: abs(point[3]))
  return page.read(
    "allreduce", config=config, sets=sets, newer=newer, worst=worst, medians=medians, curves=curves,
    bytes_text=_bytes_text,
  )  # fmt: skip


def network(curve: Config) -> NetworkModel:
  """Build the network model of a curve's system."""
  inside = LinkModel(NVLINK_LATENCY, curve.nvlink)
  between = LinkModel(curve.latency, curve.between) if curve.nodes > 1 else inside
  library = NCCL if curve.ordered else NCCL.without("LL128")
  reduces = ("inside",) if curve.switch else ()
  return NetworkModel(between, inside, curve.per_node, reduces=reduces, library=library)


def seconds(curve: Config, nbytes: int) -> float:
  """Predict the seconds of NCCL's all-reduce."""
  workers = curve.per_node * curve.nodes
  system = network(curve)
  assert system.library
  return min(collectives.library_all_reduces(nbytes, workers, system, system.library, not curve.alone).values())


def plain(curve: Config, nbytes: int) -> float:
  """Predict the seconds of the cheapest textbook algorithm on the links of the curve's system."""
  return collectives.all_reduce(nbytes, curve.per_node * curve.nodes, network(curve)._replace(library=None))


def errors(config: Config, keep: PointFilter, cost: Cost = seconds) -> list[float]:
  """Return the absolute relative errors of the points in a set."""
  return [abs(error) for *_, error in _points(config, keep, cost)]


def _points(config: Config, keep: PointFilter, cost: Cost = seconds) -> Iterable[tuple[str, int, float, float]]:
  """Yield (curve, bytes, published seconds, relative error) of each point in a set."""
  for name, curve in config.curves.items():
    for size, published in zip(config.sizes, curve.us, strict=True):
      if published and keep(curve, size):
        yield name, size, published * 1e-6, cost(curve, size) / (published * 1e-6) - 1


def _bytes_text(size: int) -> str:
  for power, name in ((30, "GB"), (20, "MB"), (10, "KB")):
    if size >= 2**power:
      return f"{size >> power} {name}"
  return f"{size} B"
