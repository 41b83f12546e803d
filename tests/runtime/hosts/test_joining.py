"""Processes that each are started by themselves, with --coordinator: all join, or each ends with one line."""

import os
import signal
import socket
import subprocess
import sys
import threading

import pytest
from helpers.commands import Command, complaint
from helpers.forks import ROOT

from ddl import hosts
from ddl.hosts import JOINED, process_info, rendezvous

TRAIN = (
  "train", "--config=configs/digits.py", "--config.workers=2", "--devices=2", "--config.steps=4",
  "--config.eval_every=4", "--join_timeout=2",
)  # fmt: skip


@pytest.fixture
def where():
  """An address that nobody has."""
  with socket.socket() as free:
    free.bind(("127.0.0.1", 0))
    return f"127.0.0.1:{free.getsockname()[1]}"


def started(folder, coordinator, rank, count=2):
  flags = (f"--coordinator={coordinator}", f"--num_processes={count}", f"--process_id={rank}")
  return Command(*TRAIN, *flags, f"--workdir={folder}/run")


ALONE = """
import os, sys
from ddl import hosts
if os.environ[hosts.JOINED].startswith("1/"):
  sys.modules["ddl.hosts.join"]._gloo_at = lambda address: os.kill(os.getpid(), 9)
hosts.declare()
hosts.join(10, 2.0)
"""


def test_one_that_is_killed_before_its_devices_is_missed(where):
  """The other one waits for its devices in C++."""
  ends = [
    subprocess.Popen(
      [sys.executable, "-c", ALONE], cwd=ROOT, env=os.environ | {JOINED: f"{rank}/2@{where}"}, stderr=-1, text=True
    )
    for rank in (0, 1)
  ]
  try:
    told = ends[0].communicate(timeout=40)[1]
    assert [each.wait(10) for each in ends] == [1, -signal.SIGKILL]
    assert told.splitlines()[-1] == "process 1 of 2 has ended"
  finally:
    for each in ends:
      each.kill()


EARLY = """
import os, sys, threading, time
from ddl import hosts
joining, made = sys.modules["ddl.hosts.join"], []
service = joining._Service
joining._Service = lambda *settings, **named: made.append(service(*settings, **named)) or made[0]
hosts.declare()
hosts.join(30, None)
for each in made:
  threading.Thread(target=each.shutdown, daemon=True).start()
time.sleep(1.5)
os._exit(0)
"""


def test_the_service_ends_after_the_calls_under_way(where):
  """Process 0 can have ended before another one has read that all have come to the end: JAX would abort that one."""
  ends = [
    subprocess.Popen(
      [sys.executable, "-c", EARLY], cwd=ROOT, env=os.environ | {JOINED: f"{rank}/2@{where}"}, stderr=-1, text=True
    )
    for rank in (0, 1)
  ]
  told = [each.communicate(timeout=40)[1] for each in ends]
  assert [each.returncode for each in ends] == [0, 0], told


@pytest.mark.slow
def test_two_train_as_one(where, tmp_path):
  first, second = (started(tmp_path, where, rank) for rank in (0, 1))
  assert (first.end().code, second.end().code) == (0, 0)
  assert (tmp_path / "run" / "result.json").exists()


def test_one_that_never_comes(where, tmp_path):
  line = complaint(started(tmp_path, where, 0).end())
  assert line.startswith(f"train: process 1 of 2 has not come to {where} within 2 s; start all, or wait longer")


def test_a_process_0_that_never_comes_and_a_host_that_is_none(where, tmp_path):
  nowhere = started(tmp_path, where, 1), started(tmp_path, "no.such.host.invalid:1234", 1)
  refused, unknown = (complaint(each.end()) for each in nowhere)
  assert refused.startswith(f"train: process 0 was not reached at {where} within 2 s: connection refused")
  assert "no.such.host.invalid:1234 within 2 s: unknown host" in unknown


def test_two_that_contradict_each_other(where):
  """Three processes have come as two: the second with a number that is taken."""
  found = []

  def come(rank, count):
    with pytest.raises(ValueError) as error:
      rendezvous.meet(rank, count, "127.0.0.1", int(where.split(":")[1]), 5.0)
    found.append(str(error.value))

  for others, words in (((1, 3), (1, 3)), "two processes have process_id=1"), (((1, 4),), "num_processes=4"):
    found.clear()
    threads = [threading.Thread(target=come, args=each) for each in ((0, 3), *others)]
    for each in threads:
      each.start()
    for each in threads:
      each.join(10)
    assert len(found) == len(threads) and all(words in line for line in found), found


def test_a_port_in_use(tmp_path):
  with socket.create_server(("127.0.0.1", 0)) as used:
    where = f"127.0.0.1:{used.getsockname()[1]}"
    line = complaint(started(tmp_path, where, 0).end())
  assert line == f"train: port {where.split(':')[1]} is in use at {where}; choose another one in coordinator"


