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
from ddl.report import page
from ddl.report.figure import (
  COLOURS,
  GRID,
  MUTED,
  NARROW,
  WIDE,
  Figure,
  by_label,
  label_format,
  save_all,
  specification,
)
from ddl.report.reader import DataFrame

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


def picture(curve: Curve, work: StepWork, cluster: Cluster) -> Figure | None:
  """Draw the curve's last point, without jitter; None for an algorithm that sends no gradients layer by layer."""
  import pandas as pd

  point = curve.points[-1]
  if not curve.pattern.local or point.workers == 1:
    return None
  shown = scaling.timeline_of(Scenario(curve.pattern, work, cluster, point.workers, point.examples, curve.transport))
  subtitle = f"A step of {curve.algorithm} on {point.workers:,} workers, layer by layer"
  took, sent, hidden = map(seconds_text, (shown.seconds, shown.hidden + shown.exposed, shown.hidden))
  caption = f"A step takes {took}; its messages take {sent}, of which {hidden} are hidden behind computation."
  title = f"{curve.algorithm} hides {hidden} of {sent} of messages behind computation"
  data = pd.DataFrame(bars(shown))
  return Figure(f"step_{curve.algorithm}", title, subtitle, f"{subtitle}. {caption}", [caption],
                lambda narrow: _drawn_step(data, narrow), data)  # fmt: skip


def _drawn_step(data: DataFrame, narrow: bool) -> dict[str, Any]:
  """Return a row per layer: its computation above its message."""
  import altair as alt

  top = data["layer"] - 0.42 + 0.42 * data["kind"].str.contains("message")
  legend = alt.Legend(orient="bottom", columns=2 if narrow else 4, symbolType="square")
  colour = alt.Color("kind:N", legend=legend, scale=alt.Scale(domain=list(KINDS), range=list(KINDS.values())))
  time = alt.Axis(title="from the start of the backward pass", labelExpr=label_format("seconds"), tickCount=6)
  layers = int(data["layer"].max())
  rows = alt.Axis(title="layer", values=list(range(1, layers + 1)), format="d", grid=False)
  limits = [layers + 0.6, 0.4]  # the first layer on top
  drawn = alt.Chart(alt.NamedData("bars")).mark_rect().encode(
    x=alt.X("start:Q", axis=time), x2="end:Q", y=alt.Y("top:Q", axis=rows, scale=alt.Scale(domain=limits, nice=False)),
    y2="bottom:Q", color=colour,
  ).properties(width=NARROW - 50 if narrow else WIDE - 60, height=260)  # fmt: skip
  return specification(drawn, bars=data.assign(top=top, bottom=top + 0.42))


class ScaleChart(NamedTuple):
  """A figure over the number of workers."""

  name: str  # of its files, without the suffix
  title: str
  label: str
  value: Callable[[ScalingPoint], float]
  shares: bool  # from 0 to 1
  extreme: str = "highest"  # of the best algorithm


CHARTS = (
  ScaleChart("speedup", "Speed-up over one worker", "speed-up", lambda point: point.speedup, False),
  ScaleChart("efficiency", "Efficiency: speed-up per worker", "efficiency", lambda point: point.efficiency, True),
  ScaleChart(
    "communication", "Waiting for communication", "share of communication", lambda point: point.waiting, True, "lowest"
  ),
)


