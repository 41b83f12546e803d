"""Server algorithms across hosts: Ray places, starts, watches and replaces the processes of workers and master.

The master is a few shards. The parameters are one flat vector, cut into equal runs of bytes, and each shard runs the
algorithm's `init`, `serve` and `evaluate` on its run alone, so that these have to work coordinate by coordinate: all in
`ddl.algorithms.SERVER` do if their inner optimizer does (SGD, Adam; not one with a mask or norms of layers, which is
refused). A worker sends each shard its part; scalars go to all. Shards serve in orders of their own: only one shard's
order can be replayed.

Arrays go over a socket from worker to shard, not through Ray's object store (README.md has the exchanges per second of
experiments/bench/server_exchange.py; several shards pay where they have cores or hosts of their own).
What helped: no object store and no pickling; buffers that are handed to JAX, not copied; NumPy's `isfinite` instead of
XLA's (0.02 ms for 0.24 ms at 1 MB); one thread for XLA in a shard; an allocator that keeps its memory. `period` and
`delay` of the algorithm batch and hide the rest.
A killed worker loses its current round. If it dies while it sends, some shards may have served that visit and
others not; each shard counts its own, and the first one's count is the run's.
A checkpoint is each shard's own; on several hosts the folder has to be one that all of them see.
"""

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

from ddl.api import ServerAlgorithm, Tree
from ddl.asynchronous import ray_master, ray_transport
from ddl.asynchronous.flat_params import divides, flatten
from ddl.asynchronous.ray_master import Shard
from ddl.asynchronous.ray_supervisor import RaySupervisor, Watch, answers
from ddl.asynchronous.ray_worker import Make, RayWorker
from ddl.contract import of_server
from ddl.errors import OptionError
from ddl.events.barriers import Bounded, LiveBarrier
from ddl.events.record import Events

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
  os.environ.setdefault("RAY_worker_niceness", "0")  # 15 else: the run would wait for all other programs
  os.environ.setdefault("RAY_DEDUP_LOGS_SKIP_REGEX", "A worker died or was killed")  # which is handled, and reported
  try:
    import ray
  except ImportError as error:
    raise ValueError("Ray must be installed: pip install -r requirements-ray.txt") from error
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
    _end_agents_with_ray()
    if ray.util.get_node_ip_address() != LOOPBACK:
      ray.shutdown()
      raise ValueError(f"Ray opens ports to the network: set {ONE_HOST}=0, or import ddl's runtime before ray")
    return
  try:
    if address != "auto":
      place = urlsplit(address if "//" in address else f"//{address}")
      if not place.hostname or not place.port:
        raise OptionError("ray_address", "HOST:PORT, such as host:6379", repr(address))
      socket.create_connection((place.hostname, place.port), timeout=SECONDS).close()
      check = [sys.executable, "-m", "ray.scripts.scripts", "health-check", "--address", place.netloc]
      subprocess.run(check, timeout=2 * SECONDS, check=True, capture_output=True)  # ray.init itself takes minutes
    ray.init(address, **quiet)
  except (OSError, RuntimeError, subprocess.SubprocessError) as error:
    raise ValueError(f"Ray: no cluster answers at {address}: {str(error).splitlines()[0]}") from error


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
  """End Ray's two agents of this machine 5 s after Ray; where its driver was killed, they stay for another minute."""
  for raylet in _children(os.getpid()):
    if (Path("/proc") / raylet / "comm").read_text() == "raylet\n" and hasattr(os, "pidfd_open"):
      agents = [pid for pid in _children(raylet) if "Agent" in (Path("/proc") / pid / "cmdline").read_text()]
      subprocess.Popen([sys.executable, "-IS", "-c", AGENTS, raylet, *agents], start_new_session=True)


def _children(pid: int | str) -> list[str]:
  return [child for tasks in Path("/proc").glob(f"{pid}/task/*/children") for child in tasks.read_text().split()]


