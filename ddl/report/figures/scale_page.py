"""The page of `scale`: speed-up, efficiency and communication over the number of workers, and one step by layers."""

from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from ddl.perf import scale_text, scaling
from ddl.perf.cluster import Cluster, LinkModel
from ddl.perf.scale_text import Curve
from ddl.perf.scaling import ScalingPoint, Scenario, StepWork
from ddl.perf.timeline import Timeline
from ddl.perf.units import bytes_text, seconds_text
from ddl.report import templates
from ddl.report.figures.picture import Picture, save_all
from ddl.report.figures.style import COLOURS, GRID, MARKERS, MUTED, PHONE, SLIDE, blank

KINDS = {"backward": COLOURS[0], "forward": COLOURS[5], "message, hidden": COLOURS[2], "message, exposed": COLOURS[1]}


class Bar(NamedTuple):
  """Computation or message of a layer, seconds from the start of the backward pass."""

  kind: str  # of KINDS
  layer: int
  start: float
  end: float


def bars(shown: Timeline) -> list[Bar]:
  """Return the bars of one step in the steady state: from the last backward pass but one to the next."""
  step = max(event.step for event in shown.events) - 1
  parts = {"weights": ("backward", step), "inputs": ("backward", step), "forward": ("forward", step + 1)}
  computing = [e for e in shown.events if e.kind in parts and e.step == parts[e.kind][1]]
  zero = min(float(e.start[0]) for e in computing)
  out = [Bar(parts[e.kind][0], e.layers[0], float(e.start[0]) - zero, float(e.end[0]) - zero) for e in computing]
  edges = sorted((bar.start, bar.end) for bar in out)
  waits = [(a[1], b[0]) for a, b in pairwise(edges) if b[0] > a[1]]
  for event in (e for e in shown.events if e.kind == "exchange" and e.step == step):
    start, end = float(event.start[0]) - zero, float(event.end[0]) - zero
    cuts = sorted({start, end, *(t for wait in waits for t in wait if start < t < end)})
    for a, b in pairwise(cuts):
      waited = any(since <= (a + b) / 2 < until for since, until in waits)
      out += [Bar("message, exposed" if waited else "message, hidden", layer, a, b) for layer in event.layers]
  return out


def picture(curve: Curve, work: StepWork, cluster: Cluster) -> Picture | None:
  """Draw the curve's last point, without jitter; None for an algorithm that sends no gradients layer by layer."""
  point = curve.points[-1]
  if not curve.pattern.local or point.workers == 1:
    return None
  shown = scaling.timeline_of(Scenario(curve.pattern, work, cluster, point.workers, point.examples, curve.transport))
  title = f"A step of {curve.algorithm} on {point.workers:,} workers, layer by layer"
  took, sent, hidden = map(seconds_text, (shown.seconds, shown.hidden + shown.exposed, shown.hidden))
  caption = f"A step takes {took}; its messages take {sent}, of which {hidden} are hidden behind computation."
  found = bars(shown)
  data = {name: [getattr(bar, name) for bar in found] for name in Bar._fields}
  name, alt = f"step_{curve.algorithm}", f"{title}. {caption}"
  return Picture(name, title, alt, [caption], lambda wide: _draw_step(title, found, wide), data)


def _draw_step(title: str, found: list[Bar], wide: bool) -> Any:
  from matplotlib import ticker

  figure = blank(SLIDE if wide else PHONE)
  axes = figure.subplots()
  scale, unit = (1.0, "s") if max(bar.end for bar in found) >= 1 else (1e3, "ms")
  for kind, colour in KINDS.items():
    mine = [bar for bar in found if bar.kind == kind]
    above = 0.42 if "message" in kind else 0.0  # a layer's computation is drawn above its message
    axes.barh(
      [bar.layer + 0.58 + above for bar in mine], [scale * (bar.end - bar.start) for bar in mine], height=0.42,
      left=[scale * bar.start for bar in mine], align="edge", color=colour, label=kind,
    )  # fmt: skip
  axes.set_ylim(max(bar.layer for bar in found) + 1.5, 0.5)  # the first layer on top
  axes.yaxis.set_major_locator(ticker.MaxNLocator(integer=True, min_n_ticks=1))
  axes.set(xlabel=f"{unit} from the start of the backward pass", ylabel="layer")
  axes.set_title(title if wide else title.partition(",")[0], loc="left")
  axes.grid(True, axis="x")
  place = {"loc": "outside right upper"} if wide else {"loc": "outside lower left", "ncols": 2}
  figure.legend(frameon=False, **place)
  return figure


class Chart(NamedTuple):
  """A figure over the number of workers."""

  name: str  # of its files, without the suffix
  title: str
  label: str
  value: Callable[[ScalingPoint], float]
  shares: bool  # from 0 to 1


CHARTS = (
  Chart("speedup", "Speed-up over one worker", "speed-up", lambda point: point.speedup, False),
  Chart("efficiency", "Efficiency: speed-up per worker", "efficiency", lambda point: point.efficiency, True),
  Chart("communication", "Waiting for communication", "share of a step", lambda point: point.waiting, True),
)


def write(
  folder: Path, curves: Sequence[Curve], cluster: Cluster, work: StepWork, *, title: str, weak: bool, counted: str,
  jitter: float, command: str,
) -> Path:  # fmt: skip
  """Writes scale.html, and the pictures into figures/; returns the page's path.

  Args:
    counted: where the model's FLOP are from.
    command: that makes the page again.
  """
  folder.mkdir(parents=True, exist_ok=True)
  steps = [picture(curve, work, cluster) for curve in curves]
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


def _facts(cluster: Cluster, work: StepWork, largest: float, counted: str, jitter: float) -> list[tuple[str, str]]:
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


def _link(link: LinkModel) -> str:
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


def line_of(curve: Curve) -> list[ScalingPoint]:
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
