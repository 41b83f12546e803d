"""A device's own limits: the memory that a process has for its arrays."""

import os
import socket
import zlib
from pathlib import Path

import jax
import numpy as np
from jax.experimental import multihost_utils


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
