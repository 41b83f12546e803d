"""Groups of processes: started here, by Slurm or by Open MPI, and joined by `jax.distributed`."""

import itertools
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import zlib
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax._src import distributed  # its key-value store has no public name
from jax.experimental import multihost_utils

_exchanges = itertools.count()
JOINED = "DDL_PROCESS"  # rank/count@coordinator, set for the processes that `launch` starts


def launch(count: int, command: Sequence[str]) -> int:
  """Run `command` as `count` processes on this machine, joined on a loopback port. Return the exit code.

  The first process to fail ends the others. SIGTERM and Ctrl-C are passed on. The main process (rank 0) has the
  terminal; another one's stderr is shown if it failed first, with another code than the main process.
  """
  with socket.socket() as free:
    free.bind(("127.0.0.1", 0))
    coordinator = f"127.0.0.1:{free.getsockname()[1]}"
  errors = [tempfile.TemporaryFile() for _ in range(count)]  # noqa: SIM115
  children: list[subprocess.Popen[bytes]] = []

  def forward(number: int, _frame: object) -> None:
    for child in children:
      if child.poll() is None:
        child.send_signal(number)

  before = {number: signal.signal(number, forward) for number in (signal.SIGTERM, signal.SIGINT)}
  first = None
  try:
    for rank in range(count):
      child = subprocess.Popen(
        command,
        env=os.environ | {JOINED: f"{rank}/{count}@{coordinator}"},
        stdout=subprocess.DEVNULL if rank else None,
        stderr=errors[rank] if rank else None,
        start_new_session=True,  # else a terminal's Ctrl-C reaches them twice, and the second kills
      )
      children.append(child)
    while any(child.poll() is None for child in children):
      failed = [rank for rank, child in enumerate(children) if child.poll()]
      if failed:
        first = failed[0] if first is None else first
        time.sleep(1)  # a common stop reaches all within a step; without one the others wait for the dead process
        forward(signal.SIGKILL, None)
      time.sleep(0.02)
  finally:
    for number, handler in before.items():
      signal.signal(number, handler)
  codes = [child.wait() for child in children]
  if first and codes[0] != codes[first]:
    errors[first].seek(0)
    sys.stderr.write(errors[first].read().decode(errors="replace"))
  code = codes[first or 0]
  if first is not None and code < 0:
    sys.stderr.write(
      f"process {first} of {count} was killed by {signal.Signals(-code).name}, so the others were stopped\n"
    )
  return code if code >= 0 else 128 - code


def processes() -> int:
  """Return the number of processes in this one's group: ours, Slurm's or Open MPI's; 1 without a group."""
  env = os.environ
  if JOINED in env:
    return int(env[JOINED].split("@")[0].split("/")[1])
  if "OMPI_COMM_WORLD_SIZE" in env:
    return int(env["OMPI_COMM_WORLD_SIZE"])
  return int(env.get("SLURM_NTASKS", "1")) if "SLURM_STEP_ID" in env else 1


def join() -> None:
  """Join this process to its group, if it is one of several. Call before any device use.

  Raises:
    ValueError: if Open MPI spread the processes over hosts and the first one's host is unknown.
  """
  env = os.environ
  if processes() == 1:
    return
  if JOINED in env:
    threading.Thread(target=_stop_with, args=(os.getppid(),), daemon=True).start()
    ranks, coordinator = env[JOINED].split("@")
    jax.distributed.initialize(coordinator, processes(), int(ranks.split("/")[0]))
  elif "OMPI_COMM_WORLD_SIZE" in env:
    gpu = int(env["OMPI_COMM_WORLD_LOCAL_RANK"]) if _has_gpu() else None
    jax.distributed.initialize(_open_mpi_coordinator(), processes(), int(env["OMPI_COMM_WORLD_RANK"]), gpu)
  else:
    jax.distributed.initialize()  # JAX reads Slurm's variables itself
  # Connections are made by the first collective, which waits 30 s for the others: now, as later one of them may still
  # be compiling.
  multihost_utils.sync_global_devices("joined")


