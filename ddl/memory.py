"""The memory of this machine: its size and the allocator's settings."""

import contextlib
import ctypes
import resource
from functools import cache
from pathlib import Path

LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")  # cgroup v2 and v1
M_TRIM_THRESHOLD, M_MMAP_MAX, M_ARENA_MAX = -1, -4, -8  # constants of glibc's malloc.h


@cache
def total() -> int:
  """Return the number of bytes that this process may use: memory plus swap, or a smaller cgroup limit or ulimit."""
  lines = Path("/proc/meminfo").read_text().splitlines() if Path("/proc/meminfo").exists() else []
  fields = {name: int(rest.split()[0]) * 1024 for name, _, rest in (line.partition(":") for line in lines)}
  known = [fields["MemTotal"] + fields.get("SwapTotal", 0)] if fields else []
  known += [int(text) for file in map(Path, LIMITS) if file.is_file() and (text := file.read_text().strip()).isdigit()]
  known += [soft for soft, _ in map(resource.getrlimit, (resource.RLIMIT_AS, resource.RLIMIT_DATA)) if soft > 0]
  return min(known, default=2**63)


def require(nbytes: float, what: str) -> None:
  """Raise ValueError if `what` does not fit into this machine's memory. nbytes: a lower bound on its size."""
  if nbytes > total():
    have = f"This process may use {total() / 1e9:,.1f} GB."
    raise ValueError(f"{what} must fit into memory, got at least {nbytes / 1e9:,.1f} GB. {have}")


def keep_freed() -> None:
  """Make glibc's malloc keep freed memory for reuse, in one arena. Call this function before threads start.

  Otherwise each compiled program requests memory for its arrays from the system, which zeroes it. With large batches,
  this takes 10 % of the time of a step that calls many programs. The function does nothing with other C libraries.
  """
  with contextlib.suppress(OSError, AttributeError):
    mallopt = ctypes.CDLL(None).mallopt
    mallopt(M_ARENA_MAX, 1)
    mallopt(M_MMAP_MAX, 0)
    mallopt(M_TRIM_THRESHOLD, 2**31 - 1)
