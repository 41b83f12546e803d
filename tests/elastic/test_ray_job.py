"""The driver of elastic jobs: real Ray actors that count steps in lockstep instead of training."""

import contextlib
import json
import os
import re
import signal
import sys
import threading
import time

import numpy as np
import pytest

pytest.importorskip("ray")
import ray

from ddl.asynchronous import ray_cluster
from ddl.config.options import RunOptions
from ddl.elastic import ray_job
from ddl.elastic.keeper import ROUNDS, Keeper, ProcessGroup
from ddl.elastic.ray_job import ATTEMPTS, JobFailed, RayJob
from ddl.events.presence import Presence

STEPS = 40


@pytest.fixture(scope="module", autouse=True)
def shared_ray():
  """Start Ray once for all jobs; shorten the time in which processes report errors after a failure."""
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(ray_job, "GRACE", 1.0)
    ray_cluster.connect(None, cpus=8)
    ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])
    yield
    ray.shutdown()


def lockstep(folder, fail=lambda membership, step: None):
  """Return a training function in which each step adds 1 to a number that only the keeper stores."""

  def run(membership):
    rank, step, number, sent = membership.rank, max(membership.step, 0), 0, None
    if rank in membership.survivors:
      number = int(ray.get(membership.keepers[rank].read.remote(rank, step))[1][0][0])
    row = [membership.ranks, membership.survivors, step, number, os.getpid(), ray.get_runtime_context().get_actor_id()]
    with (folder / f"log-{rank}").open("a") as log:
      log.write(json.dumps(row) + "\n")
    while step < STEPS:
      fail(membership, step)
      (folder / f"{membership.number}-{step}-{rank}").touch()
      while not all((folder / f"{membership.number}-{step}-{other}").exists() for other in membership.ranks):
        time.sleep(0.01)
      time.sleep(0.05)
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
  """Return the number of steps that the processes of a membership have started."""
  return len({path.name.split("-")[1] for path in folder.glob(f"{number}-*-*")})


def until(condition, seconds=120):
  end = time.monotonic() + seconds
  while not condition():
    assert time.monotonic() < end, "timeout"
    time.sleep(0.02)


def train(folder, during=lambda: None, run=None, processes=2, **options):
  """Run a job, and the function `during` in a thread; return the job's result and its lines on stderr."""
  lines = []
  options = RunOptions(processes=processes, worker_cpus=0, peer_timeout=3, **options)
  first = ProcessGroup(processes, 2 * processes, 1, tuple(range(processes)))
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


@pytest.mark.parametrize(
  ("number", "rank", "processes"),
  [
    (signal.SIGKILL, 1, 2),
    pytest.param(signal.SIGKILL, 0, 3, marks=pytest.mark.slow),
    pytest.param(signal.SIGSTOP, 2, 3, marks=pytest.mark.slow),
    pytest.param(signal.SIGTERM, 0, 3, marks=pytest.mark.slow),
  ],
)
def test_other_processes_continue_after_a_failure(number, rank, processes, tmp_path):
  others = [other for other in range(processes) if other != rank]

  def fail():
    until(lambda: steps_of(tmp_path, 0) > 8)
    os.kill(log(tmp_path, rank)[0][4], number)

  result, lines = train(tmp_path, fail, processes=processes)
  first, (ranks, survivors, step, count, *_) = log(tmp_path, others[0])
  assert (first[0], first[1], first[2]) == ([*range(processes)], [], 0)
  assert ranks == survivors == others and count == step >= 7
  assert result == STEPS and len(log(tmp_path, rank)) == 1
  continues = f"training continues from step {step} on {processes - 1} of {processes} processes"
  assert lines == [f"process {rank} of {processes} failed; {continues}"]
  until(lambda: not exists(log(tmp_path, rank)[0][4]), 10)


@pytest.mark.slow
def test_a_process_that_fails_is_replaced(tmp_path):
  def fail():
    for membership in range(2):
      until(lambda membership=membership: steps_of(tmp_path, membership) > 8)
      os.kill(log(tmp_path, 1)[membership][4], signal.SIGKILL)

  result, lines = train(tmp_path, fail, processes=3, max_restarts=1)
  _, second, third = log(tmp_path, 0)
  assert second[:2] == [[0, 1, 2], [0, 2]] and second[2] == second[3]
  assert log(tmp_path, 1)[1][3] == 0
  assert third[:2] == [[0, 2], [0, 2]] and third[2] == third[3]
  event = r"process 1 of 3 failed, a replacement starts; training continues from step \d+ on 3 of 3 processes"
  assert result == STEPS and len(lines) == 2 and re.fullmatch(event, lines[0])


@pytest.mark.slow
def test_a_failure_before_the_first_round_ends_the_job(tmp_path):
  def fail(membership, step):
    if membership.rank == 1:
      os.kill(os.getpid(), signal.SIGKILL)

  with pytest.raises(JobFailed, match="process 1 of 2 failed, and no other process has completed a round") as error:
    train(tmp_path, run=lockstep(tmp_path, fail))
  assert "\n" not in str(error.value)


@pytest.mark.slow
def test_an_error_of_a_process_ends_the_job(tmp_path):
  def fail(membership, step):
    if step == 4 and membership.rank == 1:
      raise ValueError("no space")

  with pytest.raises(ValueError, match="no space"):
    train(tmp_path, run=lockstep(tmp_path, fail))


@pytest.mark.slow
def test_repeated_failures_at_the_same_step_end_the_job(tmp_path):
  def fail(membership, step):
    if step == 4 and membership.rank == 1:
      raise RuntimeError("Gloo timed out")

  with pytest.raises(JobFailed, match=rf"{ATTEMPTS} times in a row after step 4: Gloo timed out"):
    train(tmp_path, run=lockstep(tmp_path, fail))
  assert [row[2] for row in log(tmp_path, 0)] == [0, 4, 4, 4][:ATTEMPTS]


@pytest.mark.slow
def test_other_processes_continue_without_a_replacement_that_fails(tmp_path):
  def fail(membership, step):
    if membership.rank == 1 and membership.survivors:
      raise ValueError("numpy is 1 in process 0 and 2 in process 1")
    if membership.rank == 1 and step == 8:
      os.kill(os.getpid(), signal.SIGKILL)

  result, lines = train(tmp_path, run=lockstep(tmp_path, fail), max_restarts=3)
  assert result == STEPS and log(tmp_path, 0)[-1][0] == [0]
  assert "process 1 of 2: numpy is 1 in process 0 and 2 in process 1" in lines


@pytest.mark.slow
def test_sigterm_of_the_driver_stops_all_processes(tmp_path):
  def stop():
    until(lambda: steps_of(tmp_path, 0) > 8)
    os.kill(os.getpid(), signal.SIGTERM)

  def run(membership):
    def save(*_):
      raise ValueError(f"saved {membership.rank}")

    signal.signal(signal.SIGTERM, save)
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


def test_presence_records_the_loss_of_replaced_workers():
  membership = ProcessGroup(3, 6, 4, (0, 1, 2), survivors=(0, 2))
  every, survivors = (0, 1, 2, 3, 4, 5), (0, 1, 4, 5)
  before = Presence(6, ((0, every), (12, survivors)))
  assert membership.continued(before, 8).changes == ((0, every), (8, survivors), (8, every))
  membership.ranks = (0, 2)
  assert membership.continued(before, 8).changes == ((0, every), (8, survivors))
  assert membership.continued(before, 16).changes == before.changes
  membership.survivors = ()
  assert membership.continued(before, 8).changes == ((0, every), (8, survivors))
