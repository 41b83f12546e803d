"""The calibration of this machine: the terms of the cost model fitted to measured blocks, and their JSON record."""

import os
import socket
import zlib
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.experimental import multihost_utils

from ddl.costs import microbench
from ddl.costs import microbench as collectives
from ddl.costs.microbench import CURVES, TOGETHER, Plan
from ddl.costs.workloads import DENSE
from ddl.perf.hardware import Cluster, fit
from ddl.perf.hardware.cluster import COUNT, RANGES, Link, Network
from ddl.perf.hardware.device import Device, Efficiency
from ddl.ranges import Range, check


def memory_bytes() -> float:
  """Return the memory of this process's device; of a CPU, its share of what the processes of its host have."""
  stats = jax.local_devices()[0].memory_stats() or {}
  return float(stats.get("bytes_limit") or host_memory() / processes_here())


def processes_here() -> int:
  """Return the number of processes on this host."""
  if jax.process_count() == 1:
    return 1
  own = np.uint32(zlib.crc32(socket.gethostname().encode()))
  return int(np.sum(np.asarray(multihost_utils.process_allgather(own)) == own))


def host_memory() -> float:
  """Return the memory of this machine, or of this process's control group where that is less."""
  total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
  limits = [Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes")]
  found = [int(text) for p in limits if p.exists() and (text := p.read_text().strip()).isdigit()]
  return float(min(total, *found)) if found else float(total)


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
  device = Device(peak, moving, memory_bytes())
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


class Record(NamedTuple):
  """A calibration."""

  cluster: Cluster
  efficiencies: dict[str, Efficiency]  # by the kind of a model, see `microbench.KINDS`


def plain(value: Any) -> Any:
  """Return named tuples as dicts."""
  return {k: plain(v) for k, v in value._asdict().items()} if hasattr(value, "_asdict") else value


def read(found: Any) -> Record:
  """Return the calibration in a file's JSON.

  Raises:
    ValueError: one line, with the key that is missing, unknown or invalid, and what it must be.
  """
  cluster = _table(_table(found, "the file").get("cluster", {}), "cluster")
  network = _table(_key(cluster, "network", "cluster"), "cluster.network")
  between = _tuple(Link, _key(network, "between", "cluster.network"), "cluster.network.between")
  workers, overlap = _key(cluster, "workers", "cluster"), _key(cluster, "overlap", "cluster")
  check("cluster.workers", workers, COUNT)
  if not isinstance(overlap, bool):
    raise ValueError(f"cluster.overlap is {overlap!r}; invalid: must be true or false")
  made = Cluster(
    title=_text(_key(cluster, "title", "cluster"), "cluster.title"),
    device=_tuple(Device, _key(cluster, "device", "cluster"), "cluster.device"),
    efficiency=_tuple(Efficiency, _key(cluster, "efficiency", "cluster"), "cluster.efficiency"),
    network=Network(between),
    source=_text(_key(cluster, "source", "cluster"), "cluster.source"),
    workers=int(workers),
    overlap=overlap,
  )
  if "overhead" in found:
    check("overhead", found["overhead"], Range(0, 1e9))
  curves = _table(found.get("efficiencies", {}), "efficiencies")
  return Record(made, {kind: _tuple(Efficiency, curve, f"efficiencies.{kind}") for kind, curve in curves.items()})


def _tuple(kind: Any, found: Any, where: str) -> Any:
  """A named tuple whose fields are numbers and texts; those with defaults may be missing."""
  table = _table(found, where)
  if unknown := [key for key in table if key not in kind._fields]:
    raise ValueError(f"{where} has an unknown key '{unknown[0]}'; known are {', '.join(kind._fields)}")
  values = {}
  for name in kind._fields:
    if name in table or name not in kind._field_defaults:
      value = _key(table, name, where)
      if kind.__annotations__[name] is str:
        values[name] = _text(value, f"{where}.{name}")
      else:
        check(f"{where}.{name}", value, RANGES[kind][name])
        values[name] = value
  return kind(**values)


def _text(value: Any, where: str) -> str:
  if not isinstance(value, str):
    raise ValueError(f"{where} is {value!r}; invalid: must be a text")
  return value


def _table(value: Any, where: str) -> dict[str, Any]:
  if not isinstance(value, dict):
    raise ValueError(f"{where} is {value!r:.40}; invalid: must be a table of keys and values")
  return value


def _key(table: dict[str, Any], name: str, where: str) -> Any:
  if name not in table:
    raise ValueError(f"{where} has no key '{name}'")
  return table[name]
