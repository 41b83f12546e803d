"""Which process of how many this one is, and where they meet: by flags, our launcher, Open MPI, Slurm or Kubernetes."""

import importlib.util
import os
import zlib
from typing import NamedTuple

from jax._src.clusters.k8s_cluster import K8sCluster  # as initialize() asks it, but for our words and our time limit
from jax._src.clusters.slurm_cluster import SlurmCluster

JOINED = "DDL_PROCESS"  # a `Membership` as text, set for the processes that `launch` starts
LAUNCHER = "DDL_LAUNCHER"  # the pid of the process that started them, which they do not outlive
FLAGS = "--coordinator=HOST:PORT --num_processes=N --process_id=I"
ALONE = "--num_processes=1 for a run of this process alone"


class Membership(NamedTuple):
  """A process's place in its group."""

  rank: int = 0
  count: int = 1
  coordinator: str = ""  # HOST:PORT of process 0
  gpu: int | None = None  # the only one that it uses; None: all

  def __str__(self) -> str:
    return f"{self.rank}/{self.count}@{self.coordinator}" + (f"#{self.gpu}" if self.gpu is not None else "")


_declared: list[Membership] = []  # by `declare`: at most one


def declare(coordinator: str = "", num_processes: int | None = None, process_id: int | None = None) -> Membership:
  """Say which process this is, before `join`; what is not given is what the cluster's environment tells.

  num_processes: 1 for a process alone, whatever the environment tells.

  Raises:
    ValueError: for what is missing or cannot be.
  """
  me = _found(coordinator, num_processes, process_id, kubernetes=True)
  if me.count > 1:
    check_address(me.coordinator)
  if not 0 <= me.rank < me.count:
    raise ValueError(
      f"--process_id={me.rank} is none of --num_processes={me.count}; processes are counted from 0 to {me.count - 1}"
    )
  _declared[:] = [me]
  return me


def member() -> Membership:
  """Return this process's place: the declared one, or that of our launcher, Open MPI or Slurm, or alone."""
  return _declared[0] if _declared else _found("", None, None, kubernetes=False)


def processes() -> int:
  """Return the number of processes in this one's group; 1 without a group."""
  return member().count


def check_address(text: str) -> tuple[str, int]:
  """Return host and port of HOST:PORT, or raise ValueError."""
  host, _, port = text.rpartition(":")
  if not host.strip("[]") or not port.isascii() or not port.isdigit() or not 0 < int(port) < 2**16:
    raise ValueError(f"--coordinator={text}; invalid: must be HOST:PORT of process 0, such as 10.0.0.1:1234")
  return host.strip("[]"), int(port)


def _found(coordinator: str, count: int | None, rank: int | None, *, kubernetes: bool) -> Membership:
  env = os.environ
  if JOINED in env:
    ranks, where = env[JOINED].split("@")
    mine, among = map(int, ranks.split("/"))
    where, _, card = where.partition("#")
    return Membership(mine, among, where, int(card) if card else None)
  if count == 1:
    if coordinator or rank:
      raise ValueError("--num_processes=1 is a process alone, which reads neither --coordinator nor --process_id")
    return Membership()
  asked = bool(coordinator) or count is not None or rank is not None
  coordinator = coordinator or env.get("JAX_COORDINATOR_ADDRESS", "")
  if coordinator and count is not None and rank is not None:
    return Membership(rank, count, coordinator)
  if "OMPI_COMM_WORLD_SIZE" in env:
    told = Membership(int(env["OMPI_COMM_WORLD_RANK"]), int(env["OMPI_COMM_WORLD_SIZE"]))
    address, gpu = _open_mpi_coordinator, int(env["OMPI_COMM_WORLD_LOCAL_RANK"])
  elif "SLURM_STEP_ID" in env and SlurmCluster.is_env_present():  # in a step; the script that starts it is one process
    told = Membership(SlurmCluster.get_process_id(), SlurmCluster.get_process_count())
    address, gpu = _slurm_coordinator, SlurmCluster.get_local_process_id()
  elif kubernetes and "JOB_COMPLETION_INDEX" in env and "KUBERNETES_SERVICE_HOST" in env:
    told, gpu = Membership(int(env["JOB_COMPLETION_INDEX"]), count or 0), None
    if not coordinator or count is None:
      told = Membership(told.rank, *_kubernetes())
    address = lambda: told.coordinator  # noqa: E731
  elif asked:
    given = {"--coordinator=HOST:PORT": coordinator or None, "--num_processes=N": count, "--process_id=I": rank}
    missing = [flag for flag, value in given.items() if value is None]
    raise ValueError(f"one process of several needs {FLAGS}; no cluster tells {' and '.join(missing)} here")
  else:
    return Membership()
  count = told.count if count is None else count
  if count == 1:
    return Membership()
  me = Membership(told.rank if rank is None else rank, count, coordinator or address())
  return me._replace(gpu=gpu) if gpu is not None and _has_gpu() else me


def _has_gpu() -> bool:
  return os.path.exists("/dev/nvidiactl") and os.environ.get("JAX_PLATFORMS", "") != "cpu"


def _slurm_coordinator() -> str:
  """Return the first host of the step, with a port from the job's number."""
  address = SlurmCluster.get_coordinator_address(None, os.environ.get("JAX_COORDINATOR_PORT"))
  alone = os.environ.get("SLURM_STEP_NUM_NODES") == "1"
  return f"127.0.0.1:{address.rpartition(':')[2]}" if alone else address


def _open_mpi_coordinator() -> str:
  """Return the coordinator's address under Open MPI 4 and 5; JAX itself finds that of 4 only."""
  env = os.environ
  job = env.get("PMIX_NAMESPACE") or env.get("OMPI_MCA_orte_hnp_uri", "")
  port = 20000 + zlib.crc32(job.encode()) % 20000
  if env.get("OMPI_COMM_WORLD_LOCAL_SIZE") == env["OMPI_COMM_WORLD_SIZE"]:
    return f"127.0.0.1:{port}"
  if "tcp://" in (uri := env.get("OMPI_MCA_orte_hnp_uri", "")):
    return f"{uri.split('tcp://')[1].split(',')[0].split(':')[0]}:{port}"
  raise ValueError("process 0's host is unknown under Open MPI; pass --coordinator=HOST:PORT, its host and a free port")


def _kubernetes() -> tuple[int, str]:
  """Return the number of pods and the address of the first, which JAX asks Kubernetes for."""
  why = 'the package kubernetes is not installed (pip install "jax[k8s]")'
  if importlib.util.find_spec("kubernetes"):
    try:
      K8sCluster.is_env_present()
      return K8sCluster.get_process_count(), K8sCluster.get_coordinator_address(5, None)
    except Exception as error:  # of its client: no permission, no service, no network
      why = " ".join(str(error).split())[:200]
  raise ValueError(
    f"a pod of an Indexed Job cannot find the others: {why}; pass --coordinator=JOB-0.SERVICE:PORT "
    f"--num_processes=COMPLETIONS, or {ALONE}"
  )
