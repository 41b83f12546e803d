"""Elastic jobs of three processes: after failures they equal their replay in virtual time."""

import json
import os
import signal
import time
from pathlib import Path

import pytest
from helpers.commands import Command, metrics

FLAGS = (
  "--config=configs/digits.py", "--config.elastic=True", "--config.algorithm.name=dasgd", "--config.workers=6",
  "--config.steps=1600", "--config.eval_every=100",
)  # fmt: skip
ROUNDED = ("train_loss", "test_loss", "test_accuracy", "distance")  # equal up to rounding in another layout
EVERYONE, SURVIVORS = [*range(6)], {0: [2, 3, 4, 5], 1: [0, 1, 4, 5], 2: [0, 1, 2, 3]}
pytestmark = pytest.mark.slow


HOOK = """
import os

def note(info):
  (info.folder / f"pid-{info.trainer.fed[0] // 2}").write_text(str(os.getpid()))
"""


def job(folder, *more):
  folder.with_suffix(".py").write_text(HOOK)
  more = (f"--hooks={folder.with_suffix('.py')}:note", *more)
  return Command("train", *FLAGS, "--processes=3", "--peer_timeout=8", f"--workdir={folder}", *more)


def descendants(pid):
  children = [int(pid) for tasks in Path("/proc").glob(f"{pid}/task/*/children") for pid in tasks.read_text().split()]
  return [*children, *(pid for child in children for pid in descendants(child))]


def runs(pid):
  try:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
  except OSError:
    return False


def pid(folder, rank):
  file = folder / f"pid-{rank}"
  while not (text := file.read_text()):  # while a process writes it
    time.sleep(0.02)
  return int(text)


def presence(folder):
  return json.loads((folder / "presence.json").read_text())


def wait_for_lines(command, folder, lines):
  command.wait_for(lambda: len(metrics(folder)) > lines)


def assert_equals_replay(folder, other):
  """Compare a run with its replay: losses up to rounding, all other columns exactly."""
  done = Command("train", *FLAGS, f"--replay={folder / 'presence.json'}", f"--workdir={other}").end()
  assert done.code == 0, done
  rows, replayed = metrics(folder), metrics(other)
  assert len(rows) == len(replayed) == 17
  for row, expected in zip(rows, replayed, strict=True):
    expected.pop("virtual_seconds")
    assert {**row, **{name: 0 for name in ROUNDED}} == {**expected, **{name: 0 for name in ROUNDED}}
    for name in {*ROUNDED} & {*row}:
      assert row[name] == pytest.approx(expected[name], rel=0.02, abs=5e-3), (name, row, expected)


def test_other_processes_continue_without_the_first(tmp_path):
  rank = 0  # the one that hosts the coordinator
  folder = tmp_path / "run"
  command = job(folder)
  wait_for_lines(command, folder, 6)
  os.kill(pid(folder, rank), signal.SIGKILL)
  done = command.end()
  assert done.code == 0, done
  start, (step, survivors) = presence(folder)
  assert (start, survivors) == ([0, EVERYONE], SURVIVORS[rank]) and step % 4 == 0 and 500 < step < 1600
  assert done.error == f"train: process {rank} of 3 failed; training continues from step {step} on 2 of 3 processes\n"
  assert metrics(folder)[-1]["present"] == 4
  assert_equals_replay(folder, tmp_path / "virtual")


def test_a_stopped_process_is_replaced(tmp_path):
  folder = tmp_path / "run"
  command = job(folder, "--max_restarts=1")
  wait_for_lines(command, folder, 6)
  os.kill(pid(folder, 1), signal.SIGSTOP)
  done = command.end()
  assert done.code == 0, done
  _, (step, survivors), (again, every) = presence(folder)
  assert step == again and survivors == SURVIVORS[1] and every == EVERYONE
  assert done.error.endswith(
    f"process 1 of 3 failed, a replacement starts; training continues from step {step} on 3 of 3 processes\n"
  )
  assert_equals_replay(folder, tmp_path / "virtual")


def test_a_job_stopped_by_sigterm_resumes(tmp_path):
  folder = tmp_path / "run"
  command = job(folder)
  wait_for_lines(command, folder, 3)
  os.kill(pid(folder, 1), signal.SIGKILL)
  command.wait_for(lambda: len(presence(folder)) > 1)
  wait_for_lines(command, folder, len(metrics(folder)) + 1)
  os.kill(command.process.pid, signal.SIGTERM)
  done = command.end()
  assert done.code == 143 and "and saved; resume with: python run.py train --resume" in done.out, done
  done = job(folder, "--resume").end()
  assert done.code == 0 and [len(ids) for _, ids in presence(folder)] == [6, 4, 6], done
  assert_equals_replay(folder, tmp_path / "virtual")


def test_a_job_with_a_killed_driver_resumes_from_its_checkpoint(tmp_path):
  folder = tmp_path / "run"
  command = job(folder, "--checkpoint_every=400")
  wait_for_lines(command, folder, 6)
  pids = descendants(command.process.pid)
  assert len(pids) > 6
  os.kill(command.process.pid, signal.SIGKILL)
  end = time.monotonic() + 30
  while running := [pid for pid in pids if runs(pid)]:
    assert time.monotonic() < end, running
    time.sleep(0.1)
  done = job(folder, "--resume", "--checkpoint_every=400").end()
  assert done.code == 0 and "resuming from step" in done.out, done
  assert presence(folder) == [[0, EVERYONE]]
  assert_equals_replay(folder, tmp_path / "virtual")
