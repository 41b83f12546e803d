"""Published steps on single devices against predicted ones: the summary of the page, and all of them on another."""

import statistics
from collections.abc import Sequence
from functools import cache

from ddl.perf.convolution import choose, modelled, other_seconds
from ddl.perf.device import Efficiency, chips, step_seconds
from ddl.perf.device_step import FORMS, KINDS, Shares, device_step, extra, fastest, flop, kind_of
from ddl.perf.layers import is_map_scale, parts
from ddl.perf.units import percent, seconds_text
from experiments.papers import published_steps
from experiments.papers.page import Section, remarks, table
from experiments.papers.published_steps import (
  PredictedStep,
  PublishedStep,
  convolution_shares,
  network,
  points,
  predict,
  role,
  shares_of,
  sources,
)

TITLE = "Device steps: published against predicted"
ROLES = {
  "fitted": "fitted",
  "network": "held out: other networks",
  "device": "held out: other devices",
  "run": "held out: other sizes and programs",
}
HALF = Efficiency(0.5)  # of the peak, and all of the memory bandwidth: what was assumed of every device


def section() -> Section:
  """The summary."""
  found = results()
  held = [abs(r.error) for r in found if r.role != "fitted"]
  values = {
    "points": len(found),
    "devices": len({r.point.device for r in found}),
    "held": len(held),
    "median": _percent(held),
    "largest": f"{100 * max(held):.0f} %",
    "summary": table(("kind", "format", "points", "number", "median error", "largest"), _summary(found)),
    "program": table(("step", "measured", *PROGRAM), [_program(point) for point in _program_points()]),
    "medians": ", ".join(f"{name} {_percent([abs(e) for e in errors])}" for name, errors in _by_column().items()),
    "kepler": _kepler(),
    "why": table(WHY, [_why(name) for name in ("vgg16", "resnet50", "inception_v3")]),
  }
  return Section(TITLE, "ddl/perf/devices.toml", "the shares below", [], remarks=remarks("device_steps", **values))


def page(command: str) -> str:
  """All steps, on a page of their own."""
  head = f"# {TITLE}\n\nMade by `{command}`; do not edit. What the columns mean, and what comes out, is on"
  head += " [Reproduction](reproduction.md). Error is predicted / measured - 1, of the seconds of a step.\n"
  origins = table(("source", "what it is"), [(name, source["text"]) for name, source in sources().items()])
  body = ["device", "format", "step", "of devices", "measured", "predicted", "error", "used as", "source"]
  return "\n".join([head, origins, "", table(body, [_cells(result) for result in results()]), ""])


@cache
def results() -> list[PredictedStep]:
  """All points with what is predicted."""
  return published_steps.results()


def _cells(result: PredictedStep) -> list[str]:
  point = result.point
  return [
    chips()[point.device].title, FORMS[point.form], point.text, str(point.devices), seconds_text(point.seconds),
    seconds_text(result.predicted), f"{100 * result.error:+.1f} %", ROLES[result.role], point.source,
  ]  # fmt: skip


def _summary(found: Sequence[PredictedStep]) -> list[tuple[str, ...]]:
  rows = []
  groups = dict.fromkeys((kind_of(network(r.point.network)), r.point.form) for r in found)
  for kind, form in groups:
    for use, words in ROLES.items():
      errors = [
        abs(r.error) for r in found
        if r.role == use and (kind_of(network(r.point.network)), r.point.form) == (kind, form)
      ]  # fmt: skip
      if errors:
        largest = f"{100 * max(errors):.1f} %"
        rows.append((KINDS[kind], FORMS[form], words, str(len(errors)), _percent(errors), largest))
  return rows


PROGRAM = {  # column: seconds of a point
  "half of the peak": lambda point: _half(point, winograd=False),
  "and 0-1 program": lambda point: _half(point, winograd=True),
  "fitted, direct": lambda point: predict(point, shares_of(point)._replace(winograd=0.0)),
  "fitted, 0-1 program": predict,
}


def _program_points() -> list[PublishedStep]:
  """TensorFlow's with the larger batch, and ResNet-50 on V100."""
  found = [p for p in points() if p.source == "tf" and (p.examples > 32 or p.device == "k80")]
  small = {("k80", "inception_v3", 32), ("k80", "resnet50", 32)}  # measured with 64 too
  found = [p for p in found if (p.device, p.network, p.examples) not in small]
  return found + [p for p in points() if (p.source, p.network, p.examples) == ("mxnet", "resnet50", 128)]


def _half(point: PublishedStep, winograd: bool) -> float:
  """Seconds as predicted before: the roofline of the table's layers alone, or with modelled algorithms for them."""
  layers, device = network(point.network), chips()[point.device].device(point.form)
  if not winograd:
    return step_seconds(parts(layers), point.examples, device, HALF)
  chosen = choose(modelled(layers, device, HALF)(point.examples), float("inf"), shared=True)
  return chosen.seconds + other_seconds(layers, device, HALF)(point.examples)


def _program(point: PublishedStep) -> list[str]:
  errors = [f"{100 * (predicted(point) / point.seconds - 1):+.0f} %" for predicted in PROGRAM.values()]
  held = "" if role(point) == "fitted" else " (held out)"
  return [f"{chips()[point.device].title}, {point.text}{held}", seconds_text(point.seconds), *errors]


WHY = ("64 images on P100", "in whole tiles", "3x3, stride 1", "what follows convolutions", "of it, normalization")


def _why(name: str) -> list[str]:
  """Filled FLOP over those of the network, share of Winograd's layers in them, share of the traffic in the step."""
  layers, shares = network(name), convolution_shares("pascal", "2016")
  step = device_step(layers, chips()["p100"].device("float32"), shares)
  filled = [flop(layer, i == 0) for i, layer in enumerate(layers)]
  fast = sum(f for f, layer in zip(filled, layers, strict=True) if fastest(layer, shares) == "winograd")
  moving = [part for part in step.parts if not part.flop and not part.held]
  seconds = step_seconds(moving, 64, step.device._replace(start=0.0), step.efficiency) / step.seconds(64)
  normal = sum(extra(x) for x in layers if x.normalized or is_map_scale(x)) / max(1.0, sum(map(extra, layers)))
  products = sum(layer.train_flop for layer in layers if not is_map_scale(layer))
  figures = f"{sum(filled) / products:.2f} times the FLOP", *(percent(x) for x in (fast / sum(filled), seconds, normal))
  return [name, *figures]


def _by_column() -> dict[str, list[float]]:
  shown = _program_points()
  return {name: [predicted(p) / p.seconds - 1 for p in shown] for name, predicted in PROGRAM.items()}


def _kepler() -> str:
  """Median errors of the K40c with cuDNN 5.0, without and with the algorithms that came for it in 5.1."""
  kepler = [p for p in points() if (p.source, p.device) == ("torch_5.0", "k40c")]
  shares: tuple[Shares, ...] = tuple(convolution_shares("kepler", "2016", winograd) for winograd in (False, True))
  medians = [statistics.median(_seconds(p, each) / p.seconds - 1 for p in kepler) for each in shares]
  return " and ".join(f"{100 * median:+.0f} %" for median in medians)


def _seconds(point: PublishedStep, shares: Shares) -> float:
  device = chips()[point.device].device(point.form)
  return device_step(network(point.network), device, shares).seconds(point.examples)


def _percent(found: Sequence[float]) -> str:
  return f"{100 * statistics.median(found):.1f} %"
