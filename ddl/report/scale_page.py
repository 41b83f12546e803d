"""Write the page of the command `scale`: charts against the number of workers, and timelines of one step."""

from collections.abc import Callable, Sequence
from itertools import pairwise
from operator import attrgetter
from pathlib import Path
from typing import Any, NamedTuple

import altair as alt
import pandas as pd

from ddl.costs import scale
from ddl.costs.scale import Curve
from ddl.perf import scaling, units
from ddl.perf.cluster import Cluster
from ddl.perf.scaling import ScalingPoint, Scenario, StepWork
from ddl.perf.timeline import Timeline
from ddl.perf.units import seconds_text
from ddl.report import page
from ddl.report.figure import COLOURS, GRID, MUTED, Figure, by_label, label_format, save_all, specification
from ddl.report.reader import DataFrame

KINDS = {"backward": COLOURS[0], "forward": COLOURS[5], "message, hidden": COLOURS[2], "message, exposed": COLOURS[1]}


class Bar(NamedTuple):
  """A span of a layer's computation or message, in seconds from the start of the backward pass."""

  kind: str  # a key of KINDS
  layer: int
  start: float
  end: float


def bars(shown: Timeline) -> list[Bar]:
  """Return the bars of one step in the steady state.

  They show the timeline's second-to-last backward pass, its messages, and the forward pass of the step after it.
  """
  step = max(event.step for event in shown.events) - 1
  parts = {"weights": ("backward", step), "inputs": ("backward", step), "forward": ("forward", step + 1)}
  computing = [e for e in shown.events if e.kind in parts and e.step == parts[e.kind][1]]
  zero = min(e.start for e in computing)
  out = [Bar(parts[e.kind][0], e.layers[0], e.start - zero, e.end - zero) for e in computing]
  edges = sorted((bar.start, bar.end) for bar in out)
  waits = [(a[1], b[0]) for a, b in pairwise(edges) if b[0] > a[1]]
  for event in (e for e in shown.events if e.kind == "message" and e.step == step):
    start, end = event.start - zero, event.end - zero
    cuts = sorted({start, end, *(t for wait in waits for t in wait if start < t < end)})
    for a, b in pairwise(cuts):
      waited = any(since <= (a + b) / 2 < until for since, until in waits)
      out += [Bar("message, exposed" if waited else "message, hidden", layer, a, b) for layer in event.layers]
  return out


def picture(curve: Curve, work: StepWork, cluster: Cluster) -> Figure | None:
  """Return the figure of one step's timeline, for the largest number of workers and without jitter.

  Return None for a single worker, or for an algorithm that does not send gradients layer by layer.
  """
  point = curve.points[-1]
  if not curve.pattern.local or point.workers == 1:
    return None
  shown = scaling.gradients_of(Scenario(curve.pattern, work, cluster, point.workers, point.examples, curve.transport))
  subtitle = f"A step of {curve.algorithm} on {point.workers:,} workers, layer by layer"
  step, sent, hidden = map(seconds_text, (shown.seconds, shown.sent, shown.hidden))
  caption = f"A step takes {step}; its messages take {sent}, of which {hidden} are hidden behind computation."
  title = f"{curve.algorithm} hides {hidden} of {sent} of messages behind computation"
  data = pd.DataFrame(bars(shown))
  return Figure(f"step_{curve.algorithm}", title, subtitle, f"{subtitle}. {caption}", [caption],
                lambda narrow: _drawn_step(data), data)  # fmt: skip


def _drawn_step(data: DataFrame) -> dict[str, Any]:
  """Return the Vega-Lite specification of a timeline: a row per layer, its computation above its message."""
  top, layers = data["layer"] - 0.42 + 0.42 * data["kind"].str.contains("message"), int(data["layer"].max())
  colours = alt.Scale(domain=list(KINDS), range=list(KINDS.values()))
  time = alt.Axis(title="from the start of the backward pass", labelExpr=label_format("seconds"), tickCount=6)
  rows = alt.Axis(title="layer", values=list(range(1, layers + 1)), format="d", grid=False)
  first_on_top = alt.Scale(domain=[layers + 0.6, 0.4], nice=False)
  drawn = alt.Chart(alt.NamedData("bars")).mark_rect().encode(
    x=alt.X("start:Q", axis=time), x2="end:Q", y=alt.Y("top:Q", axis=rows, scale=first_on_top), y2="bottom:Q",
    color=alt.Color("kind:N", legend=alt.Legend(symbolType="square"), scale=colours),
  ).properties(height=260)  # fmt: skip
  return specification(drawn, bars=data.assign(top=top, bottom=top + 0.42))


class ScaleChart(NamedTuple):
  """A chart of a quantity against the number of workers."""

  name: str  # file name without the suffix
  title: str
  label: str
  value: Callable[[ScalingPoint], float]
  shares: bool  # whether the values are shares in [0, 1]
  extreme: str = "highest"  # whether the best value is the "highest" or "lowest"


CHARTS = (
  ScaleChart("speedup", "Speed-up over one worker", "speed-up", attrgetter("speedup"), False),
  ScaleChart("efficiency", "Efficiency: speed-up per worker", "efficiency", attrgetter("efficiency"), True),
  ScaleChart("communication", "Waiting for communication", "share of communication", attrgetter("waiting"), True,
             "lowest"),
)  # fmt: skip