STEP = {  # of Slurm's interactive step: the job has eight tasks
  "SLURM_JOB_ID": "4097", "SLURM_STEP_ID": "4294967290", "SLURM_NTASKS": "8", "SLURM_STEP_NUM_TASKS": "1",
  "SLURM_PROCID": "0", "SLURM_LOCALID": "0", "SLURM_NODELIST": "node[7-8]", "SLURM_STEP_NODELIST": "node7",
}  # fmt: skip
MPI = {f"OMPI_COMM_WORLD_{key}": value for key, value in (("RANK", "1"), ("SIZE", "2"), ("LOCAL_RANK", "1"))}


def place(monkeypatch, variables):
  """The process's place by a cluster's variables."""
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
    (STEP | {"SLURM_STEP_NUM_TASKS": "4", "SLURM_PROCID": "3"}, 3, 4, "node7:61441"),
    (STEP | {"SLURM_STEP_NUM_TASKS": "2", "SLURM_STEP_NODELIST": "gpu[003-015,20],x"}, 0, 2, "gpu003:61441"),
    (STEP | {"SLURM_STEP_NUM_TASKS": "2", "SLURM_STEP_NODELIST": "a[1-2]b[3-4],x"}, 0, 2, "a1b3:61441"),
    (STEP | {"SLURM_STEP_NUM_TASKS": "2", "SLURM_STEP_NUM_NODES": "1"}, 0, 2, "127.0.0.1:61441"),
    ({key: value for key, value in STEP.items() if key != "SLURM_STEP_NUM_TASKS"}, 0, 8, "node7:61441"),
    ({key: value for key, value in STEP.items() if key != "SLURM_STEP_ID"}, 0, 1, ""),  # the script of a job
    (MPI | {"OMPI_COMM_WORLD_LOCAL_SIZE": "2", "PMIX_NAMESPACE": "a"}, 1, 2, "127.0.0.1:35907"),
    (MPI | {"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "1"}, 0, 1, ""),
    (STEP | MPI | {"OMPI_COMM_WORLD_LOCAL_SIZE": "2", "PMIX_NAMESPACE": "a"}, 1, 2, "127.0.0.1:35907"),
  ],
)
def test_a_place_by_the_variables_of_a_cluster(variables, rank, count, where, monkeypatch):
  me = place(monkeypatch, variables)
  assert (me.rank, me.count, me.coordinator) == (rank, count, where)


@pytest.mark.parametrize(
  "variables",
  [
    STEP | {"SLURM_STEP_NUM_TASKS": "two"},
    STEP | {"SLURM_STEP_NUM_TASKS": "2", "SLURM_PROCID": "5"},
    STEP | {"SLURM_STEP_NUM_TASKS": "2", "SLURM_LOCALID": ""},
    STEP | {"SLURM_STEP_NUM_TASKS": "2", "SLURM_STEP_NODELIST": "", "SLURM_NODELIST": ""},
    STEP | {"SLURM_STEP_NUM_TASKS": "0"},
    MPI | {"OMPI_COMM_WORLD_SIZE": ""},
    {"OMPI_COMM_WORLD_SIZE": "2"},
    {"JOB_COMPLETION_INDEX": "first", "KUBERNETES_SERVICE_HOST": "10.0.0.1"},
  ],
)
def test_variables_that_cannot_be_name_the_way_out(variables, monkeypatch):
  with pytest.raises(ValueError, match="num_processes=1") as error:
    place(monkeypatch, variables)
  assert "\n" not in str(error.value)


def test_a_step_of_several_tasks_of_which_one_trains_names_the_way_out(where, monkeypatch):
  """Eight tasks are in the step, and only this one runs ddl."""
  variables = STEP | {"SLURM_STEP_NUM_TASKS": "8", "SLURM_STEP_NUM_NODES": "1"}
  place(monkeypatch, variables | {"JAX_COORDINATOR_PORT": where.partition(":")[2]})
  with pytest.raises(ValueError, match=r"processes 1, 2, 3, .* have not come to .*Slurm.*num_processes=1"):
    hosts.join(0.3, 30.0)


@pytest.mark.parametrize(
  "flags, words",
  [
    (("--coordinator=10.0.0.1:1234",), ("num_processes must be set",)),
    (("--coordinator=nowhere", "--num_processes=2", "--process_id=0"), ("must be HOST:PORT",)),
    (("--coordinator=a:1", "--num_processes=2", "--process_id=2"), ("process_id must be in [0, 1]", "got 2")),
    (("--processes=2", "--coordinator=a:1"), ("coordinator must be left out with processes",)),
  ],
)
def test_flags_that_cannot_be(flags, words, wrong):
  wrong(list(flags), *words)
