"""Compiler and execution options for a backend and a model, with defaults measured by `python run.py bench`.

Collectives should overlap with compute. XLA:GPU makes them asynchronous by default, XLA:CPU never does. XLA:TPU makes
all-reduces asynchronous only with the options ASYNC (openxla.org/xla/flags_guidance; MaxText's
benchmarks/xla_flags_library.py, CF_FOR_ALL_REDUCE), and even then not those that its combiner has merged into one.
Therefore, the combiner is disabled.

Compiled schedules show two more effects, which the programs take into account. XLA:TPU hides one long all-reduce better
than several simultaneous ones, even in a loop, so messages in flight are packed (`Workers.overlapped_group`). XLA:GPU
does not overlap collectives with a loop, nor does XLA:TPU if leaves cannot be packed. In these cases, the first
steps after a launch are unrolled (`DeviceFunctions.steps`). See docs/reference/dryrun.md for measurements.
"""

import contextlib
import os
import resource
import signal
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple

import jax

from ddl.api import Model, Tree
from ddl.engine.workers import Workers, divisors, nbytes
from ddl.errors import OptionError
from ddl.names import pluralize

CALL_BYTES = 32 * 2**20  # maximum input of one call of a program; the inputs of two calls are in memory at once
PACKED_BYTES = 2**17  # mean leaf size below which packing into one vector saves more time than it costs
TOGETHER_BYTES = 2**17  # parameter size above which batching workers or runs loses more by cache misses than it saves
MANY_COPIES = 16  # unrolled gradients per device above which compilation takes more than about 5 s
MANY_STEPS = 1000  # with as many steps, unrolled gradients of a larger model save more time than they take to compile
MAX_RUNS = 16  # per program; each then takes a sixteenth of the dispatch time, and more would save little
THREADS = ("/proc/sys/kernel/threads-max", "/proc/sys/kernel/pid_max", "/sys/fs/cgroup/pids.max")
LONGEST_CALL = 64  # steps; dispatch then takes less than 1 % of the time, even if a step takes only 0.1 ms


class ExecutionConfig(NamedTuple):
  """Execution options. They change the order of operations, so results differ by rounding errors."""

  gradients: Literal["unroll", "vmap", "map"]  # how gradients are computed for a device's workers
  steps: Literal["unroll", "scan"]
  steps_per_call: int  # maximum
  overlap: bool = True  # False: steps wait for messages that were launched before them
  sharding: str = "fsdp"  # of a worker's parameters over its devices: "fsdp" or a key of `Model.rules`


def layout_of(workers: Workers, execution: ExecutionConfig) -> dict[str, Any]:
  """Return the numbers of devices and processes and the execution options that a bit-exact resume must not change."""
  return {"devices": workers.devices, "execution": list(execution[:4]), "processes": jax.process_count()}


def describe_layout(workers: Workers, execution: ExecutionConfig, members: str = "") -> str:
  """Describe workers, devices and execution in one line. members: text on how devices share a worker's parameters."""
  devices = pluralize(workers.devices, f"{jax.devices()[0].platform} device")
  return (
    f"{pluralize(workers.count, 'worker')}{members} on {devices} of {pluralize(jax.process_count(), 'process')}, "
    f"{workers.virtual} each; gradients {execution.gradients}, steps {execution.steps}, up to "
    f"{execution.steps_per_call} steps a call"
  )


