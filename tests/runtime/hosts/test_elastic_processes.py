"""`--elastic`: of real processes one is lost, and the others go on as the same run in virtual time does."""

import json
import os
import signal
import socket
from pathlib import Path

import pytest
from helpers.commands import Command, metrics

FLAGS = (
  "--config=configs/digits.py", "--elastic", "--config.algorithm.name=dasgd", "--config.workers=6",
  "--config.steps=2400", "--config.eval_every=100", "--peer_timeout=10",
)  # fmt: skip
ROUNDED = ("train_loss", "test_loss", "test_accuracy", "distance")  # which other layouts change by rounding
pytestmark = pytest.mark.slow


class Three:
  """A job of three processes, each with a command of its own."""

  def __init__(self, folder, *more):
    with socket.socket() as free:
      free.bind(("127.0.0.1", 0))
      where = f"--coordinator=127.0.0.1:{free.getsockname()[1]}"
    self.words = (*FLAGS, *more, where, "--num_processes=3", f"--workdir={folder}")
    self.folder = folder
    self.each = [self.start(rank) for rank in range(3)]

  def start(self, rank, *more):
    return Command("train", *self.words, f"--process_id={rank}", *more)

  def past(self, lines, rank=2):
    self.each[rank].wait_for(lambda: len(metrics(self.folder)) > lines)

  def present(self):
    lines = metrics(self.folder)
    return lines[-1]["present"] if lines else 0

  def end(self):
    return [each.end() for each in self.each]


def presence(folder):
  return json.loads((folder / "presence.json").read_text())


def agrees_with_its_replay(folder, alone):
  """Whose bytes, examples and workers are the same, and whose losses are so up to rounding."""
  done = Command("train", *FLAGS, f"--replay={folder / 'presence.json'}", f"--workdir={alone}").end()
  assert done.code == 0, done
  here, there = metrics(folder), metrics(alone)
  assert len(here) == len(there) == 25
  for one, other in zip(here, there, strict=True):
    other.pop("virtual_seconds")
    assert {**one, **{name: 0 for name in ROUNDED}} == {**other, **{name: 0 for name in ROUNDED}}
    for name in {*ROUNDED} & {*one}:
      assert one[name] == pytest.approx(other[name], rel=0.02, abs=5e-3), (name, one, other)


@pytest.mark.parametrize("rank", [0, 1])
def test_the_others_go_on(rank, tmp_path):
  job = Three(tmp_path / "run")
  job.past(6)
  os.kill(job.each[rank].process.pid, signal.SIGKILL)
  ends = job.end()
  assert [done.code for done in ends] == [-9 if each == rank else 0 for each in range(3)], ends
  ids = [worker for worker in range(6) if worker // 2 != rank]
  (_, step), stayed = zip(*presence(tmp_path / "run"), strict=True)
  assert [*stayed] == [[*range(6)], ids] and step % 4 == 0 and 500 < step < 2400
  first, second = (each for each in range(3) if each != rank)
  words = f"train: process {rank} of 3 has ended; processes {first}, {second} of 3 go on from step {step}"
  assert [line for line in ends[first].error.splitlines() if "left" not in line] == [words]
  assert metrics(tmp_path / "run")[-1]["present"] == 4
  agrees_with_its_replay(tmp_path / "run", tmp_path / "alone")


def test_all_come_back_one_after_the_other(tmp_path):
  job = Three(tmp_path / "run", "--config.steps=30000", "--config.batch=256")
  job.past(4)
  os.kill(job.each[0].process.pid, signal.SIGKILL)
  job.each[2].wait_for(lambda: job.present() == 4)
  job.each[0] = job.start(0, "--config.optimizer.learning_rate=0.5")
  assert "learning_rate is 0.05 in process 1 and 0.5 in process 0" in job.each[0].end().error
  job.each[0] = job.start(0)
  job.each[2].wait_for(lambda: job.present() == 6)
  os.kill(job.each[2].process.pid, signal.SIGKILL)
  job.each[1].wait_for(lambda: job.present() == 4)
  job.each[2] = job.start(2)
  job.each[1].wait_for(lambda: job.present() == 6)
  for each in job.each:
    os.kill(each.process.pid, signal.SIGTERM)
  ends = job.end()
  assert [done.code for done in ends] == [143] * 3, ends
  assert any("and saved; resume with: python run.py train --resume" in done.out for done in ends), ends


def test_where_the_training_alone_is_killed_no_bit_changes(tmp_path):
  whole, folder = Three(tmp_path / "whole"), tmp_path / "run"
  assert [done.code for done in whole.end()] == [0] * 3
  job = Three(folder)
  job.past(6)
  pid = job.each[1].process.pid
  training = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
  os.kill(int(training[0]), signal.SIGKILL)
  assert [done.code for done in job.end()] == [0] * 3
  assert metrics(folder) == metrics(tmp_path / "whole")
  assert (folder / "model.msgpack").read_bytes() == (tmp_path / "whole" / "model.msgpack").read_bytes()


def test_local_processes_are_started_again(tmp_path):
  folder = tmp_path / "run"
  job = Command(
    "train", *FLAGS, "--config.steps=30000", "--config.batch=256", "--processes=3", "--max_restarts=2",
    f"--workdir={folder}",
  )  # fmt: skip
  job.wait_for(lambda: len(metrics(folder)) > 4)
  pid = job.process.pid
  first, _, last = map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())
  for times, each in enumerate((first, last), 1):  # who comes back within a round leaves no trace in presence.json
    os.kill(each, signal.SIGKILL)
    job.wait_for(lambda times=times: job.complaints().count("has come back; all 3 processes go on") == times)
    lines = len(metrics(folder))
    job.wait_for(lambda lines=lines: len(metrics(folder)) > lines)
  os.kill(pid, signal.SIGTERM)
  done = job.end()
  assert done.code == 143, done
  assert done.error.count("was killed by SIGKILL: it is started again") == 2
