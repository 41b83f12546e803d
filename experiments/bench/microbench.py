"""Measure interleaved blocks of steps, collectives and local work, for `calibrate` and `scale --measure`.

All processes compute at the same time. A block is a few consecutive calls of one compiled function. Everything is
compiled before the first block, and blocks are interleaved, so that other load on the machine affects all of them.
"""

import functools
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
import zlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from jax import lax
from jax.experimental import multihost_utils

from ddl import hosts
from ddl.api import Algorithm
from ddl.config import default_experiment
from ddl.config.experiment import initial_key, training_key
from ddl.config.options import RunOptions
from ddl.costs.step_cost import SIZES, analyse, synthetic, timed_steps
from ddl.engine.calls import Kind
from ddl.engine.compiled_trainer import CompiledTrainer
from ddl.engine.keys import worker_keys
from ddl.engine.workers import AXIS as AXES
from ddl.engine.workers import PackedGroup, Workers, make_workers
from ddl.errors import OptionError
from ddl.group import Group
from ddl.perf.device_step import kind_of_model
from ddl.run import build, processes
from ddl.run.build import param_shapes
from ddl.schedule import Due
from experiments.bench.calibration import CASES, TOGETHER, MeasuredStep, Measurements, ModelCase, typical

BLOCK_SECONDS = 0.15
CALL_FLOP = 5e9  # per compiled call: about a tenth of a second on a core
MOST = 64  # maximum number of processes
AXIS = AXES[0]
MESSAGES = tuple(2**k for k in range(10, 25, 2))  # bytes: 1 kB to 16 MB
CALL_BYTES = 8 * 2**20  # per compiled loop
CALL_LENGTH = 16  # maximum number of exchanges per compiled loop


class TimedBlock(NamedTuple):
  """A function that times a number of calls, and the units of work in each call."""

  run: Callable[[int], float]  # number of calls -> seconds
  units: int = 1  # steps, exchanges or passes per call


def interleaved(blocks: dict[str, TimedBlock], passes: int, seconds: float = BLOCK_SECONDS) -> dict[str, np.ndarray]:
  """Return the measured seconds per unit of work of each block, [passes, processes].

  All processes must pass the same blocks. The order is shuffled in each pass, so that a disturbance affects all kinds
  of blocks.
  """
  several = jax.process_count() > 1
  counts = {}
  for name, block in blocks.items():
    block.run(1)
    count = np.int32(max(1, round(2 * seconds / max(block.run(2), 1e-6))))
    counts[name] = int(np.max(multihost_utils.process_allgather(count)) if several else count)
  names, order = list(blocks), np.random.default_rng(0)  # the same order in all processes
  times = np.zeros((passes, len(names)), np.float32)
  for row in times:
    for i in order.permutation(len(names)):
      block, count = blocks[names[i]], counts[names[i]]
      if several:
        multihost_utils.sync_global_devices("block")  # all processes start at the same time
      row[i] = block.run(count) / (count * block.units)
  gathered = np.asarray(multihost_utils.process_allgather(times)) if several else times[None]
  return {name: gathered[:, :, i].T.astype(float) for i, name in enumerate(names)}


def timed(call: Callable[[], Any]) -> Callable[[int], float]:
  """Return a function that runs n calls, each with block_until_ready, and returns their seconds."""

  def run(count: int) -> float:
    began = time.perf_counter()
    for _ in range(count):
      jax.block_until_ready(call())
    return time.perf_counter() - began

  return run


def trainer_blocks(trainer: CompiledTrainer, components: build.Components) -> tuple[TimedBlock, TimedBlock]:
  """Return two blocks: the trainer's steps including their input, and the same compiled calls on a fixed input."""
  seconds, carry = timed_steps(components, trainer), trainer.start(initial_key(0))
  _, cycle = trainer.schedule.cycle(0)
  whole = trainer.execution.steps_per_call // cycle * cycle or cycle

  def compute(count: int) -> float:
    (call,) = trainer.plan(0, whole, 10**9)
    batches = trainer.workers.put(components.training_feed(trainer.workers.local)(0, whole))
    step, keys = trainer.workers.replicate(np.int32(0)), _keys(trainer)
    fn = trainer.compiled(call.kind, carry, batches, step, keys, ())
    jax.block_until_ready((carry, batches))

    def run() -> Any:
      nonlocal carry
      carry, losses = fn(carry, batches, step, keys, ())
      return carry, losses

    return timed(run)(count)

  return TimedBlock(lambda count: seconds(count * whole), whole), TimedBlock(compute, whole)


def _keys(trainer: CompiledTrainer) -> jax.Array:
  """Return the PRNG key data of each worker, as in `CompiledTrainer.run`."""
  return trainer.workers.put(np.asarray(worker_keys(training_key(0), trainer.workers.local)))


