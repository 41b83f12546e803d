"""Published times of NCCL's all-reduce against `ddl.perf.collectives`, by the system they were measured on."""

import statistics
from collections.abc import Callable, Iterable

from ddl.perf import collectives
from ddl.perf.cluster import NCCL, NVLINK_LATENCY, LinkModel, NetworkModel
from experiments.papers import page
from experiments.papers.page import Config, Section, summed, table

Keep = Callable[[Config, int], bool]  # curve, bytes -> whether the point counts
Cost = Callable[[Config, int], float]  # curve, bytes -> seconds


def _within(least: int, most: int) -> Keep:
  return lambda curve, size: not curve.fitted and least <= size <= most


SETS: dict[str, Keep] = {
  "fitted": lambda curve, _: curve.fitted,
  "held out": lambda curve, _: not curve.fitted,
  "held out, looked up after the fit": lambda curve, _: curve.late,
  "held out, to 64 KB": _within(0, 2**16),
  "held out, 256 KB to 4 MB": _within(2**18, 2**22),
  "held out, from 16 MB": _within(2**24, 2**40),
}


def section(config: Config) -> Section:
  """Return the median and the largest error of each set, and all points."""
  costs: dict[str, tuple[Keep, Cost]] = {name: (keep, seconds) for name, keep in SETS.items()}
  costs["baseline: held out, textbook"] = SETS["held out"], plain
  rows = [
    (name, str(len({system for system, *_ in _points(config, keep)})), *summed(errors(config, keep, cost)))
    for name, (keep, cost) in costs.items()
  ]
  name, size, _, error = max(_points(config, SETS["held out"]), key=lambda point: abs(point[3]))
  return page.read(
    "allreduce", config=config, newer=summed(errors(config, lambda curve, _: not curve.fitted and not curve.older))[1],
    worst=f"{name}, {_bytes(size)} ({100 * error:+.0f} %)",
    apart=", ".join(f"{100 * error:.0f} % of {name}" for name, error in _far(config)), points=_all(config),
    summary=table(("points", "systems", "number", "median error", "largest"), rows),
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


def errors(config: Config, keep: Keep, cost: Cost = seconds) -> list[float]:
  """Absolute relative errors of the points of a set."""
  return [abs(error) for *_, error in _points(config, keep, cost)]


def _points(config: Config, keep: Keep, cost: Cost = seconds) -> Iterable[tuple[str, int, float, float]]:
  """(curve, bytes, seconds as published, error) of each point of a set."""
  for name, curve in config.curves.items():
    for size, published in zip(config.sizes, curve.us, strict=True):
      if published and keep(curve, size):
        yield name, size, published * 1e-6, cost(curve, size) / (published * 1e-6) - 1


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
    measured = {size: (s, error) for _, size, s, error in _points(config, lambda each, _, of=curve: each is of)}
    cells = [
      f"{_digits(1e6 * measured[n][0])} ({100 * measured[n][1]:+.0f} %)" if n in measured else "-" for n in config.sizes
    ]
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
