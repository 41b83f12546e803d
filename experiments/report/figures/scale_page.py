"""The page of `scale`: speed-up, efficiency and communication over the number of workers, as figures and a table."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ddl.perf.hardware import Cluster
from ddl.perf.hardware.network import Link
from ddl.perf.planning.scaling import Point
from ddl.perf.planning.scenario import Work
from ddl.perf.units import bytes_text, seconds_text
from experiments.costs.scale import text as scale_text
from experiments.costs.scale.curves import Curve
from experiments.report import templates
from experiments.report.figures import step_plot
from experiments.report.figures.picture import Picture, save_all
from experiments.report.figures.style import COLOURS, GRID, MARKERS, MUTED, PHONE, SLIDE, blank


class Chart(NamedTuple):
  """A figure over the number of workers."""

  name: str  # of its files, without the suffix
  title: str
  label: str
  value: Callable[[Point], float]
  shares: bool  # from 0 to 1


CHARTS = (
  Chart("speedup", "Speed-up over one worker", "speed-up", lambda point: point.speedup, False),
  Chart("efficiency", "Efficiency: speed-up per worker", "efficiency", lambda point: point.efficiency, True),
  Chart("communication", "Waiting for communication", "share of a step", lambda point: point.waiting, True),
)


def write(
  folder: Path, curves: Sequence[Curve], cluster: Cluster, work: Work, *, title: str, weak: bool, counted: str,
  jitter: float, command: str,
) -> Path:  # fmt: skip
  """Writes scale.html, and the pictures into figures/; returns the page's path.

  Args:
    counted: where the model's FLOP are from.
    command: that makes the page again.
  """
  folder.mkdir(parents=True, exist_ok=True)
  steps = [step_plot.picture(curve, work, cluster) for curve in curves]
  pictures = [*(picture_of(chart, curves) for chart in CHARTS), *(step for step in steps if step)]
  save_all(folder, pictures)
  head = scale_text.head(curves)
  text = templates.template("scale.html").render(
    title=title,
    weak=weak,
    cluster=cluster,
    verdicts=[(curve.algorithm, scale_text.verdict(curve)) for curve in curves],
    head=head,
    tables=[
      (curve.algorithm, scale_text.setting(curve), scale_text.rows(curve, cluster.network, len(head)))
      for curve in curves
    ],
    measured=any(curve.measured for curve in curves),
    losses=_losses(curves),
    pictures=pictures,
    facts=_facts(cluster, work, curves[0].largest, counted, jitter),
    flat=not cluster.efficiency.half and not weak,
    command=command,
  )
  path = folder / "scale.html"
  path.write_text(text, encoding="utf-8")
  return path


def _losses(curves: Sequence[Curve]) -> list[tuple[str, int, str, list[tuple[str, str]]]]:
  """For each curve's last point: algorithm, workers, seconds of a step, the share of it that each limit costs."""
  ends = [(curve.algorithm, curve.points[-1]) for curve in curves]
  return [
    (
      name,
      point.workers,
      seconds_text(point.seconds),
      [(limit, f"{100 * loss / point.seconds:.1f} %") for limit, loss in point.losses.items()],
    )
    for name, point in ends
  ]


def _facts(cluster: Cluster, work: Work, largest: float, counted: str, jitter: float) -> list[tuple[str, str]]:
  efficiency, network = cluster.efficiency, cluster.network
  curve = f"{efficiency.best:.4g}" + (f" b / (b + {efficiency.half:g}) with b examples" if efficiency.half else "")
  curve += f", and {efficiency.memory:.3g} of the memory bandwidth" if efficiency.memory < 1 else ""
  flop = sum(part.flop for part in work.parts)
  return [
    ("a worker", f"{cluster.device.peak / 1e12:.4g} TFLOP/s at its peak, of which a step reaches {curve}"),
    ("its memory", f"{bytes_text(cluster.device.memory)}, room for {largest:,} examples of a step"),
    ("between nodes", _link(network.between)),
    *([(f"inside a node of {network.per_node}", _link(network.inside))] if network.inside else []),
    ("the cluster's figures", cluster.source),
    ("the model", f"{flop / 1e9:.4g} GFLOP per example and step, {bytes_text(sum(work.nbytes))} ({counted})"),
    ("jitter of step times", f"{jitter:g} of the mean, lognormal" if jitter else "none"),
  ]


def _link(link: Link) -> str:
  return f"{seconds_text(link.latency)} and {bytes_text(link.bandwidth)}/s one way"


