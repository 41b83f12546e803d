"""The blocks of a calibration: steps of several kinds of models, collectives, a product and a copy."""

import sys
from typing import NamedTuple

from ddl.runtime import hosts
from ddl.runtime.layout.workers import Workers, make_workers
from experiments.config.options import RunOptions
from experiments.costs.calibration import collectives, microbench
from experiments.costs.calibration.microbench import Block, Case, Step
from experiments.costs.calibration.model_kinds import ATTENTION, CONVOLUTION, DENSE
from experiments.train import processes

CURVES = {  # where the efficiency of each kind of models is fitted
  DENSE: tuple(Case("mlp", {"hidden": (256, 256)}, batch) for batch in (16, 64, 256)),
  CONVOLUTION: tuple(Case("lenet", {"channels": (16, 32)}, batch) for batch in (8, 32, 96)),
  ATTENTION: tuple(Case("transformer", {"layers": 1, "width": 64}, batch) for batch in (2, 8)),
}
CASES = (
  Case("linear", {}, 256),
  Case("mlp", {"hidden": (1024, 1024)}, 32),
  *(case for curve in CURVES.values() for case in curve),
)
# Also measured under synchronous SGD: how long messages take between steps.
TOGETHER = (CASES[1], CURVES[DENSE][1], *CURVES[CONVOLUTION][:2], CURVES[ATTENTION][1])
MOST = 64  # processes


class Plan(NamedTuple):
  """Blocks of a calibration."""

  blocks: dict[str, Block]
  steps: dict[str, Step]  # by the cases' names
  sizes: tuple[int, ...]
  workers: int
  product_flop: float
  copy_bytes: float


def launch(command: str, count: int = 2) -> int:
  """Run this command in so many processes, 2 or more, joined as those of a run; return the exit code."""
  if not 2 <= count <= MOST:
    raise ValueError(f"--processes={count}: {command} measures the links between processes; give 2 to {MOST}")
  return hosts.launch(count, hosts.command_line())


def join() -> Workers:
  """Return one worker per process, on a device of its own."""
  processes.start_devices(hosts.processes(), RunOptions())
  return make_workers(hosts.processes())


def progress(text: str) -> None:
  """Print progress on stderr, from the main process."""
  if hosts.is_main():
    print(text, file=sys.stderr, flush=True)


def prepare(workers: Workers, cases: tuple[Case, ...] = CASES, sizes: tuple[int, ...] = collectives.SIZES) -> Plan:
  """Compile all blocks. cases: two of a curve at least, and one of TOGETHER."""
  blocks, steps = {}, {}
  for i, case in enumerate(cases):
    progress(f"compiling {case.name} ({i + 1} of {len(cases)} models)")
    trainer, experiment, steps[case.name] = microbench.make_trainer(case, "independent", {}, workers)
    blocks[f"loop {case.name}"], blocks[f"compute {case.name}"] = microbench.trainer_blocks(trainer, experiment)
    if case in TOGETHER:
      trainer, experiment, _ = microbench.make_trainer(case, "sync_sgd", {}, workers, steps[case.name])
      blocks[f"sync_sgd {case.name}"], _ = microbench.trainer_blocks(trainer, experiment)
  blocks["product"], flop = collectives.product_block()
  blocks["copy"], moved = collectives.copy_block()
  for name in collectives.COLLECTIVES:
    for nbytes in sizes:
      blocks[f"{name} {nbytes}"] = collectives.exchange_block(name, nbytes, workers)
  return Plan(blocks, steps, sizes, workers.count, flop, moved)