def write(folder: Path, curves: Sequence[Curve], cluster: Cluster, work: StepWork, **facts: Any) -> Path:
  """Write scale.html and figures/ (as SVG, PDF and CSV) to a folder and return the path of the page.

  facts: the template's other variables: title, weak, counted, jitter and command.
  """
  folder.mkdir(parents=True, exist_ok=True)
  steps = [picture(curve, work, cluster) for curve in curves]
  pictures = [*(picture_of(chart, curves) for chart in CHARTS), *filter(None, steps)]
  save_all(folder, pictures, ("svg", "pdf", "csv"))
  variables = {"cluster": cluster, "curves": curves, "work": work, "text": scale, "units": units}
  path = folder / "scale.html"
  path.write_text(page.template("scale.html").render(facts, pictures=pictures, **variables), encoding="utf-8")
  return path


def picture_of(chart: ScaleChart, curves: Sequence[Curve]) -> Figure:
  """Return the figure of a chart, with a line per algorithm."""
  ends = {curve.algorithm: [chart.value(point) for point in line_of(curve)] for curve in curves}
  texts = "; ".join(f"{name} {values[0]:.3g} to {values[-1]:.3g}" for name, values in ends.items())
  workers = [point.workers for point in line_of(curves[0])]
  description = f"{chart.title} for {workers[0]} to {workers[-1]} workers: {texts}."
  points = [(c.algorithm, "predicted", p.workers, chart.value(p)) for c in curves for p in line_of(c)]
  points += [(c.algorithm, "measured", *point) for c in curves for point in measured_points(chart, c)]
  data = pd.DataFrame(points, columns=["algorithm", "seconds", "workers", chart.name])
  best = (min if chart.extreme == "lowest" else max)(ends, key=lambda name: ends[name][-1])
  value = f"{100 * ends[best][-1]:.3g} %" if chart.shares else f"{ends[best][-1]:.3g}"
  title = f"{best} has the {chart.extreme} {chart.label} at {workers[-1]:,} workers ({value})"
  return Figure(chart.name, title, chart.title, description, [], lambda narrow: _drawn(chart, curves, data), data)


def line_of(curve: Curve) -> list[ScalingPoint]:
  """Return a curve's points that fit into memory.

  If the curve has only one point, put a point for one worker, with a speed-up of 1, before it.
  """
  first = curve.possible[0]
  if len(curve.points) > 1 or first.workers == 1:
    return curve.possible
  return [first._replace(workers=1, speedup=1.0, efficiency=1.0, waiting=0.0), first]


def _drawn(chart: ScaleChart, curves: Sequence[Curve], data: DataFrame) -> dict[str, Any]:
  """Return the Vega-Lite specification: lines against the number of workers, with rings at measured values."""
  workers = sorted({point.workers for point in (*curves[0].points, *line_of(curves[0]))})
  axis = alt.Axis(title="workers", values=workers, format=",d", labelOverlap="parity")
  x = alt.X("workers:Q", axis=axis, scale=alt.Scale(type="log", base=2, domain=[workers[0], workers[-1]], nice=False))
  scale = alt.Scale(domain=[0, 1]) if chart.shares else alt.Scale(type="log", base=2)
  y = alt.Y("y:Q", axis=alt.Axis(title=chart.label, format=".0%" if chart.shares else "~g"), scale=scale)
  channels = by_label("algorithm", [curve.algorithm for curve in curves])
  base = alt.Chart(data.rename(columns={chart.name: "y"})).encode(x=x, y=y, **channels)
  layers = [base.transform_filter(alt.datum.seconds == "predicted").mark_line(strokeWidth=2, point={"size": 25}),
            base.transform_filter(alt.datum.seconds == "measured").mark_point(size=110, strokeWidth=1.5)]  # fmt: skip
  if curves[0].points != curves[0].possible:  # batches are equal, so this holds for all algorithms
    span = {"workers": [workers[0]], "to": [curves[0].possible[0].workers], "text": "does not fit into memory"}
    area = alt.Chart(pd.DataFrame(span)).encode(x="workers:Q")
    text = area.mark_text(align="left", baseline="top", dx=4, color=MUTED).encode(y=alt.value(4), text="text")
    layers = [area.mark_rect(color=GRID).encode(x2="to:Q"), text, *layers]
  if not chart.shares:
    ideal = alt.Chart(pd.DataFrame({"workers": workers, "y": workers})).encode(x="workers:Q", y="y:Q")
    layers.insert(0, ideal.mark_line(color=MUTED, strokeDash=[2, 3], strokeWidth=1))
  return specification(alt.layer(*layers))


def measured_points(chart: ScaleChart, curve: Curve) -> list[tuple[int, float]]:
  """Return (workers, speed-up or efficiency) of each measured run, relative to the measured run of one worker.

  Return [] without a measured run of one worker, and for the chart of communication.
  """
  seconds, one = curve.measured.get(1), curve.points[0]
  if seconds is None or one.workers != 1 or chart.name == "communication":
    return []
  base = one.examples_per_second * one.seconds / seconds
  points = [point for point in curve.points if point.workers in curve.measured]
  rates = {p.workers: p.examples_per_second * p.seconds / curve.measured[p.workers] for p in points}
  return [(n, rate / base / (n if chart.shares else 1)) for n, rate in rates.items()]