def make_trainer(
  case: ModelCase, algorithm: str, hyper: dict[str, Any], workers: Workers, step: MeasuredStep | None = None
) -> tuple[CompiledTrainer, build.Components, MeasuredStep]:
  """Build ddl's trainer for a case, with compiled calls of up to about 0.1 s.

  Return (trainer, components, work of a step). step: this work, if already known; it is the same for all algorithms.
  """
  experiment = default_experiment(
    algorithm={"name": algorithm, **hyper}, model={"name": case.model, **case.sizes}, workers=workers.count,
    batch=case.batch, optimizer={"momentum": 0.9, "learning_rate": 0.01},
  )  # fmt: skip
  components = build.build(experiment, _data(case.model))
  assert isinstance(components.algorithm, Algorithm)
  execution = build.execution(components, workers, RunOptions())
  trainer = CompiledTrainer(components.algorithm, components.model, workers, execution)
  step = step or _measured_step(trainer, components, case.model)
  longest = max(trainer.schedule.cycle(0)[1], min(execution.steps_per_call, int(CALL_FLOP / max(step.flop, 1.0))))
  trainer.execution = execution._replace(steps_per_call=longest)
  return trainer, components, step


_data = functools.cache(synthetic)


def _measured_step(trainer: CompiledTrainer, components: build.Components, model: str) -> MeasuredStep:
  """Count a step's FLOP and bytes by XLA's cost analysis of a one-step call, because XLA counts loop bodies once."""
  carry = trainer.start(initial_key(0))
  batch = components.training_feed(trainer.workers.local)(0, 1)
  fed = sum(x.nbytes for x in jax.tree.leaves(batch)) / len(trainer.workers.local)
  kind = Kind((Due(),), 1, (0,) * len(trainer.schedule.clocks))
  step = trainer.workers.replicate(np.int32(0))
  lowered = trainer.lowered(kind, carry, trainer.workers.put(batch), step, _keys(trainer), ())
  counted = analyse(lowered.compile())  # trainer.compiled is not one executable if sends run in the background
  leaves = [x.size * x.dtype.itemsize for x in jax.tree.leaves(param_shapes(components.model))]
  sent = messages(leaves, trainer.workers.group)
  return MeasuredStep(counted.flop, counted.nbytes, sent, kind_of_model(model), fed)


def messages(leaves: Sequence[int], group: Group) -> tuple[int, ...]:
  """Return the bytes of each message when workers average arrays; a packed group joins small arrays into one message.

  leaves: bytes of each array.
  """
  if not isinstance(group, PackedGroup):
    return tuple(leaves)
  small = sum(n for n in leaves if n < group.below)
  return (*([small] if small else []), *(n for n in leaves if n >= group.below))


