"""Processes started one by one with --coordinator: all join, or each exits with a one-line error."""

import os
import signal
import socket
import subprocess
import sys

import jax
import pytest
from helpers.commands import Command, complaint
from helpers.forks import ROOT

from ddl import hosts
from ddl.hosts import JOINED, process_info

TRAIN = (
  "train", "--config=configs/digits.py", "--config.workers=2", "--devices=2", "--config.steps=4",
  "--config.eval_every=4", "--join_timeout=6",
)  # fmt: skip


def free_address():
  with socket.socket() as free:
    free.bind(("127.0.0.1", 0))
    return f"127.0.0.1:{free.getsockname()[1]}"


@pytest.fixture
def where():
  return free_address()


def start(folder, coordinator, rank, count=2, *more):
  flags = (f"--coordinator={coordinator}", f"--num_processes={count}", f"--process_id={rank}", *more)
  return Command(*TRAIN, *flags, f"--workdir={folder}/run")


KILLED = """
import os
from ddl import hosts
import jax
if os.environ[hosts.JOINED].startswith("1/"):
  jax.distributed.initialize = lambda *_, initialize=jax.distributed.initialize, **named: (
    initialize(*_, **named), os.kill(os.getpid(), 9)
  )
hosts.declare()
hosts.join(20, 3.0)
"""
SHUTDOWN = """
import os, time
from ddl import hosts
hosts.declare()
hosts.join(30, 30)
time.sleep(float(os.environ[hosts.JOINED].startswith(os.environ["LATE"])))
"""


def run_pair(script, coordinator, **variables):
  """Run a script in two processes; return their exit codes and outputs on stderr."""
  processes = [
    subprocess.Popen(
      [sys.executable, "-c", script], cwd=ROOT, env=os.environ | variables | {JOINED: f"{rank}/2@{coordinator}"},
      stderr=subprocess.PIPE, text=True,
    )
    for rank in (0, 1)
  ]  # fmt: skip
  try:
    errors = [process.communicate(timeout=60)[1] for process in processes]
    return [process.returncode for process in processes], errors
  finally:
    for process in processes:
      process.kill()


@pytest.mark.slow
def test_a_process_killed_before_it_has_devices_is_detected(where):
  codes, errors = run_pair(KILLED, where)
  assert codes == [1, -signal.SIGKILL]
  assert errors[0] == "process 1 of 2 sent no heartbeat for 3 s\n"


@pytest.mark.slow
@pytest.mark.parametrize("late", ["0/", "1/"])
def test_a_process_may_exit_later_than_another(late, where):
  assert run_pair(SHUTDOWN, where, LATE=late) == ([0, 0], ["", ""])


@pytest.mark.slow
def test_two_processes_write_one_result(where, tmp_path):
  first, second = (start(tmp_path, where, rank) for rank in (0, 1))
  assert (first.end().code, second.end().code) == (0, 0)
  assert (tmp_path / "run" / "result.json").exists()


@pytest.mark.slow
def test_a_group_that_is_not_complete_in_time_is_an_error(tmp_path):
  first, second = free_address(), free_address()
  unknown = "no.such.host.invalid:1234"
  processes = [
    start(tmp_path, where, rank, 2, "--join_timeout=2") for where, rank in ((first, 0), (second, 1), (unknown, 1))
  ]
  lines = [complaint(process.end()) for process in processes]
  assert lines[0].startswith(f"train: not all 2 processes joined at {first} within 2 s; start all, ")
  assert f"joined at {second} within 2 s: process 0 cannot be reached (connection refused)" in lines[1]
  assert f"{unknown} within 2 s: process 0 cannot be reached (unknown host)" in lines[2]


@pytest.mark.slow
def test_contradictory_ranks_and_numbers_are_errors(tmp_path):
  longer = "--join_timeout=10"
  more = (longer, "--config.workers=12", "--devices=12")
  addresses = [free_address() for _ in range(3)]
  too_many = [start(tmp_path, addresses[0], 0, 2, *more), start(tmp_path, addresses[0], 2, 3, *more)]
  devices = [start(tmp_path, addresses[1], 0, 2, *more), start(tmp_path, addresses[1], 1, 3, *more)]
  more = (longer, "--config.workers=3", "--devices=3")
  same_rank = [start(tmp_path, addresses[2], rank, 3, *more) for rank in (0, 1, 1)]
  lines = [complaint(process.end()) for process in (*too_many, *devices, *same_rank)]
  assert lines[1].startswith(f"train: process 2 joined {addresses[0]}, but process 0 has a smaller num_processes")
  assert lines[3].startswith("train: the device count must be the same in all processes, got 6 in process 0, 4 in ")
  assert all("start all, each with its own process_id, " in line for line in lines[4:])


def test_a_port_in_use_is_an_error(tmp_path):
  with socket.create_server(("127.0.0.1", 0)) as used:
    where = f"127.0.0.1:{used.getsockname()[1]}"
    line = complaint(start(tmp_path, where, 0).end())
  assert line == f"train: coordinator must have a port that is not in use, got {where}."


