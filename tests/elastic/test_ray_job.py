"""The driver of elastic jobs on Ray: real actors whose training is a fake in lockstep, without JAX."""

import contextlib
import json
import os
import signal
import threading
import time

import numpy as np
import pytest

pytest.importorskip("ray")
import ray

from ddl.config.options import RunOptions
from ddl.elastic.keeper import ROUNDS, Keeper, ProcessGroup
from ddl.elastic.ray_job import ATTEMPTS, JobFailed, RayJob
from ddl.events.presence import Presence

STEPS, PROCESSES = 60, 3


def lockstep(folder, fail=lambda membership, step: None, steps=STEPS, pace=0.05):
  """Return a function that trains: each step adds 1 to a process's number, which only the keeper stores."""

  def run(membership):
    rank, step, number, sent = membership.rank, max(membership.step, 0), 0, None
    if rank in membership.survivors:
      number = int(ray.get(membership.keepers[rank].read.remote(rank, step))[1][0][0])
    line = [membership.ranks, membership.survivors, step, number, os.getpid(), ray.get_runtime_context().get_actor_id()]
    with (folder / f"log-{rank}").open("a") as log:
      log.write(json.dumps(line) + "\n")
    while step < steps:
      fail(membership, step)
      (folder / f"{membership.number}-{step}-{rank}").touch()
      while not all((folder / f"{membership.number}-{step}-{other}").exists() for other in membership.ranks):
        time.sleep(0.01)
      time.sleep(pace)
      step, number = step + 1, number + 1
      if sent:
        ray.get(sent)
      sent = membership.keeper.store.remote(membership.number, rank, step, "", [np.array([number])])
    return number

  return run


def log(folder, rank):
  file = folder / f"log-{rank}"
  return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def steps_of(folder, number):
  """The number of steps that the processes of a membership have begun."""
  return len({path.name.split("-")[1] for path in folder.glob(f"{number}-*-*")})


def until(condition, seconds=120):
  end = time.monotonic() + seconds
  while not condition():
    assert time.monotonic() < end, "timeout"
    time.sleep(0.02)


def train(folder, during=lambda: None, run=None, **options):
  """Run a job, and a function in a thread; return what the job returned, and what it printed on stderr."""
  lines = []
  options = RunOptions(processes=PROCESSES, worker_cpus=0, peer_timeout=5, **options)
  first = ProcessGroup(PROCESSES, 2 * PROCESSES, 1, tuple(range(PROCESSES)))
  job = RayJob(run or lockstep(folder), first, options, bool, lines.append)
  thread = threading.Thread(target=during)
  thread.start()
  try:
    return job.train(), lines
  finally:
    thread.join()


def exists(pid):
  with contextlib.suppress(OSError):
    os.kill(pid, 0)
    return True
  return False


SIGNALS = [
  (signal.SIGKILL, 1),
  *(pytest.param(number, rank, marks=pytest.mark.slow)
    for number in (signal.SIGKILL, signal.SIGSTOP, signal.SIGTERM) for rank in (0, 2)),
]  # fmt: skip


@pytest.mark.parametrize(("number", "rank"), SIGNALS)
def test_the_others_continue_without_a_process_that_fails(number, rank, tmp_path):
  others = [other for other in range(PROCESSES) if other != rank]

  def fail():
    until(lambda: steps_of(tmp_path, 0) > 8)
    os.kill(log(tmp_path, rank)[0][4], number)

  result, lines = train(tmp_path, fail)
  first, (ranks, survivors, step, own, *_) = log(tmp_path, others[0])
  assert (first[0], first[1], first[2]) == ([*range(PROCESSES)], [], 0)
  assert ranks == survivors == others and own == step >= 7
  assert result == STEPS and len(log(tmp_path, rank)) == 1
  assert lines == [f"process {rank} of 3 failed; 2 processes of 3 continue from step {step}"]
  until(lambda: not exists(log(tmp_path, rank)[0][4]), 10)