def process_environment(dtype: np.dtype, gpus: float, local: bool) -> dict[str, Any]:
  """Return the `runtime_env` of a process: JAX sees GPUs if it asked for some, and has the parameters' precision.

  local: on this machine, where ddl and the compilation cache are.
  """
  variables = (
    KEEP_MEMORY | {"JAX_ENABLE_X64": str(int(dtype == np.float64))} | ({} if gpus else {"JAX_PLATFORMS": "cpu"})
  )
  if local:
    path = (str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", ""))
    variables["PYTHONPATH"] = os.pathsep.join(filter(None, path))
    if jax.config.values["jax_compilation_cache_dir"]:
      variables |= {name.upper(): str(jax.config.values[name]) for name in CACHE}
  return {"env_vars": variables}


NOBODY_WAITS = Bounded(math.inf)  # asp


class RayCluster:
  """One run of a server algorithm on Ray. `close` ends its processes, and Ray if this object started it."""

  def __init__(
    self,
    algorithm: ServerAlgorithm,
    make: Make,
    *,
    workers: int,
    shards: int,
    folder: str | Path,
    address: str | None = None,
    cpus: float = 1,
    gpus: float = 0,
    checkpoint_every: int = 0,
    resume: bool = False,
    seed: int = 0,
    barrier: Bounded = NOBODY_WAITS,
  ):
    """make: worker -> (model, take), called in the worker's process, so that it has to be picklable (by cloudpickle).

    Args:
      workers: number of workers; more can't join than were there.
      shards: processes of the master.
      folder: of the checkpoints.
      address: of a Ray cluster; None: this machine.
      cpus, gpus: that each worker asks of Ray; JAX in a worker without GPUs runs on its CPUs.
      checkpoint_every: visits; 0: only one at the end.
      resume: go on from the newest checkpoint that all shards have.
      seed: of the peers of peer-to-peer algorithms, and of samples of the barrier.
      barrier: kept by the first shard; nobody waits for a worker that died until it is back.

    Raises:
      ValueError: one line, for invalid values, or if Ray is not installed, can't be reached, or is too small.
    """
    if address is None:
      os.environ.setdefault(ONE_HOST, "0")
    self.ray = require()
    limits = {"workers": (workers, 1), "shards": (shards, 1), "checkpoint_every": (checkpoint_every, 0)}
    for name, (value, least) in limits.items():
      if value < least:
        raise OptionError(name, f"at least {least}", value)
    if algorithm.arrivals.round_robin and barrier.bound != np.inf:
      raise ValueError('a round robin already says who waits for whom: use the barrier "asp"')
    LiveBarrier(barrier, workers=workers, seed=seed)
    self.algorithm, self.make, self.workers, self.count, self.barrier = algorithm, make, workers, shards, barrier
    self.folder, self.every, self.seed = Path(folder).absolute(), checkpoint_every, seed
    self.label = self.newest()
    if resume and self.label is None:
      raise ValueError(f"resume: {self.folder} has no checkpoint that all {shards} shards have written")
    if not resume and any(ray_master.labels(self.folder, k) for k in range(shards)):
      raise ValueError(f"{self.folder} has checkpoints of an earlier run: resume it, or use another folder")
    self.needs = {"num_cpus": cpus, "num_gpus": gpus}
    self.started, self.local = not self.ray.is_initialized(), address is None
    if self.started:
      connect(address, cpus=int(np.ceil(workers * cpus)) + shards)
    have = self.ray.cluster_resources()
    for name, want in (("CPU", workers * cpus + shards), ("GPU", workers * gpus)):
      if want > have.get(name, 0):
        self.close()
        raise ValueError(f"Ray has {have.get(name, 0):g} {name}s; {workers} workers and {shards} shards need {want:g}")
    self.supervisor: RaySupervisor | None = None
    self.stopping = False

  def run(self, params: Tree, extra: Tree, visits: int, watch: Watch, marks: Iterable[int]) -> Events:
    """Trains until so many visits are served, or `stop`, from params and extra or a checkpoint.

    watch: called with a snapshot of each of the visits `marks`, and of the end. Training does not wait for it: what it
      has not come to waits with the master, a model each. Shards cut a snapshot each at its own count of visits.

    Returns:
      The first shard's record, that of all the run if it was resumed. Workers' times are by their own clocks, moved
      to where they can be; a worker that was killed, or joined late, counts as restarted.

    Raises:
      NotFinite: one line: a message or the center.
      ValueError: one line: a shard died, or a worker keeps dying or raises.
    """
    params, extra = jax.tree.map(np.asarray, (params, extra))
    of_server(self.algorithm, params)
    flat, unravel = flatten(params)
    if not divides(self.algorithm, params):
      raise ValueError(
        "Ray: the master's shards each hold a run of the parameters, but this optimizer looks at whole arrays or at "
        "all of them; use one that goes coordinate by coordinate, such as SGD or Adam without a mask, or real threads"
      )
    parts, token = ray_transport.cut(flat.size, self.count), secrets.token_bytes(16)
    marks = [mark for mark in marks if (self.label or 0) < mark < visits]
    shards = self.shard_actors([flat[part] for part in parts], extra, visits, token, marks)
    actors = dict[int, Any]()
    try:
      addresses = answers(self.ray, [shard.open.remote(self.label) for shard in shards])
      process = process_environment(flat.dtype, self.needs["num_gpus"], self.local)
      kind = self.ray.remote(**self.needs, max_concurrency=2, runtime_env=process)(RayWorker)
      settings: dict[str, Any] = {"workers": self.workers, "seed": self.seed, "barrier": self.barrier}
      settings |= {"addresses": addresses, "token": token}
      model = self.ray.put(params), self.ray.put(extra)

      def new(rank: int) -> Any:
        return kind.remote(rank, self.algorithm, self.make, *model, **settings)

      self.supervisor = RaySupervisor(self.ray, new, actors, shards, unravel)
      self.supervisor.stopping = self.stopping
      events = self.supervisor.run(range(self.workers), visits, watch)
      self.label = len(events.worker)  # where another run goes on
      return events
    finally:
      self.supervisor = None
      for actor in (*actors.values(), *shards):
        self.ray.kill(actor)

  def stop(self) -> None:
    """End the run: its checkpoint is saved, the rounds under way are lost. From a signal's handler too."""
    self.stopping = True
    if self.supervisor:
      self.supervisor.stopping = True

  def newest(self) -> int | None:
    """The visits of the newest checkpoint that all shards have, None if there is none."""
    return ray_master.newest(self.folder, self.count)

  def add(self, worker: int) -> None:
    """A worker that left joins again, while `run` is under way. ValueError if there is none of this rank to join."""
    if self.supervisor is None or not 0 <= worker < self.workers or worker in self.supervisor.actors:
      raise ValueError(f"worker {worker} can't join: ranks are 0 to {self.workers - 1}, once each, during a run")
    self.supervisor.start(worker)

  def remove(self, worker: int) -> None:
    """Remove a worker while `run` is under way: its current round is lost. ValueError if it can't."""
    if self.supervisor is None or worker not in self.supervisor.actors or self.algorithm.arrivals.round_robin:
      raise ValueError(f"worker {worker} can't leave: it is not there, or a round robin would wait for it")
    self.supervisor.leave(worker)

  def close(self) -> None:
    """Ends Ray if this object started it."""
    if self.started and self.ray.is_initialized():
      self.ray.shutdown()

  def shard_actors(
    self, parts: list[np.ndarray], extra: Tree, visits: int, token: bytes, marks: list[int], shard: type[Shard] = Shard
  ) -> list[Any]:
    """A process for each part; token: shown by those that connect; marks: as of `run`."""
    settings = {"visits": visits, "workers": self.workers, "marks": marks, "token": token, "folder": str(self.folder)}
    settings |= {"every": self.every, "barrier": self.barrier, "seed": self.seed}
    process = process_environment(parts[0].dtype, 0, self.local)
    process["env_vars"] |= {"JAX_CPU_ENABLE_ASYNC_DISPATCH": "0", "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false"}
    kind = self.ray.remote(num_cpus=1, num_gpus=0, max_concurrency=8, runtime_env=process)(shard)
    return [kind.remote(k, self.algorithm, part, extra, **settings) for k, part in enumerate(parts)]
