"""How to run on this backend and model, where no flag says it. `python run.py bench` measures what stands here."""

import os
import resource
from pathlib import Path
from typing import Literal, NamedTuple

import jax

from ddl.api import Tree
from ddl.runtime.workers import Workers, nbytes

CALL_BYTES = 32 * 2**20  # input of one call, so that two prepared ones do not crowd the memory
PACKED_BYTES = 2**17  # of a leaf: below, the calls that one vector saves cost more than the copies into it and back
THREADS = ("/proc/sys/kernel/threads-max", "/proc/sys/kernel/pid_max", "/sys/fs/cgroup/pids.max")
LONGEST_CALL = 64  # steps; the share of dispatch is then below a hundredth even of a 0.1 ms step


class ExecutionConfig(NamedTuple):
  """How to run; the results agree up to the rounding of another order of operations."""

  gradients: Literal["unroll", "vmap", "map"]  # over a device's workers
  steps: Literal["unroll", "scan"]
  steps_per_call: int
  overlap: bool = True  # False: the steps after a launch wait for its message


def cpu_devices(workers: int, processes: int = 1) -> int:
  """CPU devices of this process: one per core that it has, as far as they divide its workers."""
  mine = max(workers // processes, 1)
  cores = max(len(os.sched_getaffinity(0)) // processes, 1)
  return max(d for d in range(1, min(cores, mine) + 1) if mine % d == 0)


def check_threads(count: int, what: str) -> None:
  """ValueError for more threads, which `what` needs, than the system gives a process. A CPU device takes one."""
  limits = [int(text) for file in map(Path, THREADS) if file.is_file() and (text := file.read_text().strip()).isdigit()]
  limits += [soft for soft, _ in [resource.getrlimit(resource.RLIMIT_NPROC)] if soft > 0]
  if count >= min(limits, default=count + 1):
    raise ValueError(f"{what} take a thread each: invalid: must be below {min(limits)}, the threads of this machine")


def choose_execution(workers: Workers, dense: bool, step_bytes: int) -> ExecutionConfig:
  """GPUs and TPUs: vmapped and scanned. CPUs: gradients unrolled; what loses its speed in a loop has none.

  Args:
    workers: the layout.
    dense: whether the gradients keep their speed in a loop (`Model.dense`).
    step_bytes: input of all workers of one process for one step.
  """
  cap = max(1, min(LONGEST_CALL, CALL_BYTES // max(step_bytes, 1)))
  if jax.default_backend() != "cpu":
    return ExecutionConfig("vmap", "scan", cap)
  if dense:
    return ExecutionConfig("unroll" if workers.virtual <= 16 else "map", "scan", cap)
  # Each unrolled gradient is compiled apart: a few to a call are enough to hide the dispatch of a convolution.
  return ExecutionConfig("unroll", "unroll", max(1, min(cap, 8 // workers.virtual)))


def packs(params: Tree) -> bool:
  """Whether a server has the parameters as one vector: with small leaves on average; on GPUs and TPUs always, where
  copies are taken to be cheap beside calls."""
  return jax.default_backend() != "cpu" or nbytes(params) < PACKED_BYTES * len(jax.tree.leaves(params))
