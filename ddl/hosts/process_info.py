"""Which process of how many this one is, and where they meet: by flags, our launcher, Open MPI, Slurm or Kubernetes."""

import importlib.util
import os
import re
import zlib
from typing import NamedTuple

from jax._src.clusters.k8s_cluster import K8sCluster  # as initialize() asks it, but for our words and our time limit

from ddl.errors import OptionError

JOINED = "DDL_PROCESS"  # a `ProcessInfo` as text, set for the processes that `launch` starts
LAUNCHER = "DDL_LAUNCHER"  # the pid of the process that started them, which they do not outlive
FLAGS = "coordinator, num_processes and process_id"
MOST_SECONDS = 1e6  # of a timeout
ALONE = "num_processes=1 for a run of one process"


class ProcessInfo(NamedTuple):
  """A process's place in its group."""

  rank: int = 0
  count: int = 1
  coordinator: str = ""  # HOST:PORT of process 0
  gpu: int | None = None  # the only one that it uses; None: all
  cluster: str = ""  # whose environment has the numbers; "": flags, or our launcher

  def __str__(self) -> str:
    return f"{self.rank}/{self.count}@{self.coordinator}" + (f"#{self.gpu}" if self.gpu is not None else "")


_declared: list[ProcessInfo] = []  # by `declare`: at most one


def declare(coordinator: str = "", num_processes: int | None = None, process_id: int | None = None) -> ProcessInfo:
  """Say which process this is, before `join`; what is not given is what the cluster's environment tells.

  num_processes: 1 for a process alone, whatever the environment tells.

  Raises:
    ValueError: for what is missing or cannot be.
  """
  me = _found(coordinator, num_processes, process_id, kubernetes=True)
  if me.count > 1:
    check_address(me.coordinator)
  if not 0 <= me.rank < me.count:
    if me.cluster:
      raise ValueError(f"{me.cluster}'s environment has process {me.rank} of {me.count}; pass {FLAGS}, or {ALONE}")
    raise OptionError("process_id", f"in [0, {me.count - 1}] with num_processes={me.count}", me.rank)
  _declared[:] = [me]
  return me


def member() -> ProcessInfo:
  """Return this process's place: the declared one, or that of our launcher, Open MPI or Slurm, or alone."""
  return _declared[0] if _declared else _found("", None, None, kubernetes=False)


def processes() -> int:
  """Return the number of processes in this one's group; 1 without a group."""
  return member().count


def check_seconds(flag: str, seconds: float) -> float:
  """Return a timeout; ValueError for one that never or always passes, as NaN, infinity, 0 and negative ones do."""
  if not 0 < seconds <= MOST_SECONDS:
    raise OptionError(flag, f"in (0, {MOST_SECONDS:g}] seconds", seconds)
  return seconds


def whence(me: ProcessInfo) -> str:
  """Return where a process's numbers are from, as the end of an error; "" for flags and our launcher."""
  return f"; {me.cluster} has started {me.count} processes; {ALONE}" if me.cluster else ""


def check_address(text: str) -> tuple[str, int]:
  """Return host and port of HOST:PORT, or raise ValueError."""
  host, _, port = text.rpartition(":")
  if not host.strip("[]") or not port.isascii() or not port.isdigit() or not 0 < int(port) < 2**16:
    raise OptionError("coordinator", "HOST:PORT of process 0, such as 10.0.0.1:1234", repr(text))
  return host.strip("[]"), int(port)


