"""Determine a process's rank and the number of processes from flags, our launcher, Open MPI, Slurm or Kubernetes.

JAX also detects clusters, but only when processes join; ddl needs the number of processes earlier, to set the number of
devices.
"""

import os
import zlib
from typing import NamedTuple

from ddl.errors import OptionError

JOINED = "DDL_PROCESS"  # environment variable that `launch` sets in its processes: their `ProcessInfo` as text
FLAGS = "coordinator, num_processes and process_id"
SINGLE = "num_processes=1 for a run of one process"


class ProcessInfo(NamedTuple):
  """A process's rank in its group, and how to join the group."""

  rank: int = 0
  count: int = 1
  coordinator: str = ""  # HOST:PORT of process 0; "": JAX gets it from the cluster
  gpu: int | None = None  # the only GPU to use; None: all
  cluster: str = ""  # the cluster that set rank and count; "": flags or our launcher

  def __str__(self) -> str:
    return f"{self.rank}/{self.count}@{self.coordinator}" + (f"#{self.gpu}" if self.gpu is not None else "")


_declared: list[ProcessInfo] = []  # this process's info if it has been set, else empty


def declare(coordinator: str = "", num_processes: int | None = None, process_id: int | None = None) -> ProcessInfo:
  """Set this process's rank and the number of processes, before it joins; detect missing values from the environment.

  coordinator: HOST:PORT of process 0. num_processes: 1 for a run of one process, regardless of the environment.

  Raises:
    ValueError: for missing or invalid values.
  """
  return set_member(_detect(coordinator, num_processes, process_id))


def set_member(me: ProcessInfo) -> ProcessInfo:
  """Store this process's rank and group, and return them; raise ValueError if they are invalid."""
  if me.count > 1 and (me.coordinator or not me.cluster):
    check_address(me.coordinator)
  if not 0 <= me.rank < me.count:
    if me.cluster:
      option, advice = f"the rank set by {me.cluster}", f"Pass {FLAGS}, or {SINGLE}."
      raise OptionError(option, f"at least 0 and below the number of processes ({me.count})", me.rank, advice)
    raise OptionError("process_id", f"in [0, {me.count - 1}] with num_processes={me.count}", me.rank)
  _declared[:] = [me]
  return me


def member() -> ProcessInfo:
  """Return this process's rank and group: as set by `declare`, or else from our launcher, Open MPI or Slurm."""
  return _declared[0] if _declared else _detect("", None, None, kubernetes=False)


def processes() -> int:
  """Return the number of processes in this process's group; 1 without a group."""
  return member().count


def cluster_advice(me: ProcessInfo) -> str:
  """Return advice for users who did not expect the cluster to set the number of processes; "" without a cluster."""
  return f"; {me.cluster} started {me.count} processes; pass {SINGLE}" if me.cluster else ""


def check_address(text: str) -> tuple[str, int]:
  """Split HOST:PORT into host and port; raise ValueError if invalid."""
  host, _, port = text.rpartition(":")
  if not host.strip("[]") or not port.isascii() or not port.isdigit() or not 0 < int(port) < 2**16:
    raise OptionError("coordinator", "HOST:PORT of process 0 (such as 10.0.0.1:1234)", repr(text))
  return host.strip("[]"), int(port)


