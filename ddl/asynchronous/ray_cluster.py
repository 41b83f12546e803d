"""Run server algorithms on Ray, which places, starts and monitors the processes of the workers and the master.

The master (the parameter server) consists of shards, one process each. Each shard runs the server's functions (`init`,
`serve`, `read`, `evaluate`) on its slice of the flat parameter vector, so these must be element-wise. All algorithms in
`ddl.algorithms.SERVER` satisfy this if their inner optimizer is element-wise. A worker sends each shard the shard's
slice of the message, and sends scalars to all shards. The shards may serve visits in different orders; a run records
the order of the first shard, and a replay repeats it.

Arrays are sent over sockets (`ray_transport`) because Ray's remote calls take 4 times as long for models of 1 MB
(docs/reference/asynchronous.md). Messages are checked with NumPy's `isfinite`, because it is ten times as fast as XLA's
for 1 MB.

A killed worker loses its current round and is replaced. If it dies while sending a message, possibly only some of the
shards serve that message; the run counts the first shard's visits. Each shard writes its own checkpoint to a folder
that all hosts share.
"""

import contextlib
import math
import os
import secrets
import socket
import subprocess
import sys
import warnings
from collections.abc import Iterable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import jax
import numpy as np

from ddl import ranges
from ddl.api import ServerAlgorithm, Tree
from ddl.asynchronous import ray_master, ray_transport
from ddl.asynchronous.flat_params import is_elementwise
from ddl.asynchronous.ray_master import Shard
from ddl.asynchronous.ray_supervisor import RaySupervisor, Watch, answers
from ddl.asynchronous.ray_worker import Make, RayWorker
from ddl.contract import of_server
from ddl.errors import OptionError, first_line
from ddl.events.barriers import Bounded, LiveBarrier, check_round_robin
from ddl.events.record import Events
from ddl.precision import ravel

SECONDS = 5.0  # timeout for connecting to an address
# By default malloc returns the memory of large arrays to the system; each visit would then wait for new pages.
KEEP_MEMORY = {"MALLOC_MMAP_THRESHOLD_": str(2**25), "MALLOC_TRIM_THRESHOLD_": str(2**32), "MALLOC_ARENA_MAX": "1"}
# JAX options of the compilation cache, which processes on this machine share.
CACHE = ("jax_enable_compilation_cache", "jax_compilation_cache_dir", "jax_persistent_cache_min_compile_time_secs")
LOOPBACK = "127.0.0.1"
ONE_HOST = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"  # environment variable; if "0" at ray's import, Ray binds to loopback
NO_BARRIER = Bounded(math.inf)  # asp: no worker waits


def require(local: bool = False) -> Any:
  """Import `ray` and return the module, without starting Ray. Raises ValueError if Ray is not installed.

  local: whether Ray, once started, refuses connections from other hosts.
  """
  if local:
    os.environ.setdefault(ONE_HOST, "0")
  os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
  os.environ.setdefault("RAY_enable_worker_prestart", "0")  # no processes for unused slots
  os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # no warning without GPUs
  os.environ.setdefault("RAY_worker_niceness", "0")  # the default, 15, yields to all other programs
  os.environ.setdefault("RAY_DEDUP_LOGS_SKIP_REGEX", "A worker died or was killed")  # the supervisor reports it
  try:
    import ray
  except ImportError as error:
    raise ValueError("Ray must be installed. Run pip install -r requirements-ray.txt.") from error
  return ray


def connect(address: str | None, *, cpus: int, dashboard: bool = False) -> None:
  """Connect to the Ray cluster at `address` (HOST:PORT or "auto"); if it is None, start Ray on this machine.

  A Ray instance that is started listens only on loopback. cpus: its minimum number of CPU slots; dashboard: whether it
  has a dashboard.

  Raises ValueError if Ray is not installed, the address is invalid, the cluster cannot be reached, or the new instance
  would listen on other interfaces.
  """
  ray = require(local=address is None)
  quiet: dict[str, Any] = {"logging_level": "error", "log_to_driver": False}
  if address is None:
    slots = max(cpus, os.cpu_count() or 1)
    with warnings.catch_warnings():  # the warning does not apply: Ray forks only to exec
      warnings.filterwarnings("ignore", r"os\.fork\(\) was called", RuntimeWarning)
      ray.init(num_cpus=slots, include_dashboard=dashboard, _node_ip_address=LOOPBACK, **quiet)
    _end_agents_with_ray()
    if ray.util.get_node_ip_address() != LOOPBACK:
      ray.shutdown()
      advice = "Otherwise Ray opens ports to the network."
      raise OptionError(f"the environment variable {ONE_HOST}", "0 before ray is imported", advice=advice)
    return
  try:
    if address != "auto":
      port, url = None, urlsplit(address if "//" in address else f"//{address}")
      with contextlib.suppress(ValueError):
        port = url.port
      if not url.hostname or not port:
        raise OptionError("ray_address", "HOST:PORT (such as host:6379) or auto", repr(address))
      socket.create_connection((url.hostname, port), timeout=SECONDS).close()
      check = [sys.executable, "-m", "ray.scripts.scripts", "health-check", "--address", url.netloc]
      subprocess.run(check, timeout=2 * SECONDS, check=True, capture_output=True)  # ray.init takes minutes to fail
    ray.init(address, **quiet)
  except (OSError, RuntimeError, UnicodeError, subprocess.SubprocessError) as error:
    raise ValueError(
      f"ray_address must be the address of a running Ray cluster, got {address} ({first_line(error)})."
    ) from error