@pytest.mark.slow
def test_a_process_that_fails_is_replaced(tmp_path):
  def fail():
    for membership in range(2):
      until(lambda membership=membership: steps_of(tmp_path, membership) > 8)
      os.kill(log(tmp_path, 1)[membership][4], signal.SIGKILL)

  result, lines = train(tmp_path, fail, max_restarts=1)
  _, second, third = log(tmp_path, 0)
  assert second[:2] == [[0, 1, 2], [0, 2]] and second[2] == second[3]
  assert log(tmp_path, 1)[1][3] == 0
  assert third[:2] == [[0, 2], [0, 2]] and third[2] == third[3]
  assert result == STEPS and len(lines) == 2 and "process 1 of 3 failed, a replacement starts; 3 processes" in lines[0]


@pytest.mark.slow
def test_without_a_stored_state_the_job_fails(tmp_path):
  def fail(membership, step):
    if membership.rank == 1:
      os.kill(os.getpid(), signal.SIGKILL)

  begin = time.monotonic()
  with pytest.raises(JobFailed, match="process 1 of 3 failed, and no other process has completed a round") as error:
    train(tmp_path, run=lockstep(tmp_path, fail))
  assert "\n" not in str(error.value) and time.monotonic() - begin < 60


@pytest.mark.slow
def test_what_a_process_raises_ends_the_job(tmp_path):
  def fail(membership, step):
    if step == 4 and membership.rank == 1:
      raise ValueError("no space")

  with pytest.raises(ValueError, match="no space"):
    train(tmp_path, run=lockstep(tmp_path, fail))


@pytest.mark.slow
def test_training_that_fails_again_and_again_ends_the_job(tmp_path):
  def fail(membership, step):
    if step == 4 and membership.rank == 1:
      raise RuntimeError("Gloo timed out")

  with pytest.raises(JobFailed, match=rf"{ATTEMPTS} times in a row after step 4: Gloo timed out"):
    train(tmp_path, run=lockstep(tmp_path, fail))
  assert [line[2] for line in log(tmp_path, 0)] == [0, 4, 4, 4][:ATTEMPTS]


@pytest.mark.slow
def test_a_replacement_that_differs_ends_without_the_others(tmp_path):
  def fail(membership, step):
    if membership.rank == 1 and membership.survivors:
      raise ValueError("numpy is 1 in process 0 and 2 in process 1")
    if membership.rank == 1 and step == 8:
      os.kill(os.getpid(), signal.SIGKILL)

  result, lines = train(tmp_path, run=lockstep(tmp_path, fail), max_restarts=3)
  assert result == STEPS and log(tmp_path, 0)[-1][0] == [0, 2]
  assert "process 1 of 3: numpy is 1 in process 0 and 2 in process 1" in lines


@pytest.mark.slow
def test_sigterm_of_the_driver_stops_all_processes(tmp_path):
  def stop():
    until(lambda: steps_of(tmp_path, 0) > 8)
    os.kill(os.getpid(), signal.SIGTERM)

  def run(membership):
    def saved(*_):
      raise ValueError(f"saved {membership.rank}")

    signal.signal(signal.SIGTERM, saved)
    return lockstep(tmp_path)(membership)

  with pytest.raises(ValueError, match="saved 0"):
    train(tmp_path, stop, run)


def test_a_keeper_stores_the_last_rounds_of_its_membership():
  keeper = Keeper()
  keeper.begin(0, (), -1)
  for step in range(1, ROUNDS + 3):
    for rank in (0, 1):
      keeper.store(0, rank, step, f"{step}", [np.array([rank, step])])
  assert keeper.report().steps == {0: [3, 4, 5], 1: [3, 4, 5]}
  keeper.begin(1, (1, 2), 4)
  keeper.store(0, 1, 6, "late", [])
  assert keeper.report().steps == {1: [4]}
  text, [array] = keeper.read(1, 4)
  assert text == "4" and array.tolist() == [1, 4]


def test_the_presence_records_lost_workers_that_are_replaced():
  membership = ProcessGroup(3, 6, 4, (0, 1, 2), survivors=(0, 2))
  every, survivors = (0, 1, 2, 3, 4, 5), (0, 1, 4, 5)
  before = Presence(6, ((0, every), (12, survivors)))
  assert membership.continued(before, 8).changes == ((0, every), (8, survivors), (8, every))
  membership.ranks = (0, 2)
  assert membership.continued(before, 8).changes == ((0, every), (8, survivors))
  assert membership.continued(before, 16).changes == before.changes
  membership.survivors = ()
  assert membership.continued(before, 8).changes == ((0, every), (8, survivors))
