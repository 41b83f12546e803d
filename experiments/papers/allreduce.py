"""Published times of NCCL's all-reduce against `ddl.perf.collectives`, by the system they were measured on."""

import statistics
from collections.abc import Callable, Iterable

from ddl.perf import collectives
from ddl.perf.cluster import NCCL, NVLINK_LATENCY, LinkModel, NetworkModel
from experiments.papers.page import Config, Section, remarks, table

SPANS = {"to 64 KB": (0, 2**16), "256 KB to 4 MB": (2**18, 2**22), "from 16 MB": (2**24, 2**40)}  # bytes
Keep = Callable[[Config, int], bool]  # curve, bytes -> whether the point counts
SETS: dict[str, Keep] = {
  "fitted": lambda curve, _: curve.fitted,
  "held out": lambda curve, _: not curve.fitted,
  "held out, looked up after the fit": lambda curve, _: curve.late,
}


def section(config: Config) -> Section:
  """The median and the largest error of each set, and all points."""
  found = {name: errors(config, keep) for name, keep in SETS.items()}
  found |= {f"held out, {span}": errors(config, _within(*ends)) for span, ends in SPANS.items()}
  rows = [(name, *summed(each)) for name, each in found.items()]
  rows.append(("baseline: held out, textbook", *summed(errors(config, SETS["held out"], plain))))
  worst = max(_points(config, SETS["held out"]), key=lambda point: abs(point[3]))
  name, size, _, error = worst
  text = remarks(
    "allreduce", config=config, held=sum(not curve.fitted for curve in config.curves.values()),
    newer=summed(errors(config, lambda curve, _: not curve.fitted and not curve.older))[1],
    worst=f"{name}, {_bytes(size)} ({100 * error:+.0f} %)",
    apart=", ".join(f"{100 * error:.0f} % of {name}" for name, error in _far(config)),
  )  # fmt: skip
  head = ("points", "systems", "number", "median error", "largest")
  counts = [str(len({name for name, *_ in _points(config, keep)})) for keep in _keeps()]
  body = [(row[0], count, *row[1:]) for row, count in zip(rows, counts, strict=True)]
  fitted = f"{config.constants} constants on nine curves, and the latency of three fabrics on theirs."
  return Section(
    "NCCL: seconds of an all-reduce", "configs/reproduce_allreduce.py", fitted, [],
    remarks=[table(head, body), *text, _all(config)],
  )  # fmt: skip


def network(curve: Config) -> NetworkModel:
  """A curve's system."""
  inside = LinkModel(NVLINK_LATENCY, curve.nvlink)
  between = LinkModel(curve.latency, curve.between) if curve.nodes > 1 else inside
  library = NCCL if curve.ordered else NCCL.without("LL128")
  reduces = ("inside",) if curve.switch else ()
  return NetworkModel(between, inside, curve.per_node, reduces=reduces, library=library)


def seconds(curve: Config, nbytes: int) -> float:
  """Of NCCL, as predicted."""
  workers = curve.per_node * curve.nodes
  system = network(curve)
  assert system.library
  return min(collectives.library_all_reduces(nbytes, workers, system, system.library, not curve.alone).values())


def plain(curve: Config, nbytes: int) -> float:
  """Of the textbook's cheapest algorithm on the same links."""
  return collectives.all_reduce(nbytes, curve.per_node * curve.nodes, network(curve)._replace(library=None))


def errors(config: Config, keep: Keep, cost: Callable[[Config, int], float] = seconds) -> list[float]:
  """Absolute relative errors of the points of a set."""
  return [abs(error) for *_, error in _points(config, keep, cost)]


def summed(found: list[float]) -> tuple[str, str, str]:
  """Number, median and largest of errors."""
  return str(len(found)), f"{100 * statistics.median(found):.1f} %", f"{100 * max(found):.0f} %"


def _points(
  config: Config, keep: Keep, cost: Callable[[Config, int], float] = seconds
) -> Iterable[tuple[str, int, float, float]]:
  """(curve, bytes, seconds as published, error) of each point of a set."""
  for name, curve in config.curves.items():
    for size, published in zip(config.sizes, curve.us, strict=True):
      if published and keep(curve, size):
        yield name, size, published * 1e-6, cost(curve, size) / (published * 1e-6) - 1


def _within(least: int, most: int) -> Keep:
  return lambda curve, size: not curve.fitted and least <= size <= most


def _keeps() -> list[Keep]:
  return [*SETS.values(), *(_within(*ends) for ends in SPANS.values()), SETS["held out"]]


def _far(config: Config, most: float = 0.2) -> list[tuple[str, float]]:
  """Held-out curves whose median error is larger."""
  medians = {name: _median(config, name) for name, curve in config.curves.items() if not curve.fitted}
  return sorted(((name, error) for name, error in medians.items() if error > most), key=lambda each: -each[1])


def _median(config: Config, name: str) -> float:
  return statistics.median(errors(config, lambda curve, _: curve is config.curves[name]))


def _all(config: Config) -> str:
  """A table of all points: microseconds, and the error of the prediction."""
  body = []
  for name, curve in config.curves.items():
    found = {size: (s, error) for _, size, s, error in _points(config, lambda each, _, of=curve: each is of)}
    cells = [f"{_digits(1e6 * found[n][0])} ({100 * found[n][1]:+.0f} %)" if n in found else "-" for n in config.sizes]
    body.append((name, "fitted" if curve.fitted else "held out, later" if curve.late else "held out",
                 f"{100 * _median(config, name):.0f} %", *cells, curve.source))  # fmt: skip
  return table(("system", "set", "median error", *map(_bytes, config.sizes), "source"), body)


def _digits(value: float) -> str:
  return f"{value:.4g}" if value < 1e4 else f"{value:.0f}"


def _bytes(size: int) -> str:
  for power, name in ((30, "GB"), (20, "MB"), (10, "KB")):
    if size >= 2**power:
      return f"{size >> power} {name}"
  return f"{size} B"
