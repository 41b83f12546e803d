"""Accuracy against real seconds: a short training of each algorithm on the digits over the link, and its picture."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ddl.report.figures.picture import Picture
from ddl.report.figures.style import COLOURS, DASHES, MARKERS, PHONE, SLIDE, blank
from ddl.run.folder import METRICS
from experiments.netbench.cases import CASES, Case, Measured
from experiments.netbench.group import Group
from experiments.netbench.measure import bandwidth_text
from experiments.netbench.network import Network

STEPS = 120  # about, of each: whole rounds
LEARNING_RATE = 0.02
BOUND = 600.0  # seconds of a run
Curves = Mapping[str, list[tuple[float, float]]]  # label: (seconds, test accuracy) of each evaluation


def train(network: Network, measured: Measured, names: Sequence[str], folder: Path) -> Curves:
  """Train each of the named cases into a folder of its own; return what their metrics tell."""
  curves, rounds = {}, max(1, round(STEPS / CASES["local_sgd"](measured).period))
  for name in names:
    path = folder / f"{network.rate / 1e6:g}mbit-{name}"
    clock = {"period": CASES["local_sgd"](measured).period}  # of Sync EASGD too: the curves have the same steps
    case = CASES[name](measured)
    question = {"train": _experiment(case, clock, rounds), "workdir": str(path), "overlap": case.overlap}
    with Group(network, joined=True) as joined:
      joined.ask(question, f"training with {case.label}", BOUND)
    lines = [json.loads(line) for line in (path / METRICS).read_text().splitlines()]
    curves[case.label] = [(line["seconds"], line["test_accuracy"]) for line in lines]
  return curves


def _experiment(case: Case, clock: Mapping[str, int], rounds: int) -> dict[str, Any]:
  algorithm = case.algorithm if case.period == 1 else {**case.algorithm, **clock}
  optimizer = {"momentum": 0.9, "learning_rate": LEARNING_RATE}
  steps = {"steps": rounds * clock["period"], "eval_every": clock["period"]}
  return {"algorithm": algorithm, "batch": 256, "optimizer": optimizer, **steps}


def picture(network: Network, curves: Curves) -> Picture:
  """Draw test accuracy over seconds."""
  link = f"{bandwidth_text(network.rate)} and {1e3 * network.latency:g} ms"
  title = f"Digits over a link of {link}"
  ends = "; ".join(f"{label} {points[-1][1]:.3f} after {points[-1][0]:.3g} s" for label, points in curves.items())
  caption = f"The same steps of each algorithm on {network.hosts} hosts, in real seconds without evaluations."
  rows = [(label, *point) for label, points in curves.items() for point in points]
  columns = ("algorithm", "seconds", "test_accuracy")
  data: dict[str, list[Any]] = {key: [row[i] for row in rows] for i, key in enumerate(columns)}
  name = f"netbench_{network.rate / 1e6:g}mbit"
  return Picture(name, title, f"{title}: {ends}.", [caption], lambda wide: _draw(title, curves, wide), data)


def _draw(title: str, curves: Curves, wide: bool) -> Any:
  from matplotlib import ticker

  figure = blank(SLIDE if wide else PHONE)
  axes = figure.subplots()
  for i, (label, points) in enumerate(curves.items()):
    axes.plot(
      *zip(*points[1:], strict=True), color=COLOURS[i % len(COLOURS)], marker=MARKERS[i % len(MARKERS)],
      dashes=DASHES[i % len(DASHES)] or (None, None), markersize=5 if wide else 4, linewidth=2, label=label,
    )  # fmt: skip
  axes.set_xscale("log")
  axes.xaxis.set_major_formatter(ticker.FuncFormatter(lambda value, _: f"{value:g}"))
  axes.set(xlabel="seconds", ylabel="test accuracy")
  axes.set_title(title, loc="left")
  axes.grid(True)
  place = {"loc": "outside right upper"} if wide else {"loc": "outside lower left", "ncols": 2}
  figure.legend(frameon=False, **place)
  return figure
