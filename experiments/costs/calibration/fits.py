"""The terms of the cost model from a calibration's measured blocks, with the errors of the fits."""

import os
from typing import Any, NamedTuple

import jax
import numpy as np

from ddl.perf.hardware import Cluster, fit
from ddl.perf.hardware.device import Device, Efficiency
from ddl.perf.hardware.network import Link, Network
from experiments.costs.calibration import collectives, limits, microbench
from experiments.costs.calibration.measure import CURVES, TOGETHER, Plan
from experiments.costs.calibration.model_kinds import DENSE


class Calibration(NamedTuple):
  """Result of a calibration."""

  cluster: Cluster  # with the efficiency of dense models
  efficiencies: dict[str, Efficiency]  # by the kind of a model
  rates: dict[str, fit.Rates]  # of a step, by the kind of a model
  links: dict[str, Link]  # by collective
  overhead: float  # R_O: seconds of a worker's loop beyond its compute, over its compute; median over the cases
  waiting: float  # seconds that a message takes longer between steps than in a loop of messages alone
  rows: list[dict[str, Any]]  # every measurement with what its fit predicts


def solve(plan: Plan, measured: dict[str, np.ndarray]) -> Calibration:
  """Fit the terms. measured: seconds of each block [passes, processes]."""
  typical = {name: microbench.typical(measured[name]) for name in plan.blocks}
  rows, links = [], {}
  for name in collectives.COLLECTIVES:
    took = [typical[f"{name} {n}"] for n in plan.sizes]
    links[name], errors = fit.link(plan.sizes, took, collectives.cost(name, plan.workers))
    rows += [_row(name, f"{n} bytes", t, e) for n, t, e in zip(plan.sizes, took, errors, strict=True)]
  steps = plan.steps.values()
  loops, computes = ([typical[f"{kind} {case}"] for case in plan.steps] for kind in ("loop", "compute"))
  kinds, flop, moved, fed = zip(*((s.kind, s.flop, s.moved, s.fed) for s in steps), strict=True)
  rates, errors = fit.rates_of_kinds(kinds, flop, moved, loops, fed)
  rows += [_row("step", case, t, e) for case, t, e in zip(plan.steps, loops, errors, strict=True)]
  waiting, more = _waiting(plan, typical, links["all_reduce"])
  rows += more
  fastest = max(s.flop / t for s, t in zip(steps, computes, strict=True))
  peak = max(plan.product_flop / typical["product"], fastest)
  # The bytes of a step are XLA's count, of which caches serve a part: no step may be seen to beat the roofline.
  moving = max(plan.copy_bytes / typical["copy"], *(s.moved / t for s, t in zip(steps, computes, strict=True)))
  efficiencies, more = _efficiencies(plan, typical, peak)
  rows += more
  device = Device(peak, moving, limits.memory_bytes())
  kind, link = jax.devices()[0].device_kind, links["all_reduce"]
  cluster = Cluster(
    title=f"this machine, {plan.workers} processes",
    device=device,
    efficiency=efficiencies.get(DENSE) or next(iter(efficiencies.values())),
    network=Network(link._replace(latency=link.latency + waiting)),
    source=f"measured by python run.py calibrate on {kind} ({os.cpu_count()} cores), float32",
    workers=plan.workers,
    overlap=jax.default_backend() != "cpu",  # XLA:CPU runs an exchange and the steps beside it one after the other
  )
  shares = [(loop - compute) / compute for loop, compute in zip(loops, computes, strict=True)]
  overhead = max(0.0, float(np.median(shares)))
  return Calibration(cluster, efficiencies, rates, links, overhead, waiting, rows)


def _waiting(plan: Plan, typical: dict[str, float], link: Link) -> tuple[float, list[dict[str, Any]]]:
  """Seconds of synchronous SGD beyond the step and its messages, per message, and rows: processes are out of step.

  The median over the models.
  """
  price = collectives.cost("all_reduce", plan.workers)
  names = [case.name for case in TOGETHER if case.name in plan.steps]
  took = np.array([typical[f"sync_sgd {name}"] for name in names])
  known = [typical[f"loop {name}"] + sum(price(n, link) for n in plan.steps[name].messages) for name in names]
  count = np.array([len(plan.steps[name].messages) for name in names])
  waiting = max(0.0, float(np.median((took - known) / count)))
  errors = (known + waiting * count) / took - 1
  return waiting, [_row("sync_sgd", name, t, e) for name, t, e in zip(names, took, errors, strict=True)]


def _efficiencies(
  plan: Plan, typical: dict[str, float], peak: float
) -> tuple[dict[str, Efficiency], list[dict[str, Any]]]:
  """The curve of each kind of models of which two sizes or more were measured, and their rows."""
  found, rows = {}, []
  for kind, curve in CURVES.items():
    cases = [case for case in curve if case.name in plan.steps]
    if len(cases) > 1:
      took = [typical[f"compute {case.name}"] for case in cases]
      flop = plan.steps[cases[-1].name].flop / cases[-1].batch  # where the update of the parameters weighs least
      found[kind], errors = fit.efficiency(flop, peak, [case.batch for case in cases], took)
      rows += [_row(f"efficiency, {kind}", c.name, t, e) for c, t, e in zip(cases, took, errors, strict=True)]
  return found, rows


def _row(kind: str, name: str, seconds: float, error: float) -> dict[str, Any]:
  figures = {"measured_s": seconds, "predicted_s": seconds * (1 + error), "error": error}
  return {"fit": kind, "of": name, **{key: float(value) for key, value in figures.items()}}
