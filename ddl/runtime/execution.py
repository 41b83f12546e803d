"""Defaults of the execution for a backend and model, as measured by `python run.py bench`."""

import os
import resource
from pathlib import Path
from typing import Literal, NamedTuple

import jax

from ddl.api import Model, Tree
from ddl.runtime.layout.workers import Workers, divisors, nbytes

CALL_BYTES = 32 * 2**20  # input of one call; two of them are in memory
PACKED_BYTES = 2**17  # mean size of a leaf below which one vector saves more in calls than it costs in copies
TOGETHER_BYTES = 2**17  # of parameters, above which runs side by side lose more in caches than they save in dispatch
THREADS = ("/proc/sys/kernel/threads-max", "/proc/sys/kernel/pid_max", "/sys/fs/cgroup/pids.max")
LONGEST_CALL = 64  # steps; dispatch then takes less than a hundredth even of a 0.1 ms step


class ExecutionConfig(NamedTuple):
  """Options that change the results by rounding only, through the order of operations."""

  gradients: Literal["unroll", "vmap", "map"]  # over a device's workers
  steps: Literal["unroll", "scan"]
  steps_per_call: int
  overlap: bool = True  # False: the steps after a launch wait for its message


def cpu_devices(workers: int, processes: int = 1, members: int = 1) -> int:
  """Return the CPU devices of this process: at most one per core if that is enough for one worker's members."""
  even = [d * members // processes for d in divisors(max(workers, 1)) if d * members % processes == 0] or [members]
  cores = len(os.sched_getaffinity(0)) // processes
  return max((d for d in even if d <= cores), default=even[0])


def check_threads(count: int, what: str) -> None:
  """ValueError if `what` needs more threads than the system allows a process. A CPU device takes one."""
  limits = [int(text) for file in map(Path, THREADS) if file.is_file() and (text := file.read_text().strip()).isdigit()]
  limits += [soft for soft, _ in [resource.getrlimit(resource.RLIMIT_NPROC)] if soft > 0]
  if count >= min(limits, default=count + 1):
    raise ValueError(f"{what} take a thread each; invalid: must be below {min(limits)}, the threads of this machine")


def choose_execution(workers: Workers, dense: bool, step_bytes: int) -> ExecutionConfig:
  """Return vmap and scan for GPUs and TPUs; for CPUs unrolled gradients, and unrolled steps unless the model is dense.

  Args:
    workers: the layout.
    dense: `Model.dense`.
    step_bytes: input of all workers of one process for one step.
  """
  cap = max(1, min(LONGEST_CALL, CALL_BYTES // max(step_bytes, 1)))
  if workers.platform != "cpu":
    return ExecutionConfig("vmap", "scan", cap)
  if dense:
    return ExecutionConfig("unroll" if workers.virtual <= 16 else "map", "scan", cap)
  # Each unrolled gradient is compiled separately; a few per call hide the dispatch of a convolution.
  return ExecutionConfig("unroll", "unroll", max(1, min(cap, 8 // workers.virtual)))


def most_together(model: Model, workers: int, call_bytes: int) -> int:
  """Return how many runs that differ in their seeds are made side by side: where a step is mostly dispatch.

  call_bytes: input of one call of one run. Inputs, and all workers' parameters, are at most four times CALL_BYTES.
  """
  size = nbytes(jax.eval_shape(model.init, jax.random.key(0))[0])
  fits = 4 * CALL_BYTES // max(call_bytes, workers * size, 1)
  return max(1, min(16, fits)) if model.dense and size <= TOGETHER_BYTES else 1


def packs(params: Tree) -> bool:
  """Return whether a server holds the parameters as one vector: with small leaves of one type, and always on GPUs and
  TPUs, where copies are assumed to be cheap beside calls."""
  leaves = jax.tree.leaves(params)
  small = jax.default_backend() != "cpu" or nbytes(params) < PACKED_BYTES * len(leaves)
  return small and len({x.dtype for x in leaves}) == 1