def cpu_devices(workers: int, processes: int = 1, members: int = 1) -> int:
  """Return a number of CPU devices for this process with which all workers spread evenly over the devices.

  It is the largest such number with at most one device per core; if none is small enough, the smallest one.

  Args:
    workers: number of workers in all processes.
    processes: number of processes, all on this machine.
    members: devices per worker.
  """
  even = [d * members // processes for d in divisors(max(workers, 1)) if d * members % processes == 0] or [members]
  cores = len(os.sched_getaffinity(0)) // processes
  return max((d for d in even if d <= cores), default=even[0])


def check_threads(option: str, count: int, processes: int = 1) -> None:
  """Raise OptionError if the number of CPU devices or threads set by an option reaches this machine's thread limit."""
  limits = [int(text) for file in map(Path, THREADS) if file.is_file() and (text := file.read_text().strip()).isdigit()]
  limits += [soft for soft, _ in [resource.getrlimit(resource.RLIMIT_NPROC)] if soft > 0]
  if count // processes >= min(limits, default=count + 1):
    factor = f"{processes} processes x " * (processes > 1)
    raise OptionError(option, f"below {min(limits) * processes} ({factor}this machine's limit on threads)", count)


def choose_execution(workers: Workers, model: Model, step_bytes: int, steps: int) -> ExecutionConfig:
  """Choose execution options with a short total time, compilation and training, on a backend.

  On CPUs, steps are unrolled, or scanned for a dense model; on GPUs and TPUs, they are scanned.

  Args:
    workers: the workers and their devices.
    model: the model.
    step_bytes: input bytes per step of all workers of one process.
    steps: planned number of steps.
  """
  cap = max(1, min(LONGEST_CALL, CALL_BYTES // max(step_bytes, 1)))
  gradients = choose_gradients(workers, model, steps).gradients
  if workers.platform != "cpu" or model.dense:
    return ExecutionConfig(gradients, "scan", cap)
  # Each unrolled gradient is compiled separately; a few per call suffice to hide a convolution's dispatch.
  return ExecutionConfig(gradients, "unroll", max(1, min(cap, 8 // workers.virtual)))


class GradientChoice(NamedTuple):
  """A method to compute the gradients of a device's workers, and the reason for it."""

  gradients: Literal["unroll", "vmap", "map"]
  reason: str


def choose_gradients(workers: Workers, model: Model, steps: int) -> GradientChoice:
  """Choose how a device computes the gradients of its workers, by the measurements in docs/reference/benchmarks.md.

  steps: planned number of steps.
  """
  if workers.platform != "cpu":
    return GradientChoice("vmap", "the fastest on GPUs and TPUs")
  if workers.virtual == 1:
    return GradientChoice("unroll", "one worker per device")
  if not model.dense:
    return GradientChoice("unroll", "convolutions are slow in a batch of models or in a loop")
  if _params_nbytes(model) <= TOGETHER_BYTES:
    return GradientChoice("vmap", f"up to {TOGETHER_BYTES // 1024} KiB of parameters: compiles faster, runs as fast")
  if workers.virtual > MANY_COPIES and steps < MANY_STEPS:
    return GradientChoice("map", f"over {MANY_COPIES} workers per device, under {MANY_STEPS:,} steps: compiles faster")
  return GradientChoice("unroll", f"over {TOGETHER_BYTES // 1024} KiB of parameters: runs faster")


def _params_nbytes(model: Model) -> int:
  return nbytes(jax.eval_shape(model.init, jax.random.key(0))[0])


def runs_per_program(model: Model, workers: int, call_bytes: int) -> int:
  """Return the number of runs with different seeds to train in one program: several if dispatch dominates.

  call_bytes: input bytes of one call of the program for one run. Over all runs, the inputs take at most four times
  CALL_BYTES, and so do the parameters.
  """
  size = _params_nbytes(model)
  fits = 4 * CALL_BYTES // max(call_bytes, workers * size, 1)
  return max(1, min(MAX_RUNS, fits)) if model.dense and size <= TOGETHER_BYTES else 1


def packs(params: Tree) -> bool:
  """Return whether a server should store the parameters as one vector.

  It should if all parameters have the same type and, on CPUs, the leaves are small on average. On GPUs and TPUs, copies
  are assumed to be cheap.
  """
  leaves = jax.tree.leaves(params)
  small = jax.default_backend() != "cpu" or nbytes(params) < PACKED_BYTES * len(leaves)
  return small and len({x.dtype for x in leaves}) == 1


GRACE = 10.0  # seconds
OVER = b"\0"  # marks the end of a compilation, in place of a signal number
ASYNC = {
  "xla_tpu_enable_async_collective_fusion": "true",
  "xla_tpu_enable_async_collective_fusion_fuse_all_reduce": "true",
  "xla_tpu_enable_async_collective_fusion_multiple_steps": "true",
  "xla_tpu_overlap_compute_collective_tc": "true",
  "xla_enable_async_all_reduce": "true",
}
COMBINER = {  # prefix of the device kind -> options that disable the combiner
  "TPU v5 lite": {"xla_jf_crs_combiner_threshold_in_bytes": "1"},
  "TPU": {"xla_jf_crs_combiner_threshold_count": "1"},
}


def options(device: Any) -> dict[str, str]:
  """Return the compiler options for a `jax.Device`, which may belong to a topology for ahead-of-time compilation."""
  if device.platform != "tpu":
    return {}
  combiner = next(flags for kind, flags in COMBINER.items() if device.device_kind.startswith(kind))
  return ASYNC | combiner


def compiled(lowered: jax.stages.Lowered, flags: Mapping[str, str] | None = None) -> jax.stages.Compiled:
  """Compile with the options `flags`; if the compiler does not support one of them, warn and compile without any."""
  with _exit_on_sigterm():
    if not flags:
      return lowered.compile()
    try:
      return lowered.compile(compiler_options=dict(flags))
    except jax.errors.JaxRuntimeError as error:
      if "No such compile option" not in str(error):
        raise
      reason = str(error).partition("\n")[0]
      warnings.warn(f"compiled with default options, which may not overlap collectives: {reason}", stacklevel=2)
      return lowered.compile()


def exit_on_sigterm(before_exit: Callable[[], object] | None) -> None:
  """Make the process exit GRACE seconds after SIGTERM if a compilation still blocks Python's signal handlers.

  before_exit: called before the process exits with code 143; None: restore the default.
  """
  _before_exit[:] = [before_exit] if before_exit else []


_before_exit: list[Callable[[], object]] = []


@contextlib.contextmanager
def _exit_on_sigterm() -> Iterator[None]:
  if not _before_exit or threading.current_thread() is not threading.main_thread():
    yield
    return
  (reads, writes), over = os.pipe(), threading.Event()
  os.set_blocking(writes, False)

  def watch() -> None:
    while (number := os.read(reads, 1)) != OVER:
      if number == bytes([signal.SIGTERM]) and not over.wait(GRACE):
        _before_exit[0]()
        os._exit(128 + signal.SIGTERM)

  thread = threading.Thread(target=watch, daemon=True)
  thread.start()
  before = signal.set_wakeup_fd(writes, warn_on_full_buffer=False)
  try:
    yield
  finally:
    signal.set_wakeup_fd(before)
    over.set()
    os.write(writes, OVER)
    thread.join()
    os.close(reads)
    os.close(writes)