def host_port(host: str, port: int) -> str:
  """Join a host and a port into HOST:PORT, with an IPv6 address in brackets."""
  return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _detect(coordinator: str, count: int | None, rank: int | None, kubernetes: bool = True) -> ProcessInfo:
  env = os.environ
  if JOINED in env:
    ranks, address = env[JOINED].split("@")
    (rank, count), (address, _, gpu) = map(int, ranks.split("/")), address.partition("#")
    return ProcessInfo(rank, count, address, int(gpu) if gpu else None)
  if count == 1:
    if coordinator or rank:
      raise OptionError("num_processes", "above 1 with coordinator or process_id", 1)
    return ProcessInfo()
  values = {"coordinator": coordinator or None, "num_processes": count, "process_id": rank}
  coordinator = coordinator or env.get("JAX_COORDINATOR_ADDRESS", "")
  if coordinator and count is not None and rank is not None:
    return ProcessInfo(rank, count, coordinator)
  me, local_rank = _cluster(count, kubernetes)
  if not me.cluster and any(value is not None for value in values.values()):
    missing = next(option for option, value in values.items() if value is None)
    raise OptionError(missing, f"set (each process needs {FLAGS}, and there is no cluster to detect them from)")
  if (count or me.count) == 1:
    return ProcessInfo()
  changed = rank is not None or count not in (None, me.count)
  return ProcessInfo(
    me.rank if rank is None else rank,
    count or me.count,
    coordinator or me.coordinator or _open_mpi_coordinator(me),
    local_rank if os.path.exists("/dev/nvidiactl") and env.get("JAX_PLATFORMS", "") != "cpu" else None,
    "" if changed and coordinator else me.cluster,
  )


def _cluster(count: int | None, kubernetes: bool) -> tuple[ProcessInfo, int | None]:
  """Return the rank and count that the cluster's environment variables set, and the rank on this host (None: unknown).

  Without a cluster, return the default `ProcessInfo` and None. count: the option num_processes, because Kubernetes does
  not provide it; kubernetes: whether to detect Kubernetes.
  """
  env = os.environ
  if "OMPI_COMM_WORLD_SIZE" in env:
    rank, size, local = (_number(f"OMPI_COMM_WORLD_{name}", "Open MPI") for name in ("RANK", "SIZE", "LOCAL_RANK"))
    return ProcessInfo(rank, size, cluster="Open MPI"), local
  if "SLURM_STEP_ID" in env and "SLURM_JOB_ID" in env:  # in a step; the script that starts it is one process
    # In an interactive step, which has a single task, SLURM_NTASKS is the number of tasks of the job.
    tasks = "SLURM_STEP_NUM_TASKS" if "SLURM_STEP_NUM_TASKS" in env else "SLURM_NTASKS"
    size = _number(tasks, "Slurm") if tasks in env else 1
    rank, local = (_number(f"SLURM_{name}", "Slurm") for name in ("PROCID", "LOCALID")) if size != 1 else (0, 0)
    return ProcessInfo(rank, size, cluster="Slurm"), local
  if kubernetes and "JOB_COMPLETION_INDEX" in env and "KUBERNETES_SERVICE_HOST" in env:
    rank = _number("JOB_COMPLETION_INDEX", "Kubernetes")
    if count is None:
      raise OptionError("num_processes", "set to `completions` of the Kubernetes Job", None, f"Or pass {SINGLE}.")
    return ProcessInfo(rank, count, cluster="Kubernetes"), None
  return ProcessInfo(), None


def _number(name: str, cluster: str) -> int:
  """Return the integer in an environment variable that a cluster sets; raise ValueError unless it is >= 0."""
  text = os.environ.get(name, "")
  if not text.isascii() or not text.isdigit():
    raise ValueError(f"{name}, set by {cluster}, must be an integer >= 0, got {text!r:.40}. Pass {FLAGS}, or {SINGLE}.")
  return int(text)


def _open_mpi_coordinator(me: ProcessInfo) -> str:
  """Return HOST:PORT for the coordinator under Open MPI 5, where JAX cannot detect it; otherwise "".

  Raises OptionError for Open MPI 5 if the processes are on several hosts.
  """
  env = os.environ
  if me.cluster != "Open MPI" or "OMPI_MCA_orte_hnp_uri" in env:
    return ""
  if env.get("OMPI_COMM_WORLD_LOCAL_SIZE") == env["OMPI_COMM_WORLD_SIZE"]:
    return f"127.0.0.1:{20000 + zlib.crc32(env.get('PMIX_NAMESPACE', '').encode()) % 20000}"
  condition = "HOST:PORT, the host of process 0 and a free port on it"
  raise OptionError("coordinator", condition, "nothing", "Open MPI 5 does not provide this address.")
