"""Terms of the cost model from measured blocks: the blocks, and the fits with their errors."""

import os
import sys
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from ddl.perf.hardware import Cluster, fit
from ddl.perf.hardware.device import Device
from ddl.perf.hardware.network import Link, Network
from ddl.runtime import hosts
from ddl.runtime.layout.workers import Workers, make_workers
from experiments.config.options import RunOptions
from experiments.costs import microbench, microbench_collectives
from experiments.costs.microbench import Block, Case, Step
from experiments.train import processes

CURVE = tuple(Case("mlp", {"hidden": (256, 256)}, batch) for batch in (16, 64, 256))  # where the efficiency is fitted
CASES = (
  Case("linear", {}, 256),
  *CURVE,
  Case("mlp", {"hidden": (1024, 1024)}, 32),
  Case("lenet", {"channels": (16, 32)}, 8),
  Case("lenet", {"channels": (16, 32)}, 32),
  Case("transformer", {"layers": 1, "width": 64}, 8),
)

TOGETHER = (CASES[2], *CASES[-3:])  # also measured under synchronous SGD: how long messages take between steps


class Plan(NamedTuple):
  """Blocks of a calibration."""

  blocks: dict[str, Block]
  steps: dict[str, Step]  # by the cases' names
  sizes: tuple[int, ...]
  workers: int
  product_flop: float
  copy_bytes: float


class Calibration(NamedTuple):
  """Result of a calibration."""

  cluster: Cluster
  rates: fit.Rates  # of a step, over all cases
  links: dict[str, Link]  # by collective
  overhead: float  # R_O: seconds of a worker's loop beyond its compute, over its compute; median over the cases
  waiting: float  # seconds that a message takes longer between steps than in a loop of messages alone
  rows: list[dict[str, Any]]  # every measurement with what its fit predicts


def launch(command: str, count: int = 2) -> int:
  """Run this command in so many processes, 2 to the number of cores, joined as those of a run; return the exit code."""
  most = max(2, len(os.sched_getaffinity(0)))
  if not 2 <= count <= most:
    raise ValueError(f"--processes={count}: {command} measures the links between processes; give 2 to {most}")
  return hosts.launch(count, hosts.command_line())


def join() -> Workers:
  """Return one worker per process, on a device of its own."""
  processes.start_devices(hosts.processes(), RunOptions())
  return make_workers(hosts.processes())


def progress(text: str) -> None:
  """Print progress on stderr, from the main process."""
  if hosts.is_main():
    print(text, file=sys.stderr, flush=True)


def prepare(
  workers: Workers, cases: tuple[Case, ...] = CASES, sizes: tuple[int, ...] = microbench_collectives.SIZES
) -> Plan:
  """Compile all blocks. cases: CURVE at least, and one of TOGETHER."""
  blocks, steps = {}, {}
  for i, case in enumerate(cases):
    progress(f"compiling {case.name} ({i + 1} of {len(cases)} models)")
    trainer, experiment, steps[case.name] = microbench.make_trainer(case, "independent", {}, workers)
    blocks[f"loop {case.name}"], blocks[f"compute {case.name}"] = microbench.trainer_blocks(trainer, experiment)
    if case in TOGETHER:
      trainer, experiment, _ = microbench.make_trainer(case, "sync_sgd", {}, workers, steps[case.name])
      blocks[f"sync_sgd {case.name}"], _ = microbench.trainer_blocks(trainer, experiment)
  blocks["product"], flop = microbench_collectives.product_block()
  blocks["copy"], moved = microbench_collectives.copy_block()
  for name in microbench_collectives.COLLECTIVES:
    for nbytes in sizes:
      blocks[f"{name} {nbytes}"] = microbench_collectives.exchange_block(name, nbytes, workers)
  return Plan(blocks, steps, sizes, workers.count, flop, moved)