STEP = {  # variables of an interactive step of Slurm, in a job with eight tasks
  "SLURM_JOB_ID": "4097", "SLURM_STEP_ID": "4294967290", "SLURM_NTASKS": "8", "SLURM_STEP_NUM_TASKS": "1",
  "SLURM_PROCID": "0", "SLURM_LOCALID": "0", "SLURM_NODELIST": "node[7-8]", "SLURM_STEP_NODELIST": "node7",
}  # fmt: skip
MPI = {f"OMPI_COMM_WORLD_{key}": value for key, value in (("RANK", "1"), ("SIZE", "2"), ("LOCAL_RANK", "1"))}


def detect(monkeypatch, variables):
  """Return the process info for a cluster's environment variables."""
  for name in [*os.environ]:
    if name.startswith(("SLURM_", "OMPI_", "PMI", "DDL_", "JOB_COMPLETION", "JAX_COORDINATOR")):
      monkeypatch.delenv(name)
  for name, value in variables.items():
    monkeypatch.setenv(name, value)
  monkeypatch.setattr(process_info, "_declared", [])
  return hosts.declare()


@pytest.mark.parametrize(
  "variables, rank, count, where",
  [
    (STEP, 0, 1, ""),  # one task in the step
    (STEP | {"SLURM_STEP_NUM_TASKS": "4", "SLURM_PROCID": "3"}, 3, 4, ""),  # JAX detects the coordinator
    ({key: value for key, value in STEP.items() if key != "SLURM_STEP_NUM_TASKS"}, 0, 8, ""),
    ({key: value for key, value in STEP.items() if key != "SLURM_STEP_ID"}, 0, 1, ""),  # in the script of a job
    (MPI | {"OMPI_COMM_WORLD_LOCAL_SIZE": "2", "PMIX_NAMESPACE": "a"}, 1, 2, "127.0.0.1:35907"),
    (MPI | {"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "1"}, 0, 1, ""),
    (STEP | MPI | {"OMPI_COMM_WORLD_LOCAL_SIZE": "2", "PMIX_NAMESPACE": "a"}, 1, 2, "127.0.0.1:35907"),
  ],
)
def test_rank_and_number_come_from_the_cluster(variables, rank, count, where, monkeypatch):
  me = detect(monkeypatch, variables)
  assert (me.rank, me.count, me.coordinator) == (rank, count, where)


@pytest.mark.parametrize(
  "variables",
  [
    STEP | {"SLURM_STEP_NUM_TASKS": "two"},
    STEP | {"SLURM_STEP_NUM_TASKS": "2", "SLURM_PROCID": "5"},
    STEP | {"SLURM_STEP_NUM_TASKS": "2", "SLURM_LOCALID": ""},
    STEP | {"SLURM_STEP_NUM_TASKS": "0"},
    MPI | {"OMPI_COMM_WORLD_SIZE": ""},
    {"OMPI_COMM_WORLD_SIZE": "2"},
    {"JOB_COMPLETION_INDEX": "first", "KUBERNETES_SERVICE_HOST": "10.0.0.1"},
  ],
)
def test_invalid_cluster_variables_are_errors_with_advice(variables, monkeypatch):
  with pytest.raises(ValueError, match="num_processes=1") as error:
    detect(monkeypatch, variables)
  assert "\n" not in str(error.value)


@pytest.mark.slow
def test_a_single_process_in_a_step_of_several_tasks_is_an_error_with_advice(where, tmp_path):
  variables = STEP | {"SLURM_STEP_NUM_TASKS": "8", "SLURM_STEP_NUM_NODES": "1", "SLURM_STEP_NODELIST": "localhost"}
  flags = (*TRAIN, "--config.workers=8", "--devices=8", f"--workdir={tmp_path}/run")
  line = complaint(Command(*flags, JAX_COORDINATOR_PORT=where.partition(":")[2], **variables).end())
  assert "not all 8 processes joined at the coordinator set by Slurm within 6 s" in line
  assert line.endswith("Slurm started 8 processes; pass num_processes=1 for a run of one process")


@pytest.mark.parametrize(
  "flags, words",
  [
    (("--coordinator=10.0.0.1:1234",), ("num_processes must be set",)),
    (("--coordinator=nowhere", "--num_processes=2", "--process_id=0"), ("must be HOST:PORT",)),
    (("--coordinator=a:1", "--num_processes=2", "--process_id=2"), ("process_id must be in [0, 1]", "got 2")),
    (("--processes=2", "--coordinator=a:1"), ("coordinator must be unset if processes > 1",)),
  ],
)
def test_invalid_flags_are_errors(flags, words, wrong):
  wrong(list(flags), *words)


@pytest.mark.parametrize(
  "error, lost",
  [
    (RuntimeError("[pair.cc:538] Read error [127.0.0.1]:5: Connection reset by peer; Gloo all-reduce failed"), True),
    (RuntimeError("Barrier failed: heartbeat timeout.\nRPC: /xla.coordination.CoordinationService/Barrier"), True),
    (RuntimeError("INTERNAL: shapes do not match"), False),
    (TimeoutError("Timed out while waiting for async_write_complete barrier."), True),
    (TimeoutError("[Errno 110] Connection timed out: '/mnt/data'"), False),  # of a file system
  ],
)
def test_errors_of_collectives_count_as_a_lost_process(error, lost, monkeypatch):
  monkeypatch.setattr(jax.distributed, "is_initialized", lambda: True)
  assert hosts.is_loss(error) is lost