def picture_of(chart: Chart, curves: Sequence[Curve]) -> Picture:
  """Return the figure of a chart, with its description."""
  ends = "; ".join(
    f"{curve.algorithm} {chart.value(line_of(curve)[0]):.3g} to {chart.value(line_of(curve)[-1]):.3g}"
    for curve in curves
  )
  workers = [point.workers for point in line_of(curves[0])]
  alt = f"{chart.title} for {workers[0]} to {workers[-1]} workers: {ends}."
  points = [(c.algorithm, "predicted", p.workers, chart.value(p)) for c in curves for p in line_of(c)]
  points += [(c.algorithm, "measured", *point) for c in curves for point in measured_points(chart, c)]
  columns = ("algorithm", "seconds", "workers", chart.name)
  data = dict(zip(columns, map(list, zip(*points, strict=True)), strict=True))
  return Picture(chart.name, chart.title, alt, [], lambda wide: _draw(chart, curves, wide), data)


def line_of(curve: Curve) -> list[Point]:
  """Return the points that fit into memory; with a single number of workers also one worker, the base of speed-ups."""
  first = curve.possible[0]
  if len(curve.points) > 1 or first.workers == 1:
    return curve.possible
  return [first._replace(workers=1, speedup=1.0, efficiency=1.0, waiting=0.0), first]


def _draw(chart: Chart, curves: Sequence[Curve], wide: bool) -> Any:
  from matplotlib import ticker

  picture = blank(SLIDE if wide else PHONE)
  axes = picture.subplots()
  workers = sorted({point.workers for point in (*curves[0].points, *line_of(curves[0]))})
  if curves[0].points != curves[0].possible:  # the curves of all algorithms hold the same examples
    axes.axvspan(workers[0], curves[0].possible[0].workers, color=GRID, label="does not fit into memory")
  if not chart.shares:
    axes.plot(workers, workers, color=MUTED, linewidth=1, linestyle=(0, (2, 2)), label="ideal")
    axes.set_yscale("log", base=2)
    axes.yaxis.set_major_formatter(ticker.FuncFormatter(lambda value, _: f"{value:g}"))
  for i, curve in enumerate(curves):
    axes.plot(
      [point.workers for point in line_of(curve)], [chart.value(point) for point in line_of(curve)],
      color=COLOURS[i % len(COLOURS)],
      marker=MARKERS[i % len(MARKERS)], markersize=5 if wide else 4, linewidth=2,
      linestyle="-" if i < len(COLOURS) else "--", label=curve.algorithm,
    )  # fmt: skip
    if points := measured_points(chart, curve):
      axes.plot(
        *zip(*points, strict=True), linestyle="none", marker="o", markersize=9, fillstyle="none", markeredgewidth=1.5,
        color=COLOURS[i % len(COLOURS)], label=f"{curve.algorithm}, measured",
      )  # fmt: skip
  axes.set_xscale("log", base=2)
  axes.set_xticks(_ticks(workers, 8 if wide else 5), minor=False)
  axes.xaxis.set_major_formatter(ticker.FuncFormatter(lambda value, _: f"{value:g}"))
  axes.minorticks_off()
  if chart.shares:
    axes.set_ylim(0, 1.03)
    axes.yaxis.set_major_formatter(ticker.PercentFormatter(1.0, decimals=0, symbol=" %"))
  axes.set(xlabel="workers", ylabel=chart.label)
  axes.set_title(chart.title, loc="left")
  axes.grid(True)
  place = {"loc": "outside right upper"} if wide else {"loc": "outside lower left", "ncols": 2}
  picture.legend(frameon=False, **place)
  return picture


def measured_points(chart: Chart, curve: Curve) -> list[tuple[int, float]]:
  """Return (workers, speed-up or efficiency) of measured runs, relative to one worker; [] if that was not measured."""
  alone, one = curve.measured.get(1), curve.points[0]
  if alone is None or one.workers != 1 or chart.name == "communication":
    return []
  base = one.examples_per_second * one.seconds / alone
  points = [point for point in curve.points if point.workers in curve.measured]
  rates = {p.workers: p.examples_per_second * p.seconds / curve.measured[p.workers] for p in points}
  return [(n, rate / base / (n if chart.shares else 1)) for n, rate in rates.items()]


def _ticks(workers: Sequence[int], most: int) -> list[int]:
  """At most `most` of them, with the last one."""
  every = -(-len(workers) // most)
  return list(workers[::-1][::every])[::-1]