def exchange(text: str, seconds: float = 60.0) -> list[str]:
  """Return the texts of all processes by rank, through their coordinator; all call this equally often.

  ValueError, which names the process, if one of them does not come to this in time.
  """
  joined, limit = distributed.global_state, int(1000 * seconds)
  if joined.client is None:
    return [text]
  name = f"ddl/exchange/{next(_exchanges)}"
  joined.client.key_value_set(f"{name}/{joined.process_id}", text)
  said = []
  for rank in range(joined.num_processes):
    try:
      said.append(joined.client.blocking_key_value_get(f"{name}/{rank}", limit))
    except jax.errors.JaxRuntimeError:
      raise ValueError(f"process {rank} has ended, or did nothing for {seconds:g} s, before the first step") from None
  joined.client.wait_at_barrier(name, limit)  # all have read them, so that each may end
  return said


def _stop_with(parent: int) -> None:
  """Send SIGTERM to this process, to save and stop, once the one that started it has ended."""
  while os.getppid() == parent:
    time.sleep(0.5)
  os.kill(os.getpid(), signal.SIGTERM)


def leave(code: int) -> None:
  """End a process of a group at once: an ordinary exit would wait for the others, which wait for this one."""
  if jax.distributed.is_initialized():
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def is_main() -> bool:
  """Return whether this process writes the files and the terminal."""
  return jax.process_index() == 0


def in_order(result: Any) -> Any:
  """Return the result of a program with collectives, which on CPUs is waited for.

  They run programs that do not depend on each other at the same time: Gloo then takes the messages of one for those of
  the other, and collectives of many wait for each other's threads for ever.
  """
  return jax.block_until_ready(result) if jax.default_backend() == "cpu" else result


class Vote:
  """An agreement of all processes on whether any of them has to stop, without waiting for the devices."""

  def __init__(self) -> None:
    """Compile the vote, unless there is one process only."""
    self._alone = jax.process_count() == 1
    if not self._alone:
      mesh = jax.make_mesh((jax.process_count(),), ("process",), devices=[_first_device(r) for r in _ranks()])
      self._split = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("process"))
      self._any = jax.jit(jnp.max, out_shardings=jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec()))

  def cast(self, stop: bool, after: Any = None) -> object:
    """Start a vote, whose result goes to `count` later, in the same order in all processes.

    after: what was dispatched before, see `in_order`.
    """
    if self._alone:
      return stop
    in_order(after)
    return in_order(self._any(jax.make_array_from_process_local_data(self._split, np.array([stop]))))

  def count(self, vote: object) -> bool:
    """Return the outcome."""
    return bool(np.asarray(vote.addressable_data(0))) if isinstance(vote, jax.Array) else bool(vote)


def _ranks() -> range:
  return range(jax.process_count())


def _first_device(rank: int) -> Any:
  return next(d for d in jax.devices() if d.process_index == rank)


def _has_gpu() -> bool:
  return os.path.exists("/dev/nvidiactl") and os.environ.get("JAX_PLATFORMS", "") != "cpu"


def _open_mpi_coordinator() -> str:
  """Return the coordinator's address under Open MPI 4 and 5; JAX itself finds that of 4 only."""
  env = os.environ
  if "JAX_COORDINATOR_ADDRESS" in env:
    return env["JAX_COORDINATOR_ADDRESS"]
  job = env.get("PMIX_NAMESPACE") or env.get("OMPI_MCA_orte_hnp_uri", "")
  port = 20000 + zlib.crc32(job.encode()) % 20000
  if env.get("OMPI_COMM_WORLD_LOCAL_SIZE") == env["OMPI_COMM_WORLD_SIZE"]:
    return f"127.0.0.1:{port}"
  if "tcp://" in (uri := env.get("OMPI_MCA_orte_hnp_uri", "")):
    return f"{uri.split('tcp://')[1].split(',')[0].split(':')[0]}:{port}"
  raise ValueError("rank 0's host is unknown under Open MPI; set JAX_COORDINATOR_ADDRESS=<rank 0's host>:<free port>")


def command_line() -> list[str]:
  """Return the command line of this process, for `launch`."""
  return [sys.executable, *sys.orig_argv[1:]]