def _strip(x: jax.Array) -> jax.Array:
  return x[: x.shape[0] // lax.axis_size(AXIS)]


def _put(x: jax.Array, strip: jax.Array) -> jax.Array:
  return lax.dynamic_update_slice(x, strip, (0,))


# Each function maps a worker's vector [n] to a vector [n], with as little other work as JAX allows: all_reduce and
# reduce_scatter divide; reduce_scatter and all_gather copy a strip, which is the worker's n / workers values.
COLLECTIVES: dict[str, Callable[[jax.Array], jax.Array]] = {
  "all_reduce": lambda x: lax.pmean(x, AXIS),
  "reduce_scatter": lambda x: _put(x, lax.psum_scatter(x, AXIS, tiled=True) / lax.axis_size(AXIS)),
  "all_gather": lambda x: _put(x, _strip(lax.all_gather(_strip(x), AXIS, tiled=True))),
  "permute": lambda x: lax.ppermute(x, AXIS, [(i, (i + 1) % lax.axis_size(AXIS)) for i in range(lax.axis_size(AXIS))]),
}


def exchange_block(name: str, nbytes: int, workers: Workers) -> TimedBlock:
  """Compile a block that measures a collective; its unit is one exchange."""
  values = -(-nbytes // 4 // workers.count) * workers.count
  length = max(1, min(CALL_LENGTH, CALL_BYTES // nbytes))
  collective = COLLECTIVES[name]

  def device(x: jax.Array) -> jax.Array:
    return lax.scan(lambda carry, _: (collective(carry), None), x[0], None, length=length)[0][None]

  fn = jax.jit(workers.lift(device, True, True), donate_argnums=0)
  state = {"x": workers.put(np.ones((1, values), np.float32))}

  def call() -> jax.Array:
    state["x"] = fn(state["x"])
    return state["x"]

  return TimedBlock(timed(call), length)


def _local(fn: Callable[[jax.Array], jax.Array], values: np.ndarray) -> TimedBlock:
  x, jitted = jax.device_put(values, jax.local_devices()[0]), jax.jit(fn)
  return TimedBlock(timed(lambda: jitted(x)))


def prepare(
  workers: Workers, cases: tuple[ModelCase, ...] = CASES, sizes: tuple[int, ...] = MESSAGES
) -> tuple[dict[str, TimedBlock], Measurements]:
  """Build all blocks of a calibration; return them by name, with the work that they measure.

  cases: at least two of the same kind in CURVES, and one of TOGETHER; sizes: bytes of the exchanged messages.
  """
  blocks, steps = {}, {}
  for i, case in enumerate(cases):
    progress(f"compiling {case.name} ({i + 1} of {len(cases)} models)")
    trainer, components, steps[case.name] = make_trainer(case, "independent", {}, workers)
    blocks[f"loop {case.name}"], blocks[f"compute {case.name}"] = trainer_blocks(trainer, components)
    if case in TOGETHER:
      trainer, components, _ = make_trainer(case, "sync_sgd", {}, workers, steps[case.name])
      blocks[f"sync_sgd {case.name}"], _ = trainer_blocks(trainer, components)
  side, nbytes = 1024, 2**25
  blocks["product"] = _local(lambda x: x @ x, np.ones((side, side), np.float32))
  blocks["copy"] = _local(lambda x: x * 0.5 + 1.0, np.ones(nbytes // 4, np.float32))
  blocks |= {f"{name} {size}": exchange_block(name, size, workers) for name in COLLECTIVES for size in sizes}
  machine = f"{jax.devices()[0].device_kind} ({os.cpu_count()} cores)"
  overlap = jax.default_backend() != "cpu"  # XLA:CPU runs exchanges and steps sequentially
  return blocks, Measurements(
    steps, sizes, workers.count, 2.0 * side**3, 2.0 * nbytes, machine, memory_bytes(), overlap
  )


def memory_bytes() -> float:
  """Return the bytes of memory of this process's device; on CPU, those of the host divided by its processes."""
  stats = jax.local_devices()[0].memory_stats() or {}
  if limit := stats.get("bytes_limit"):
    return float(limit)
  total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
  limits = [Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes")]  # cgroup v2, v1
  texts = [path.read_text().strip() for path in limits if path.exists()]
  host, sharing = min([total, *(int(text) for text in texts if text.isdigit())]), 1
  if jax.process_count() > 1:
    name = np.uint32(zlib.crc32(socket.gethostname().encode()))
    sharing = int(np.sum(np.asarray(multihost_utils.process_allgather(name)) == name))
  return host / sharing


def launch(command: str, count: int = 2) -> int:
  """Run this command again in `count` processes of one JAX job; return the exit code."""
  if not 2 <= count <= MOST:
    raise OptionError("processes", f"from 2 to {MOST} for {command}", count)
  return hosts.launch(count, hosts.command_line())


def join() -> Workers:
  """Join the JAX job; return one worker per process, each on one device."""
  processes.start_devices(hosts.processes(), RunOptions())
  return make_workers(hosts.processes())


def progress(text: str) -> None:
  """Print progress to stderr in process 0."""
  if hosts.is_main():
    print(text, file=sys.stderr, flush=True)


def measure_steps(
  model: str, algorithms: Mapping[str, Mapping[str, Any]], *, workers: int, single_batch: int, full_batch: int
) -> dict[str, dict[int, float]]:
  """Measure the seconds per step of each algorithm with one worker and with all, as medians of interleaved blocks.

  All processes compute in every measurement, as in a calibration: a single worker does not communicate, but the other
  processes still compute.

  Args:
    model: name in ddl.models, with the sizes that `scale` uses.
    algorithms: collective algorithms with their settings.
    workers: number of processes, one worker each.
    single_batch, full_batch: examples per worker and step with one worker, and with all workers.

  Raises:
    ValueError: if a process fails; its output is on stderr.
  """
  with tempfile.TemporaryDirectory() as folder:
    result, settings = Path(folder) / "result.json", {name: dict(keys) for name, keys in algorithms.items()}
    task = {
      "model": model,
      "algorithms": settings,
      "workers": workers,
      "single_batch": single_batch,
      "full_batch": full_batch,
    }
    command = [sys.executable, "-m", "experiments.bench.microbench", json.dumps(task), str(result)]
    process = subprocess.run(command, cwd=Path(__file__).parents[2], check=False, env=hosts.launched())
    if process.returncode or not result.exists():
      raise ValueError("the measurement failed; see the log above.")
    seconds = json.loads(result.read_text())
  return {name: {1: seconds["single"], workers: seconds["full"][name]} for name in algorithms}


def main(text: str, result: str) -> int:
  """Run a task of `measure_steps` (JSON in `text`) in each process; process 0 writes the file `result`."""
  hosts.follow_launcher()
  task = json.loads(text)
  if hosts.processes() == 1 and task["workers"] > 1:
    return hosts.launch(task["workers"], hosts.command_line())
  workers, sizes = join(), SIZES.get(task["model"], {})

  def block(name: str, hyper: dict[str, Any], batch: int) -> TimedBlock:
    trainer, components, _ = make_trainer(ModelCase(task["model"], sizes, batch), name, hyper, workers)
    return trainer_blocks(trainer, components)[0]

  blocks = {"single": block("independent", {}, task["single_batch"])}
  blocks |= {name: block(name, hyper, task["full_batch"]) for name, hyper in task["algorithms"].items()}
  seconds = {name: typical(times) for name, times in interleaved(blocks, 5).items()}
  if hosts.is_main():
    Path(result).write_text(json.dumps({"single": seconds.pop("single"), "full": seconds}))
  return 0


if __name__ == "__main__":
  sys.exit(main(*sys.argv[1:]))
