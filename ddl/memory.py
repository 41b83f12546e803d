"""This machine's memory: whether something fits into it, and how it is reused."""

import contextlib
import ctypes
import resource
from functools import cache
from pathlib import Path

LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")  # of a container, v2 and v1
M_TRIM_THRESHOLD, M_MMAP_MAX, M_ARENA_MAX = -1, -4, -8  # of glibc's malloc.h


@cache
def total() -> int:
  """Return the bytes that this process can have: the machine's memory and swap, or a smaller limit."""
  lines = Path("/proc/meminfo").read_text().splitlines() if Path("/proc/meminfo").exists() else []
  fields = {name: int(rest.split()[0]) * 1024 for name, _, rest in (line.partition(":") for line in lines)}
  known = [fields["MemTotal"] + fields.get("SwapTotal", 0)] if fields else []
  known += [int(text) for file in map(Path, LIMITS) if file.is_file() and (text := file.read_text().strip()).isdigit()]
  known += [soft for soft, _ in map(resource.getrlimit, (resource.RLIMIT_AS, resource.RLIMIT_DATA)) if soft > 0]
  return min(known, default=2**63)


def require(nbytes: float, what: str) -> None:
  """Raise ValueError, one line, if `what` needs more memory than the machine has. nbytes: a lower bound."""
  if nbytes > total():
    have = f"this machine has {total() / 1e9:,.1f} GB of memory"
    raise ValueError(f"{what}: needs at least {nbytes / 1e9:,.1f} GB; {have}")


def keep_freed() -> None:
  """Keep memory that is freed for the next that is asked for, in one pool. Call before there are threads.

  A program's arrays otherwise come from the system each time, which has to zero them: a tenth of a step of large
  batches, where a call is many programs. Nothing is done where the C library is not glibc.
  """
  with contextlib.suppress(OSError, AttributeError):
    mallopt = ctypes.CDLL(None).mallopt
    mallopt(M_ARENA_MAX, 1)
    mallopt(M_MMAP_MAX, 0)
    mallopt(M_TRIM_THRESHOLD, 2**31 - 1)