def write(
  folder: Path, curves: Sequence[Curve], cluster: Cluster, work: StepWork, *, title: str, weak: bool, counted: str,
  jitter: float, command: str,
) -> Path:  # fmt: skip
  """Write scale.html, and the pictures into figures/; return the page's path.

  Args:
    counted: where the model's FLOP are from.
    command: that makes the page again.
  """
  folder.mkdir(parents=True, exist_ok=True)
  steps = [picture(curve, work, cluster) for curve in curves]
  pictures = [*(picture_of(chart, curves) for chart in CHARTS), *(step for step in steps if step)]
  save_all(folder, pictures)
  head = scale_text.head(curves)
  text = page.template("scale.html").render(
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


def picture_of(chart: ScaleChart, curves: Sequence[Curve]) -> Figure:
  """Return the figure of a chart, with its description."""
  import pandas as pd

  ends = {curve.algorithm: [chart.value(point) for point in line_of(curve)] for curve in curves}
  texts = "; ".join(f"{name} {values[0]:.3g} to {values[-1]:.3g}" for name, values in ends.items())
  workers = [point.workers for point in line_of(curves[0])]
  alt = f"{chart.title} for {workers[0]} to {workers[-1]} workers: {texts}."
  points = [(c.algorithm, "predicted", p.workers, chart.value(p)) for c in curves for p in line_of(c)]
  points += [(c.algorithm, "measured", *point) for c in curves for point in measured_points(chart, c)]
  data = pd.DataFrame(points, columns=["algorithm", "seconds", "workers", chart.name])
  best = (min if chart.name == "communication" else max)(ends, key=lambda name: ends[name][-1])
  value = f"{100 * ends[best][-1]:.3g} %" if chart.shares else f"{ends[best][-1]:.3g}"
  title = f"{best} has the {chart.extreme} {chart.label} at {workers[-1]:,} workers ({value})"
  return Figure(chart.name, title, chart.title, alt, [], lambda narrow: _drawn(chart, curves, data, narrow), data)


def line_of(curve: Curve) -> list[ScalingPoint]:
  """Return the points that fit into memory; with a single number of workers also one worker, the base of speed-ups."""
  first = curve.possible[0]
  if len(curve.points) > 1 or first.workers == 1:
    return curve.possible
  return [first._replace(workers=1, speedup=1.0, efficiency=1.0, waiting=0.0), first]


def _drawn(chart: ScaleChart, curves: Sequence[Curve], data: DataFrame, narrow: bool) -> dict[str, Any]:
  """Return lines over the numbers of workers, with rings where steps were measured."""
  import altair as alt
  import pandas as pd

  workers = sorted({point.workers for point in (*curves[0].points, *line_of(curves[0]))})
  names = [curve.algorithm for curve in curves]
  channels = by_label("algorithm", names, alt.Legend(orient="bottom", columns=2 if narrow else 4))
  axis = alt.Axis(title="workers", values=workers, format=",d", labelOverlap="parity")
  x = alt.X("workers:Q", axis=axis, scale=alt.Scale(type="log", base=2, domain=[workers[0], workers[-1]], nice=False))
  scale = alt.Scale(domain=[0, 1]) if chart.shares else alt.Scale(type="log", base=2)
  y = alt.Y("y:Q", axis=alt.Axis(title=chart.label, format=".0%" if chart.shares else "~g"), scale=scale)
  base = alt.Chart(data.rename(columns={chart.name: "y"})).encode(x=x, y=y, **channels)
  predicted = base.transform_filter(alt.datum.seconds == "predicted")
  layers = [predicted.mark_line(strokeWidth=2, point={"size": 25}),
            base.transform_filter(alt.datum.seconds == "measured").mark_point(size=110, strokeWidth=1.5)]  # fmt: skip
  if curves[0].points != curves[0].possible:  # the curves of all algorithms hold the same examples
    span = pd.DataFrame(
      {"workers": [workers[0]], "to": [curves[0].possible[0].workers], "text": "does not fit into memory"}
    )
    area = alt.Chart(span).encode(x="workers:Q", x2="to:Q")
    text = alt.Chart(span).mark_text(align="left", baseline="top", dx=4, color=MUTED).encode(
      x="workers:Q", y=alt.value(4), text="text")  # fmt: skip
    layers = [area.mark_rect(color=GRID), text, *layers]
  if not chart.shares:
    ideal = pd.DataFrame({"workers": workers, "y": workers})
    layers.insert(
      0, alt.Chart(ideal).mark_line(color=MUTED, strokeDash=[2, 3], strokeWidth=1).encode(x="workers:Q", y="y:Q")
    )
  drawn = alt.layer(*layers).properties(width=NARROW - 50 if narrow else WIDE - 60, height=220 if narrow else 300)
  return specification(drawn)


def measured_points(chart: ScaleChart, curve: Curve) -> list[tuple[int, float]]:
  """Return (workers, speed-up or efficiency) of measured runs, relative to one worker; [] if that was not measured."""
  seconds, one = curve.measured.get(1), curve.points[0]
  if seconds is None or one.workers != 1 or chart.name == "communication":
    return []
  base = one.examples_per_second * one.seconds / seconds
  points = [point for point in curve.points if point.workers in curve.measured]
  rates = {p.workers: p.examples_per_second * p.seconds / curve.measured[p.workers] for p in points}
  return [(n, rate / base / (n if chart.shares else 1)) for n, rate in rates.items()]