AGENTS = """
import os, select, signal, sys, time
raylet, *agents = map(os.pidfd_open, map(int, sys.argv[1:]))
select.select([raylet], [], [])
time.sleep(5)
for agent in agents:
  try:
    signal.pidfd_send_signal(agent, signal.SIGKILL)
  except ProcessLookupError:
    pass
"""


def _end_agents_with_ray() -> None:
  """Start a process that kills Ray's agents 5 s after Ray exits; otherwise they outlive a killed driver by a minute."""
  for raylet in _children(os.getpid()):
    if (Path("/proc") / raylet / "comm").read_text() == "raylet\n" and hasattr(os, "pidfd_open"):
      agents = [pid for pid in _children(raylet) if "Agent" in (Path("/proc") / pid / "cmdline").read_text()]
      subprocess.Popen([sys.executable, "-IS", "-c", AGENTS, raylet, *agents], start_new_session=True)


def _children(pid: int | str) -> list[str]:
  return [child for tasks in Path("/proc").glob(f"{pid}/task/*/children") for child in tasks.read_text().split()]


def process_environment(dtype: np.dtype, gpus: float, local: bool) -> dict[str, Any]:
  """Return the `runtime_env` of an actor: environment variables for precision, memory and devices.

  dtype: type of the parameters; float64 enables JAX's 64-bit types.
  gpus: number of GPUs of the actor; 0: JAX uses the CPU.
  local: whether the actor runs on this machine, with this process's copy of ddl and its compilation cache.
  """
  variables = KEEP_MEMORY | {"JAX_ENABLE_X64": str(int(dtype == np.float64))}
  if not gpus:
    variables["JAX_PLATFORMS"] = "cpu"
  if local:
    path = (str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", ""))
    variables["PYTHONPATH"] = os.pathsep.join(filter(None, path))
    if jax.config.values["jax_compilation_cache_dir"]:
      variables |= {name.upper(): str(jax.config.values[name]) for name in CACHE}
  return {"env_vars": variables}


class RayCluster:
  """A run of a server algorithm on Ray. Call `close` at the end: it stops Ray if this object started it."""

  def __init__(
    self, algorithm: ServerAlgorithm, make: Make, *, workers: int, shards: int, folder: str | Path,
    address: str | None = None, cpus: float = 1, gpus: float = 0, checkpoint_every: int = 0, resume: bool = False,
    seed: int = 0, barrier: Bounded = NO_BARRIER,
  ):  # fmt: skip
    """Connect to Ray. Raises ValueError for invalid values, or if Ray is missing, unreachable or lacks resources.

    Args:
      algorithm: a server algorithm with element-wise functions.
      make: worker -> (model, take) with take: (worker, step) -> (batch, key). It is called in the worker's process;
        cloudpickle must be able to pickle it.
      workers: number of workers.
      shards: number of master processes.
      folder: folder of the checkpoints.
      address: address of a Ray cluster; None: this machine.
      cpus, gpus: resources per worker; a worker without GPUs runs JAX on the CPU.
      checkpoint_every: visits between checkpoints; 0: only at the end.
      resume: whether to continue from the newest checkpoint that all shards have.
      seed: seed for the peers of gossip algorithms and the barrier's samples.
      barrier: enforced by the first shard, which ignores a dead worker until that worker restarts.
    """
    self.ray = require(local=address is None)
    for name, value, least in ("workers", workers, 1), ("shards", shards, 1), ("checkpoint_every", checkpoint_every, 0):
      ranges.check(name, value, ranges.integers(least))
    if algorithm.arrivals.round_robin:
      check_round_robin(barrier)
    LiveBarrier(barrier, workers=workers, seed=seed)
    self.algorithm, self.make, self.workers, self.count, self.barrier = algorithm, make, workers, shards, barrier
    self.folder, self.every, self.seed = Path(folder).absolute(), checkpoint_every, seed
    self.label = self.newest()
    if resume and self.label is None:
      raise OptionError(str(self.folder), f"a folder with a checkpoint of all {shards} shards")
    if not resume and any(ray_master.labels(self.folder, k) for k in range(shards)):
      advice = "Resume that run, or use another folder."
      raise OptionError(str(self.folder), "a folder without checkpoints of an earlier run", advice=advice)
    self.needs = {"num_cpus": cpus, "num_gpus": gpus}
    self.started, self.local = not self.ray.is_initialized(), address is None
    if self.started:
      connect(address, cpus=int(np.ceil(workers * cpus)) + shards)
    resources = self.ray.cluster_resources()
    for name, needed in (("CPU", workers * cpus + shards), ("GPU", workers * gpus)):
      if needed > resources.get(name, 0):
        self.close()
        condition = f"at least {needed:g} for {workers} workers and {shards} master shards"
        raise OptionError(f"the number of {name}s of the Ray cluster", condition, f"{resources.get(name, 0):g}")
    self.supervisor: RaySupervisor | None = None
    self.stopping = False

  def run(self, params: Tree, extra: Tree, visits: int, watch: Watch, marks: Iterable[int]) -> Events:
    """Train until `visits` visits are served or `stop` is called. Start from params and extra, or from a checkpoint.

    `watch` receives a snapshot after each number of visits in `marks`, and at the end. Training does not wait for it:
    the master stores snapshots until `watch` receives them. Each shard counts its own visits, so the slices of a
    snapshot may contain the effects of different visits.

    Returns:
      The first shard's record of the whole run, including the part before a resume. Times from workers' clocks are
      clipped, so that no event precedes its cause; a worker that was killed or joined late counts as restarted.

    Raises:
      NotFinite: if a message, a reply or the center is not finite.
      ValueError: if a function of the server is not known to be element-wise, if a shard dies, or if a worker raises an
        exception or dies repeatedly.
    """
    params, extra = jax.tree.map(np.asarray, (params, extra))
    of_server(self.algorithm, params)
    flat, unravel = ravel(params)
    if not is_elementwise(self.algorithm, params):
      advice = "Use SGD or Adam without a mask, or runtime=threads, as each shard has only a slice of the parameters."
      option = "the optimizer and the server's functions"
      raise OptionError(option, "element-wise on Ray", "at least one that is not known to be", advice)
    parts, token = ray_transport.cut(flat.size, self.count), secrets.token_bytes(16)
    marks = [mark for mark in marks if (self.label or 0) < mark < visits]
    shards = self.shard_actors([np.asarray(flat[part]) for part in parts], extra, visits, token, marks)
    actors = dict[int, Any]()
    try:
      addresses = answers(self.ray, [shard.open.remote(self.label) for shard in shards])
      environment = process_environment(flat.dtype, self.needs["num_gpus"], self.local)
      actor = self.ray.remote(**self.needs, max_concurrency=2, runtime_env=environment)(RayWorker)
      settings: dict[str, Any] = {"workers": self.workers, "seed": self.seed, "barrier": self.barrier}
      settings |= {"addresses": addresses, "token": token}
      model = self.ray.put(params), self.ray.put(extra)

      def new(rank: int) -> Any:
        return actor.remote(rank, self.algorithm, self.make, *model, **settings)

      self.supervisor = RaySupervisor(self.ray, new, actors, shards, unravel)
      self.supervisor.stopping = self.stopping
      events = self.supervisor.run(range(self.workers), visits, watch)
      self.label = len(events.worker)  # a later run continues from it
      return events
    finally:
      self.supervisor = None
      for actor in (*actors.values(), *shards):
        self.ray.kill(actor)

  def stop(self) -> None:
    """End the run and save a checkpoint, which excludes unfinished rounds; safe in a signal handler."""
    self.stopping = True
    if self.supervisor:
      self.supervisor.stopping = True

  def newest(self) -> int | None:
    """Return the number of visits of the newest checkpoint that all shards have, or None."""
    return ray_master.newest(self.folder, self.count)

  def close(self) -> None:
    """Shut Ray down if this object started it."""
    if self.started and self.ray.is_initialized():
      self.ray.shutdown()

  def shard_actors(
    self, parts: list[np.ndarray], extra: Tree, visits: int, token: bytes, marks: list[int], shard: type[Shard] = Shard
  ) -> list[Any]:
    """Start and return one shard actor per slice in `parts`. token: authenticates workers; marks: as in `run`."""
    settings = {"visits": visits, "workers": self.workers, "marks": marks, "token": token, "folder": str(self.folder)}
    settings |= {"every": self.every, "barrier": self.barrier, "seed": self.seed}
    environment = process_environment(parts[0].dtype, 0, self.local)
    environment["env_vars"] |= {"JAX_CPU_ENABLE_ASYNC_DISPATCH": "0", "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false"}
    actor = self.ray.remote(num_cpus=1, num_gpus=0, max_concurrency=8, runtime_env=environment)(shard)
    return [actor.remote(k, self.algorithm, part, extra, **settings) for k, part in enumerate(parts)]