def _found(coordinator: str, count: int | None, rank: int | None, *, kubernetes: bool) -> ProcessInfo:
  env = os.environ
  if JOINED in env:
    ranks, where = env[JOINED].split("@")
    mine, among = map(int, ranks.split("/"))
    where, _, card = where.partition("#")
    return ProcessInfo(mine, among, where, int(card) if card else None)
  if count == 1:
    if coordinator or rank:
      raise OptionError("num_processes", "above 1 with coordinator or process_id", 1)
    return ProcessInfo()
  asked = bool(coordinator) or count is not None or rank is not None
  coordinator = coordinator or env.get("JAX_COORDINATOR_ADDRESS", "")
  if coordinator and count is not None and rank is not None:
    return ProcessInfo(rank, count, coordinator)
  if "OMPI_COMM_WORLD_SIZE" in env:
    numbers = [_number(f"OMPI_COMM_WORLD_{name}", "Open MPI") for name in ("RANK", "SIZE", "LOCAL_RANK")]
    told = ProcessInfo(numbers[0], numbers[1], cluster="Open MPI")
    address, gpu = _open_mpi_coordinator, numbers[2]
  elif "SLURM_STEP_ID" in env and "SLURM_JOB_ID" in env:  # in a step; the script that starts it is one process
    # SLURM_NTASKS is the job's in an interactive step, which has a single task.
    tasks = "SLURM_STEP_NUM_TASKS" if "SLURM_STEP_NUM_TASKS" in env else "SLURM_NTASKS"
    size = _number(tasks, "Slurm") if tasks in env else 1
    rank_and_gpu = [_number(f"SLURM_{name}", "Slurm") for name in ("PROCID", "LOCALID")] if size != 1 else [0, 0]
    told = ProcessInfo(rank_and_gpu[0], size, cluster="Slurm")
    address, gpu = _slurm_coordinator, rank_and_gpu[1]
  elif kubernetes and "JOB_COMPLETION_INDEX" in env and "KUBERNETES_SERVICE_HOST" in env:
    told, gpu = ProcessInfo(_number("JOB_COMPLETION_INDEX", "Kubernetes"), count or 0, cluster="Kubernetes"), None
    if not coordinator or count is None:
      told = ProcessInfo(told.rank, *_kubernetes(), cluster="Kubernetes")
    address = lambda: told.coordinator  # noqa: E731
  elif asked:
    values = {"coordinator": coordinator or None, "num_processes": count, "process_id": rank}
    missing = next(option for option, value in values.items() if value is None)
    raise OptionError(missing, f"set: each process needs {FLAGS}, and there is no cluster to detect them from")
  else:
    return ProcessInfo()
  count = told.count if count is None else count
  if count == 1:
    return ProcessInfo()
  cluster = told.cluster if count == told.count and rank is None else ""
  me = ProcessInfo(told.rank if rank is None else rank, count, coordinator or address(), cluster=cluster)
  return me._replace(gpu=gpu) if gpu is not None and _has_gpu() else me


def _has_gpu() -> bool:
  return os.path.exists("/dev/nvidiactl") and os.environ.get("JAX_PLATFORMS", "") != "cpu"


def _number(name: str, cluster: str) -> int:
  """Return the number in a cluster's variable; ValueError, one line, if it has none."""
  text = os.environ.get(name, "")
  if not text.isascii() or not text.isdigit():
    raise ValueError(f"{name} of {cluster}'s environment must be a number, got {text!r:.40}; pass {FLAGS}, or {ALONE}")
  return int(text)


def _slurm_coordinator() -> str:
  """Return the first host of the step, with a port from the job's number."""
  env = os.environ
  port = env.get("JAX_COORDINATOR_PORT") or 61440 + _number("SLURM_JOB_ID", "Slurm") % 4096
  if env.get("SLURM_STEP_NUM_NODES") == "1":
    return f"127.0.0.1:{port}"
  nodes = env.get("SLURM_STEP_NODELIST") or env.get("SLURM_NODELIST", "")
  host = re.sub(r"\[([^],-]+)[^]]*\]", r"\1", nodes).partition(",")[0]  # node[001-015,17],other: node001
  if not host:
    raise OptionError("coordinator", f"set: Slurm does not tell the host of process 0; or pass {ALONE}")
  return f"{host}:{port}"


def _open_mpi_coordinator() -> str:
  """Return the coordinator's address under Open MPI 4 and 5; JAX itself finds that of 4 only."""
  env = os.environ
  job = env.get("PMIX_NAMESPACE") or env.get("OMPI_MCA_orte_hnp_uri", "")
  port = 20000 + zlib.crc32(job.encode()) % 20000
  if env.get("OMPI_COMM_WORLD_LOCAL_SIZE") == env["OMPI_COMM_WORLD_SIZE"]:
    return f"127.0.0.1:{port}"
  if "tcp://" in (uri := env.get("OMPI_MCA_orte_hnp_uri", "")):
    return f"{uri.split('tcp://')[1].split(',')[0].split(':')[0]}:{port}"
  raise OptionError("coordinator", "set: Open MPI does not tell the host of process 0, which has to have a free port")


def _kubernetes() -> tuple[int, str]:
  """Return the number of pods and the address of the first, which JAX asks Kubernetes for."""
  why = 'the package kubernetes is not installed (pip install "jax[k8s]")'
  if importlib.util.find_spec("kubernetes"):
    try:
      K8sCluster.is_env_present()
      return K8sCluster.get_process_count(), K8sCluster.get_coordinator_address(5, None)
    except Exception as error:  # of its client: no permission, no service, no network
      why = " ".join(str(error).split())[:200]
  condition = "set to JOB-0.SERVICE:PORT, and num_processes to the completions, as a pod of an Indexed Job cannot find "
  raise OptionError("coordinator", f"{condition}the others: {why}; or pass {ALONE}")
