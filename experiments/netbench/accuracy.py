"""Train each algorithm briefly on digits over the link, and plot its accuracy over wall-clock time."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ddl.report.figure import Figure, by_label, label_format, specification
from ddl.run.folder import METRICS
from experiments.netbench.cases import CASES, Measured
from experiments.netbench.group import process_group
from experiments.netbench.measure import bandwidth_text
from experiments.netbench.network import NamespaceNetwork

STEPS = 120  # per run, rounded to whole rounds
LEARNING_RATE = 0.02
BOUND = 600.0  # maximum seconds of a run
Curves = Mapping[str, list[tuple[float, float]]]  # label -> (seconds, test accuracy) of each evaluation


def train(network: NamespaceNetwork, measured: Measured, names: Sequence[str], folder: Path) -> Curves:
  """Train each named case in a separate folder; return algorithm label -> accuracy curve."""
  period = CASES["local_sgd"](measured).period  # also for Sync EASGD, so that all runs have the same number of steps
  settings = {
    "batch": 256, "optimizer": {"momentum": 0.9, "learning_rate": LEARNING_RATE},
    "steps": max(1, round(STEPS / period)) * period, "eval_every": period,
  }  # fmt: skip
  curves = {}
  for name in names:
    path, case = folder / f"{network.rate / 1e6:g}mbit-{name}", CASES[name](measured)
    algorithm = case.algorithm if case.period == 1 else case.algorithm | {"period": period}
    request = {"train": {"algorithm": algorithm, **settings}, "workdir": str(path), "overlap": case.overlap}
    with process_group(network, joined=True) as joined:
      joined.request(request, f"training with {case.label}", BOUND)
    lines = [json.loads(line) for line in (path / METRICS).read_text().splitlines()]
    curves[case.label] = [(line["seconds"], line["test_accuracy"]) for line in lines]
  return curves


def picture(network: NamespaceNetwork, curves: Curves) -> Figure:
  """Plot test accuracy over seconds; return a `Figure`."""
  import pandas as pd

  link = f"{bandwidth_text(network.rate)} and {1e3 * network.latency:g} ms"
  subtitle = f"Digits over a link of {link}"
  ends = "; ".join(f"{label} {points[-1][1]:.3f} after {points[-1][0]:.3g} s" for label, points in curves.items())
  caption = (
    f"Each algorithm runs the same number of steps on {network.hosts} hosts; wall-clock time excludes evaluations."
  )
  first = min(curves, key=lambda label: curves[label][-1][0])
  rows = [(label, *point) for label, points in curves.items() for point in points]
  data = pd.DataFrame(rows, columns=["algorithm", "seconds", "test_accuracy"])
  name, title = f"netbench_{network.rate / 1e6:g}mbit", f"{first} completes its steps first"
  return Figure(name, title, subtitle, f"{subtitle}: {ends}.", [caption], lambda narrow: _chart(data), data)


def _chart(data: Any) -> dict[str, Any]:
  import altair as alt

  labels = data["algorithm"].unique().tolist()
  channels = by_label("algorithm", labels)
  seconds = alt.Axis(labelExpr=label_format("seconds", log=True))
  chart = alt.Chart(alt.NamedData("curves")).mark_line(point={"size": 25}).encode(
    x=alt.X("seconds:Q", scale=alt.Scale(type="log", nice=False), axis=seconds),
    y=alt.Y("test_accuracy:Q", title="test accuracy", axis=alt.Axis(labelExpr=label_format("test_accuracy"))),
    **channels,
  )  # fmt: skip
  return specification(chart, curves=data[data["seconds"] > 0])