def solve(plan: Plan, measured: dict[str, np.ndarray]) -> Calibration:
  """Fit the terms. measured: seconds of each block [passes, processes]."""
  typical = {name: microbench.typical(measured[name]) for name in plan.blocks}
  rows, links = [], {}
  for name in microbench_collectives.COLLECTIVES:
    took = [typical[f"{name} {n}"] for n in plan.sizes]
    links[name], errors = fit.link(plan.sizes, took, microbench_collectives.cost(name, plan.workers))
    rows += [_row(name, f"{n} bytes", t, e) for n, t, e in zip(plan.sizes, took, errors, strict=True)]
  steps = plan.steps.values()
  loops, computes = ([typical[f"{kind} {case}"] for case in plan.steps] for kind in ("loop", "compute"))
  rates, errors = fit.rates([s.flop for s in steps], [s.moved for s in steps], loops)
  rows += [_row("step", case, t, e) for case, t, e in zip(plan.steps, loops, errors, strict=True)]
  waiting, more = _waiting(plan, typical, links["all_reduce"])
  rows += more
  fastest = max(s.flop / t for s, t in zip(steps, computes, strict=True))
  peak = max(plan.product_flop / typical["product"], fastest)
  # The bytes of a step are XLA's count, of which caches serve a part: no step may be seen to beat the roofline.
  moving = max(plan.copy_bytes / typical["copy"], *(s.moved / t for s, t in zip(steps, computes, strict=True)))
  took = [typical[f"compute {case.name}"] for case in CURVE]
  flop = plan.steps[CURVE[-1].name].flop / CURVE[-1].batch  # where the update of the parameters weighs least
  efficiency, errors = fit.efficiency(flop, peak, [c.batch for c in CURVE], took)
  rows += [_row("efficiency", c.name, t, e) for c, t, e in zip(CURVE, took, errors, strict=True)]
  device = Device(peak, moving, memory_bytes() / jax.process_count())
  kind, link = jax.devices()[0].device_kind, links["all_reduce"]
  cluster = Cluster(
    title=f"this machine, {plan.workers} processes",
    device=device,
    efficiency=efficiency,
    network=Network(link._replace(latency=link.latency + waiting)),
    source=f"measured by python run.py calibrate on {kind} ({os.cpu_count()} cores), float32",
    workers=plan.workers,
    overlap=jax.default_backend() != "cpu",  # XLA:CPU runs an exchange and the steps beside it one after the other
  )
  shares = [(loop - compute) / compute for loop, compute in zip(loops, computes, strict=True)]
  overhead = max(0.0, float(np.median(shares)))
  return Calibration(cluster, rates, links, overhead, waiting, rows)


def _waiting(plan: Plan, typical: dict[str, float], link: Link) -> tuple[float, list[dict[str, Any]]]:
  """Seconds of synchronous SGD beyond the step and its messages, per message, and rows: processes are out of step.

  The median over the models, of which each array of parameters is a message.
  """
  price = microbench_collectives.cost("all_reduce", plan.workers)
  names = [case.name for case in TOGETHER if case.name in plan.steps]
  took = np.array([typical[f"sync_sgd {name}"] for name in names])
  known = [typical[f"loop {name}"] + sum(price(n, link) for n in plan.steps[name].leaves) for name in names]
  count = np.array([len(plan.steps[name].leaves) for name in names])
  waiting = max(0.0, float(np.median((took - known) / count)))
  errors = (known + waiting * count) / took - 1
  return waiting, [_row("sync_sgd", name, t, e) for name, t, e in zip(names, took, errors, strict=True)]


def memory_bytes() -> float:
  """Return the memory of this machine, or of this process's control group where that is less."""
  total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
  limits = [Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes")]
  found = [int(text) for p in limits if p.exists() and (text := p.read_text().strip()).isdigit()]
  return float(min(total, *found)) if found else float(total)


def _row(kind: str, name: str, seconds: float, error: float) -> dict[str, Any]:
  figures = {"measured_s": seconds, "predicted_s": seconds * (1 + error), "error": error}
  return {"fit": kind, "of": name, **{key: float(value) for key, value in figures.items()}}
