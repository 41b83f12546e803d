"""Substitutes for `srun` and `mpirun` that start processes on this machine with the variables of Slurm and Open MPI."""

import os
import socket
import subprocess
import sys
from pathlib import Path


def install(folder: Path) -> None:
  """Write the two programs to a folder."""
  folder.mkdir()
  for name in ("srun", "mpirun"):
    file = folder / name
    file.write_text(f'#!/bin/sh\nexec {sys.executable} {__file__} {name} "$@"\n')
    file.chmod(0o755)


def main(name: str, arguments: list[str]) -> int:
  """Start the processes; return the first exit code that is not 0."""
  options = dict(zip(arguments[::2], arguments[1::2], strict=False))
  if name == "srun":  # srun -N 2 --ntasks-per-node=2 COMMAND
    nodes, tasks, command = int(options["-N"]), int(arguments[2].partition("=")[2]), arguments[3:]
    count = nodes * tasks
  else:  # mpirun -np 4 COMMAND
    count, command = int(options["-np"]), arguments[2:]
  environments = [_slurm(rank, count) if name == "srun" else _open_mpi(rank, count) for rank in range(count)]
  running = [subprocess.Popen([sys.executable, *command[1:]], env=os.environ | variables) for variables in environments]
  return next((code for code in [process.wait() for process in running] if code), 0)


def _slurm(rank: int, count: int) -> dict[str, str]:
  job = str(os.getpid())  # JAX derives the port from it
  return {
    "SLURM_JOB_ID": job, "SLURM_JOBID": job, "SLURM_STEP_ID": "0", "SLURM_STEP_NODELIST": socket.gethostname(),
    "SLURM_NTASKS": str(count), "SLURM_PROCID": str(rank), "SLURM_LOCALID": str(rank),
  }  # fmt: skip


def _open_mpi(rank: int, count: int) -> dict[str, str]:
  return {
    "OMPI_COMM_WORLD_SIZE": str(count), "OMPI_COMM_WORLD_RANK": str(rank), "OMPI_COMM_WORLD_LOCAL_RANK": str(rank),
    "OMPI_COMM_WORLD_LOCAL_SIZE": str(count), "PMIX_NAMESPACE": f"test-{os.getpid()}",
  }  # fmt: skip


if __name__ == "__main__":
  sys.exit(main(sys.argv[1], sys.argv[2:]))
