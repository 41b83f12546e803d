"""Ray itself: started on this machine or joined, and the environment of its processes."""

import os
import socket
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import jax
import numpy as np

SECONDS = 5.0  # to reach an address
# The C library would give large arrays back at once, and each visit would wait for new pages.
KEEP_MEMORY = {"MALLOC_MMAP_THRESHOLD_": str(2**25), "MALLOC_TRIM_THRESHOLD_": str(2**32), "MALLOC_ARENA_MAX": "1"}
# A compilation cache is this machine's.
CACHE = ("jax_enable_compilation_cache", "jax_compilation_cache_dir", "jax_persistent_cache_min_compile_time_secs")
LOOPBACK = "127.0.0.1"
ONE_HOST = (
  "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"  # "0" when ray is imported: what makes all its processes bind to loopback
)


def require() -> Any:
  """The module `ray`, not yet started. ValueError if it is not installed."""
  os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
  os.environ.setdefault("RAY_enable_worker_prestart", "0")  # processes for every slot, whether it is used or not
  os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # says nothing of GPUs to those that asked for none
  try:
    import ray
  except ImportError as error:
    raise ValueError("the runtime ray needs Ray: pip install -r requirements-ray.txt") from error
  return ray


def connect(address: str | None, *, cpus: int, dashboard: bool = False) -> None:
  """Starts Ray on this machine, at loopback alone, with so many slots for processes; or joins a cluster ("host:port").

  Raises:
    ValueError: if Ray is not installed or the address can't be reached.
  """
  if address is None:
    os.environ.setdefault(ONE_HOST, "0")
  ray = require()
  quiet: dict[str, Any] = {"logging_level": "error", "log_to_driver": False}
  if address is None:
    slots = max(cpus, os.cpu_count() or 1)
    with warnings.catch_warnings():  # Ray sets up its processes in Python between fork and exec, which they only pass
      warnings.filterwarnings("ignore", r"os\.fork\(\) was called", RuntimeWarning)
      ray.init(num_cpus=slots, include_dashboard=dashboard, _node_ip_address=LOOPBACK, **quiet)
    if ray.util.get_node_ip_address() != LOOPBACK:
      ray.shutdown()
      raise ValueError(f"Ray opens ports to the network: set {ONE_HOST}=0, or import ddl's runtime before ray")
    return
  try:
    if address != "auto":
      place = urlsplit(address if "//" in address else f"//{address}")
      if not place.hostname or not place.port:
        raise ValueError(f'Ray: {address!r} is not an address; it looks like "host:6379"')
      socket.create_connection((place.hostname, place.port), timeout=SECONDS).close()
      check = [sys.executable, "-m", "ray.scripts.scripts", "health-check", "--address", place.netloc]
      subprocess.run(check, timeout=2 * SECONDS, check=True, capture_output=True)  # ray.init itself takes minutes
    ray.init(address, **quiet)
  except (OSError, RuntimeError, subprocess.SubprocessError) as error:
    raise ValueError(f"Ray: no cluster answers at {address}: {str(error).splitlines()[0]}") from error


def process_environment(dtype: np.dtype, gpus: float, local: bool) -> dict[str, Any]:
  """Return the `runtime_env` of a process: JAX sees GPUs if it asked for some, and has the parameters' precision.

  local: on this machine, where ddl and the compilation cache are.
  """
  variables = (
    KEEP_MEMORY | {"JAX_ENABLE_X64": str(int(dtype == np.float64))} | ({} if gpus else {"JAX_PLATFORMS": "cpu"})
  )
  if local:
    path = (str(Path(__file__).parents[3]), os.environ.get("PYTHONPATH", ""))
    variables["PYTHONPATH"] = os.pathsep.join(filter(None, path))
    if jax.config.values["jax_compilation_cache_dir"]:
      variables |= {name.upper(): str(jax.config.values[name]) for name in CACHE}
  return {"env_vars": variables}
