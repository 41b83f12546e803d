"""Supervisors: real processes whose training is a fake in lockstep, what their leader decides, what memory holds."""

import contextlib
import itertools
import json
import os
import signal
import socket
import time
import warnings
from pathlib import Path

import numpy as np
import pytest
from helpers.forks import Fork

from ddl.elastic.supervision import LOST, Memory
from ddl.elastic.supervision.leader import ATTEMPTS, End, Halt, Leader, Member, Stop
from ddl.elastic.supervision.messages import Order

STEPS, SILENCE = 150, 3.0


class Jobs:
  """The processes of a job."""

  def __init__(self, folder: Path, count: int, steps: int = STEPS, started: int = 0):
    with socket.socket() as free:
      free.bind(("127.0.0.1", 0))
      self.port = free.getsockname()[1]
    self.folder, self.count, self.steps, self.made = folder, count, steps, itertools.count()
    self.each = [self.start(rank) for rank in range(started or count)]

  def start(self, rank: int, same: str = "") -> Fork:
    words = [str(self.folder), str(self.port), str(rank), str(self.count), str(SILENCE), str(self.steps), same]
    out, error = (self.folder / f"{name}-{rank}-{next(self.made)}" for name in ("out", "error"))
    return Fork(words, self.folder, out, error, "helpers.supervised")

  def again(self, rank: int) -> None:
    self.each[rank] = self.start(rank)

  def log(self, rank: int) -> list[list]:
    file = self.folder / f"log-{rank}"
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []

  def step(self, rank: int) -> int:
    file = self.folder / f"step-{rank}"
    return int((file.exists() and file.read_text()) or 0)

  def send(self, rank: int, number: int = signal.SIGKILL) -> None:
    os.kill(self.each[rank].pid, number)

  def until(self, condition, seconds: float = 60.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
      assert time.monotonic() < end, [self.log(rank) for rank in range(self.count)]
      time.sleep(0.01)

  def goes_on(self, rank: int, steps: int = 3) -> None:
    now = self.step(rank)
    self.until(lambda: self.step(rank) >= now + steps)

  def end(self) -> list[tuple[int, str]]:
    found = [each.communicate(60) for each in self.each]
    return [(each.wait(), error) for each, (_, error) in zip(self.each, found, strict=True)]

  def kill(self) -> None:
    for each in self.each:
      with contextlib.suppress(ProcessLookupError):
        os.kill(each.pid, signal.SIGKILL)
      each.wait()


@pytest.fixture
def job(tmp_path):
  """What starts the processes of a job, which end with the test."""
  made = []

  def start(count, **more):
    made.append(Jobs(tmp_path, count, **more))
    made[0].goes_on(0)
    return made[0]

  yield start
  for each in made:
    each.kill()


def members(job, rank=0):
  """Of each generation that a process was in: who was in it, who had the state, the step, its own number then."""
  return [[*line[2:4], line[4], line[6]] for line in job.log(rank) if line[0] == "begin"]


def test_the_others_go_on_and_who_comes_back_joins_them(job):
  jobs = job(3)
  jobs.send(1)
  jobs.goes_on(0)
  jobs.again(1)
  jobs.until(lambda: len(jobs.log(1)) == 2)
  ends = jobs.end()
  assert [code for code, _ in ends] == [0, 0, 0]
  (_, _, start, _), (two, stay, lost, own), (three, kept, back, mine) = members(jobs)
  assert (start, two, stay, three, kept) == (-1, [0, 2], [0, 2], [0, 1, 2], [0, 2])
  assert own == lost and mine == back  # nothing is lost or made twice
  assert members(jobs, 1)[1] == [[0, 1, 2], [0, 2], back, 0]
  assert [jobs.log(rank)[-1] for rank in range(3)] == [["end", STEPS], ["end", STEPS - back], ["end", STEPS]]
  assert ends[0][1] == (
    f"process 1 of 3 has ended; processes 0, 2 of 3 go on from step {lost}\n"
    f"process 1 of 3 has come back; all 3 processes go on from step {back}\n"
  )


def test_the_loss_of_the_one_that_leads(job):
  jobs = job(3)
  jobs.send(0)
  jobs.goes_on(1)
  jobs.again(0)
  jobs.until(lambda: len(jobs.log(0)) == 2)
  ends = jobs.end()
  assert [code for code, _ in ends] == [0, 0, 0]
  assert [each[0] for each in members(jobs, 1)] == [[0, 1, 2], [1, 2], [0, 1, 2]]
  assert "process 0 of 3 has ended; processes 1, 2 of 3 go on" in ends[1][1]


@pytest.mark.slow
def test_one_that_led_and_is_back_at_once_does_not_lead(job):
  jobs = job(3)
  jobs.send(0)
  jobs.again(0)
  ends = jobs.end()
  assert [code for code, _ in ends] == [0, 0, 0]
  assert [jobs.log(rank)[-1] for rank in (1, 2)] == [["end", STEPS]] * 2  # they kept their state
  assert ends[1][1].startswith("process 0 of 3 has ended")
  assert not [line for line in ends[1][1].splitlines() if line.startswith(("process 1", "process 2"))]


def test_where_the_training_alone_is_killed_nobody_is_lost(job):
  jobs = job(2)
  for hello in ({"rank": "x", "same": "", "address": 1, "generation": 0}, [1], "x"):  # of strangers
    with socket.create_connection(("127.0.0.1", jobs.port)) as stranger:
      stranger.sendall(json.dumps(hello).encode() + b"\n")
  os.kill(jobs.log(1)[0][-1], signal.SIGKILL)
  ends = jobs.end()
  assert [code for code, _ in ends] == [0, 0]
  (_, stay, step, own) = members(jobs, 1)[1]
  assert stay == [0, 1] and own == step
  assert jobs.log(1)[-1] == ["end", STEPS]
  assert ends[0][1].startswith("the training of process 1 of 2 was killed by SIGKILL; all 2 processes go on from step ")


@pytest.mark.slow
def test_all_but_one_are_killed_at_once(job):
  jobs = job(4)
  for rank in (0, 1, 3):
    jobs.send(rank)
  jobs.goes_on(2)
  assert [code for code, _ in jobs.end()] == [-9, -9, 0, -9]
  assert members(jobs, 2)[-1][:2] == [[2], [2]]
  assert jobs.log(2)[-1] == ["end", STEPS]


@pytest.mark.slow
@pytest.mark.parametrize("rank", [0, 2])
def test_one_that_is_stopped_is_lost_and_comes_back(rank, job):
  """Of the others, who are more, one leads; it hears so when it goes on."""
  jobs, other = job(3, steps=1000), 1
  jobs.send(rank, signal.SIGSTOP)
  os.kill(jobs.log(rank)[0][-1], signal.SIGSTOP)
  jobs.until(lambda: len(members(jobs, other)) == 2)
  jobs.goes_on(other)
  jobs.send(rank, signal.SIGCONT)
  jobs.until(lambda: len(members(jobs, other)) == 3)
  assert [code for code, _ in jobs.end()] == [0, 0, 0]
  assert [each[0] for each in members(jobs, other)] == [
    [0, 1, 2],
    [each for each in range(3) if each != rank],
    [0, 1, 2],
  ]
  assert members(jobs, rank)[-1][1] == [each for each in range(3) if each != rank]


@pytest.mark.slow
def test_a_part_that_may_be_the_smaller_one_does_not_go_on(job):
  jobs = job(2)
  jobs.send(0, signal.SIGSTOP)
  assert jobs.each[1].wait(60) == 1
  error = jobs.each[1].communicate()[1]
  assert error.splitlines()[-1].startswith("process 0 of 2 may go on without this one: 1 of the 2 that are not known")
  jobs.send(0, signal.SIGCONT)


@pytest.mark.slow
def test_one_that_is_asked_to_end_leaves_and_all_that_are_stop(job):
  jobs = job(3, steps=1500)
  jobs.send(1, signal.SIGTERM)
  assert jobs.each[1].wait(30) == 143
  jobs.goes_on(0)
  for rank in (0, 2):
    jobs.send(rank, signal.SIGTERM)
  assert [code for code, _ in jobs.end()] == [143] * 3


@pytest.mark.slow
def test_who_does_not_come_and_who_differs(tmp_path):
  jobs = Jobs(tmp_path, 2, started=1)
  assert jobs.end()[0] == (2, f"process 1 of 2 has not come to 127.0.0.1:{jobs.port} within 8 s; start all, or wait "
                              "longer with join_timeout\n")  # fmt: skip
  (tmp_path / "more").mkdir()
  jobs = Jobs(tmp_path / "more", 2)
  jobs.goes_on(0)
  jobs.send(1)
  jobs.goes_on(0)
  jobs.each[1] = jobs.start(1, same="another")
  ends = jobs.end()
  assert [code for code, _ in ends] == [0, 2] and ends[1][1] == " of 0 differs from another of 1\n"


# --- what is decided


def leader(count=3, begun=lambda: False, **more):
  found = Leader(count, begun, range(count), **more)
  for rank in range(count):
    found.come(rank, Member(("127.0.0.1", rank), 1000 + rank))
  return found


def started(count=3):
  found = leader(count)
  [order] = found.decide(True, True)
  assert order == Order(0, tuple(range(count)), (), -1, False, ("127.0.0.1", 1000), found.order.addresses)
  return found


def halted(found, held):
  """All say what they hold; the next decision."""
  assert found.decide(True, True) == [Halt()]
  for rank, steps in held.items():
    assert found.decide(True, True) == []
    found.halted(rank, found.order.generation, steps, 1000 + rank)
  [decision] = found.decide(True, True)
  return decision


def test_all_that_are_left_go_on_from_the_last_step_that_they_share():
  found = started()
  found.gone(1, "has ended", silent=False)
  order = halted(found, {0: [8, 12], 2: [4, 8]})
  assert (order.generation, order.ranks, order.stay, order.step) == (1, (0, 2), (0, 2), 8)
  found.come(1, Member(("127.0.0.1", 1), 7, [99]))
  assert found.decide(True, progressed=False) == []
  order = halted(found, {0: [16], 2: [16, 20], 1: []})
  assert (order.ranks, order.stay, order.step) == ((0, 1, 2), (0, 2), 16)


def test_without_a_state_in_memory_the_folder_is_gone_on_with():
  found = Leader(2, lambda: True, range(2))
  for rank in range(2):
    found.come(rank, Member(("127.0.0.1", rank), 1))
  found.decide(True, True)
  found.ended(0, 0, LOST)
  order = halted(found, {0: [], 1: []})
  assert (order.stay, order.step, order.resume) == ((), -1, True)


@pytest.mark.parametrize(
  "count, silent, ended, goes_on",
  [(3, [2], [], True), (3, [1, 2], [], False), (3, [1], [2], True), (2, [1], [], True), (4, [2, 3], [], True)],
)
def test_a_part_goes_on_if_it_is_the_larger_or_has_the_lowest(count, silent, ended, goes_on):
  found = started(count)
  for rank in (*silent, *ended):
    found.gone(rank, "is lost", silent=rank in silent)
  decision = halted(found, {rank: [4] for rank in range(count) if rank not in (*silent, *ended)})
  assert isinstance(decision, Order) == goes_on
  if not goes_on:
    assert isinstance(decision, End) and decision.code == 1 and "no majority" in decision.text


def test_a_half_without_the_lowest_does_not_go_on():
  order = started(2).order
  found = Leader(2, lambda: True, {1}, order)
  found.gone(0, "is lost", silent=True)
  found.come(1, Member(("127.0.0.1", 1), 1, [4]))
  [decision] = found.decide(True, True)
  assert isinstance(decision, End) and decision.code == 1


def test_the_job_ends_with_all_or_with_a_failure():
  found = started()
  for rank, code in ((0, 0), (1, 0)):
    found.ended(rank, 0, code)
    assert found.decide(True, True) == []
  found.ended(2, 0, 0)
  assert found.decide(True, True) == [End(0, "", (0, 1, 2))]
  found = started()
  found.ended(1, 0, 2)
  assert found.decide(True, True) == [End(2, "process 1 of 3 has failed with exit code 2", (0, 1, 2))]


def test_one_that_fails_as_it_joins_is_sent_away_alone():
  found = started(2)
  found.gone(1, "has ended", silent=False)
  halted(found, {0: [4]})
  found.come(1, Member(("127.0.0.1", 1), 7))
  halted(found, {0: [8], 1: []})
  found.ended(1, 2, 2)
  assert found.decide(True, True) == [End(2, "", (1,))]
  assert halted(found, {0: [8]}).ranks == (0,)


def test_training_that_fails_again_and_again_ends_the_job():
  found = started(1)
  for generation in range(ATTEMPTS):
    found.ended(0, generation, -11)
    decision = halted(found, {0: [8]})
  assert isinstance(decision, End) and "3 times in a row" in decision.text


def test_who_is_asked_to_end_leaves_unless_all_are():
  found = started()
  found.leave(1, signal.SIGTERM)
  assert found.decide(settled=False, progressed=True) == []
  [end] = found.decide(settled=True, progressed=True)
  assert (end.code, end.ranks) == (143, (1,)) and 1 not in found.members
  assert halted(found, {0: [4], 2: [4]}).ranks == (0, 2)
  found.leave(0, signal.SIGTERM)
  found.leave(2, signal.SIGTERM)
  assert found.decide(settled=True, progressed=True) == [Stop(signal.SIGTERM)]
  found.ended(0, 1, 143)
  assert found.decide(settled=True, progressed=True) == []
  found.ended(2, 1, 143)
  assert found.decide(settled=True, progressed=True) == [End(143, "", (0, 2))]


@pytest.mark.parametrize(
  "codes, end",
  [
    ((143, 1, 1), 143),
    ((1, 143, 143), 143),
    ((143, 130, 0), 143),
    ((1, None, 1), None),
    ((2, 2, 2), 2),
    ((143, LOST, 143), Halt()),
  ],
)
def test_a_job_whose_training_stops_before_all_of_it_is_there_ends(codes, end):
  found = started()
  for rank in range(3):
    found.leave(rank, signal.SIGTERM)
  assert found.decide(True, True) == [Stop(signal.SIGTERM)]
  for rank, code in enumerate(codes):
    if code is not None:
      found.ended(rank, 0, code)
  decisions = found.decide(True, True)
  assert [each.code if isinstance(each, End) else each for each in decisions] == ([] if end is None else [end])


@pytest.mark.parametrize("codes, end", [((143, None, None), 143), ((None, 143, 1), 143), ((1, None, None), 1)])
def test_a_job_of_which_some_do_not_stop_ends_without_them(codes, end):
  """They may wait in C++ for one that has."""
  found = started()
  for rank in range(3):
    found.leave(rank, signal.SIGTERM)
  assert found.decide(True, True) == [Stop(signal.SIGTERM)] and not found.partly_stopped
  for rank, code in enumerate(codes):
    if code is not None:
      found.ended(rank, 0, code)
  assert found.partly_stopped and found.decide(True, True) == []
  [decision] = found.decide(True, True, overdue=True)
  assert decision.code == end


def test_a_job_that_has_not_begun_ends_with_one_that_is_asked_to():
  found = Leader(2, lambda: False, range(2))
  found.come(0, Member(("127.0.0.1", 1), 1))
  assert found.decide(True, True) == []
  found.leave(0, signal.SIGINT)
  assert found.decide(False, False) == [End(130, "", (0,))]


# --- memory


def test_memory_outlives_the_process_that_writes_it():
  memory = Memory()
  import ml_dtypes

  arrays = [
    np.arange(6, dtype=np.float32).reshape(2, 3),
    np.array(True),
    np.array([1, 2], ml_dtypes.bfloat16),
    np.zeros((0, 3)),
  ]
  with warnings.catch_warnings():
    warnings.simplefilter("ignore", RuntimeWarning)  # JAX's, of its threads
    pid = os.fork()
  if not pid:
    memory.write(4, "four", [np.zeros(1)])
    memory.write(8, "eight", [np.zeros(1000)])
    memory.write(12, "twelve", arrays)
    os._exit(0)
  os.waitpid(pid, 0)
  assert memory.held() == [8, 12]
  text, found = memory.read(12)
  assert text == "twelve"
  for one, other in zip(found, arrays, strict=True):
    assert one.dtype == other.dtype
    np.testing.assert_array_equal(one, other)
  memory.forget_after(8)
  assert memory.held() == [8] and memory.read(8)[1][0].shape == (1000,)
  with pytest.raises(KeyError):
    memory.read(12)
  memory.clear()
  assert memory.held() == []
