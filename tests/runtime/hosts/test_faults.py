"""Two real processes, one of them killed or stopped: the other ends with one line, and both go on to the same end."""

import os
import signal
import socket

import pytest
from helpers.commands import Command, complaint, metrics

FLAGS = (
  "--config=configs/digits.py", "--config.algorithm.name=dasgd", "--config.workers=2", "--devices=2",
  "--steps_per_call=4", "--config.steps=4000", "--config.eval_every=100", "--checkpoint_every=100", "--peer_timeout=3",
)  # fmt: skip
pytestmark = pytest.mark.slow


def both(folder, *more):
  with socket.socket() as free:
    free.bind(("127.0.0.1", 0))
    where = f"--coordinator=127.0.0.1:{free.getsockname()[1]}"
  said = (*FLAGS, *more, where, "--num_processes=2", f"--workdir={folder}")
  return [Command("train", *said, f"--process_id={rank}") for rank in (0, 1)]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
  """The folder of an undisturbed run."""
  folder = tmp_path_factory.mktemp("whole") / "run"
  assert [each.end().code for each in both(folder)] == [0, 0]
  return folder


@pytest.mark.parametrize(
  "number, rank, words",
  [
    (signal.SIGKILL, 0, "process 0 of 2 has ended"),
    (signal.SIGKILL, 1, "process 1 of 2 has ended"),
    (signal.SIGSTOP, 0, "process 0 of 2 has not been heard of for 3 s"),
    (signal.SIGSTOP, 1, "process 1 of 2 has not been heard of for 3 s"),
  ],
)
def test_the_other_ends_with_one_line_and_both_go_on(number, rank, words, whole, tmp_path):
  folder = tmp_path / "run"
  processes = both(folder)
  processes[0].wait_for(lambda: len(metrics(folder)) > 6)
  os.kill(processes[rank].process.pid, number)
  line = complaint(processes[1 - rank].end(), code=1)
  assert line.startswith(f"train: {words}, so that this process ends too; what was saved is kept; resume with: ")
  processes[rank].kill()
  assert len(metrics(folder)) < 41
  assert [each.end().code for each in both(folder, "--resume")] == [0, 0]
  assert metrics(folder) == metrics(whole)
  assert (folder / "model.msgpack").read_bytes() == (whole / "model.msgpack").read_bytes()
