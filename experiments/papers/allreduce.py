"""Compare published times of all-reduces with predictions of `ddl.perf.collectives`, by library and system.

The split into fitted and held-out curves is by system: no cluster has curves in both sets. A curve is excluded if its
source reports a fault, if the arrays were in host memory, or if the bandwidth of its links is unknown. Times are those
of in-place all-reduces where a source has them, because out-of-place times may include connection setup.
"""

import csv
import statistics
import tomllib
from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path
from typing import NamedTuple

from ddl.perf import collectives
from ddl.perf.cluster import INFINIBAND_LATENCY, LIBRARIES, NVLINK_LATENCY, LinkModel, NetworkModel
from experiments.papers import page
from experiments.papers.page import Section

DATA = Path(__file__).with_name("published_all_reduces")
SWITCHES = ("H100", "B200")  # devices with NVLink switches that reduce
XGMI_LATENCY = 0.5e-6  # seconds; assumed, as that of NVLink


class Curve(NamedTuple):
  """The published times of one system; published_all_reduces.toml describes the fields."""

  library: str
  seconds: dict[int, float]  # by bytes
  inside: str
  bandwidth: float  # bytes per second inside a node, one way
  source: str
  per_node: int
  nodes: int = 1
  between: float = 0.0
  cards: int = 0
  switch: bool = True
  alone: bool = False
  older: bool = False
  fitted: bool = False


PointFilter = Callable[[Curve, int], bool]  # (curve, bytes) -> whether the point is in the set
Cost = Callable[[Curve, int], float]  # (curve, bytes) -> seconds


def _within(least: int, most: int) -> PointFilter:
  return lambda curve, size: not curve.fitted and least <= size <= most


SETS: dict[str, PointFilter] = {
  "fitted": lambda curve, _: curve.fitted,
  "held out": lambda curve, _: not curve.fitted,
  "held out, without older software": lambda curve, _: not (curve.fitted or curve.older),
  "held out, to 64 KB": _within(0, 2**16),
  "held out, 256 KB to 4 MB": _within(2**18, 2**22),
  "held out, from 16 MB": _within(2**24, 2**40),
}


@cache
def curves() -> dict[str, Curve]:
  """Read the published curves, by name of the system."""
  with DATA.with_suffix(".csv").open(newline="") as file:
    rows = {
      row.pop("system"): {int(n): float(us) * 1e-6 for n, us in row.items() if us} for row in csv.DictReader(file)
    }
  tables = tomllib.loads(DATA.with_suffix(".toml").read_text(encoding="utf-8"))
  links = tables.pop("inside")
  return {
    name: Curve(library, rows[name], bandwidth=links[system["inside"]], **system)
    for library, systems in tables.items()
    for name, system in systems.items()
  }


def section() -> Section:
  """Build the section with the median and the maximum error of each set, of each library, and all points."""
  costs: dict[str, tuple[PointFilter, Cost]] = {name: (keep, seconds) for name, keep in SETS.items()}
  costs["baseline: held out, textbook"] = SETS["held out"], plain
  sets = [
    (name, len({system for system, *_ in points(keep)}), errors(keep, cost)) for name, (keep, cost) in costs.items()
  ]
  table = {}  # name: {bytes: (seconds as published, error)}
  for name, curve in curves().items():
    table[name] = {n: (took, error) for _, n, took, error in points(lambda other, _, curve=curve: other is curve)}
  medians = {name: statistics.median(abs(error) for _, error in row.values()) for name, row in table.items()}
  worst = max(points(SETS["held out"]), key=lambda point: abs(point[3]))
  return page.read(
    "allreduce", sets=sets, groups=groups(), libraries=LIBRARIES, worst=worst, medians=medians, table=table,
    curves=curves(), sizes=sorted({n for curve in curves().values() for n in curve.seconds}), bytes_text=_bytes_text,
  )  # fmt: skip


def groups() -> dict[str, list[tuple[int, list[float]]]]:
  """Return group -> number of curves and absolute errors, of its fitted and of its held-out curves."""
  names = dict.fromkeys(map(_group, curves().values()))
  return {name: [_summary(name, fitted) for fitted in (True, False)] for name in names}


def _group(curve: Curve) -> str:
  return f"nccl: {curve.inside}" if curve.library == "nccl" else curve.library


def _summary(group: str, fitted: bool) -> tuple[int, list[float]]:
  compared = [*points(lambda curve, _: (_group(curve), curve.fitted) == (group, fitted))]
  return len({name for name, *_ in compared}), [abs(error) for *_, error in compared]


def network(curve: Curve) -> NetworkModel:
  """Build the network model of a curve's system."""
  inside = LinkModel(XGMI_LATENCY if curve.library == "rccl" else NVLINK_LATENCY, curve.bandwidth)
  between = LinkModel(INFINIBAND_LATENCY, curve.between * 1e9) if curve.nodes > 1 else inside
  return NetworkModel(
    between,
    inside if curve.per_node > 1 else None,
    curve.per_node,
    card=between.bandwidth / (curve.cards or curve.per_node) if curve.nodes > 1 else None,
    reduces=("inside",) if curve.switch and curve.inside in SWITCHES else (),
    library=LIBRARIES[curve.library],
  )


def seconds(curve: Curve, nbytes: int) -> float:
  """Predict the seconds of the library's all-reduce."""
  workers, library = curve.per_node * curve.nodes, LIBRARIES[curve.library]
  return min(collectives.library_all_reduces(nbytes, workers, network(curve), library, not curve.alone).values())


def plain(curve: Curve, nbytes: int) -> float:
  """Predict the seconds of the cheapest textbook algorithm on the links of the curve's system."""
  return collectives.all_reduce(nbytes, curve.per_node * curve.nodes, network(curve)._replace(library=None))


def errors(keep: PointFilter, cost: Cost = seconds) -> list[float]:
  """Return the absolute relative errors of the points in a set."""
  return [abs(error) for *_, error in points(keep, cost)]


def points(keep: PointFilter, cost: Cost = seconds) -> Iterable[tuple[str, int, float, float]]:
  """Yield (system, bytes, published seconds, relative error) of each point in a set."""
  for name, curve in curves().items():
    for size, published in curve.seconds.items():
      if keep(curve, size):
        yield name, size, published, cost(curve, size) / published - 1


def _bytes_text(size: int) -> str:
  for power, name in ((30, "GB"), (20, "MB"), (10, "KB")):
    if size >= 2**power:
      return f"{size >> power} {name}"
  return f"{size} B"
