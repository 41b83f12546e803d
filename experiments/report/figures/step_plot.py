"""The figure of one step: each layer's computation and its message, hidden behind computation or exposed."""

from itertools import pairwise
from typing import Any, NamedTuple

from ddl.perf.hardware import Cluster
from ddl.perf.planning import scenario
from ddl.perf.planning.scenario import Scenario, Work
from ddl.perf.step.timeline import Timeline
from ddl.perf.units import seconds_text
from experiments.costs.scale.curves import Curve
from experiments.report.figures.picture import Picture
from experiments.report.figures.style import COLOURS, PHONE, SLIDE, blank

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


def picture(curve: Curve, work: Work, cluster: Cluster) -> Picture | None:
  """Draw the curve's last point, without jitter; None for an algorithm that sends no gradients layer by layer."""
  point = curve.points[-1]
  if not curve.pattern.local or point.workers == 1:
    return None
  shown = scenario.timeline_of(Scenario(curve.pattern, work, cluster, point.workers, point.examples, curve.transport))
  title = f"A step of {curve.algorithm} on {point.workers:,} workers, layer by layer"
  took, sent, hidden = map(seconds_text, (shown.seconds, shown.hidden + shown.exposed, shown.hidden))
  caption = f"A step takes {took}; its messages take {sent}, of which {hidden} are hidden behind computation."
  found = bars(shown)
  data = {name: [getattr(bar, name) for bar in found] for name in Bar._fields}
  name, alt = f"step_{curve.algorithm}", f"{title}. {caption}"
  return Picture(name, title, alt, [caption], lambda wide: _draw(title, found, wide), data)


def _draw(title: str, found: list[Bar], wide: bool) -> Any:
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
