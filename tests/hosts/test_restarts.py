"""`--max_restarts`: after one of its processes was killed a job goes on by itself, to the end of an undisturbed one."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from helpers.commands import Command, metrics
from helpers.forks import ROOT

from ddl import hosts
from ddl.config.options import RunOptions
from ddl.run import processes
from ddl.run.exit_codes import Failed
from ddl.run.folder import RunFolder

JOB = (
  "train", "--config=configs/digits.py", "--config.algorithm.name=dasgd", "--config.workers=2", "--steps_per_call=4",
  "--config.steps=2000", "--config.eval_every=100", "--checkpoint_every=100", "--peer_timeout=3",
)  # fmt: skip


SHORT = (*JOB, "--config.steps=600", "--config.eval_every=30", "--checkpoint_every=30")


def children(command):
  pid = command.process.pid
  return [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def same(folder, whole):
  assert metrics(folder) == metrics(whole)
  assert (folder / "model.msgpack").read_bytes() == (whole / "model.msgpack").read_bytes()


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
  """The folder of an undisturbed run of one process."""
  folder = tmp_path_factory.mktemp("alone") / "run"
  assert Command(*SHORT, f"--workdir={folder}").end().code == 0
  return folder


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV])
def test_a_single_process_goes_on(number, alone, tmp_path):
  job = Command(*SHORT, "--max_restarts=1", f"--workdir={tmp_path / 'run'}")
  job.wait_for(lambda: len(metrics(tmp_path / "run")) > 4)
  [pid] = children(job)
  os.kill(pid, number)
  done = job.end()
  assert done.code == 0, done
  name = signal.Signals(number).name
  assert done.error.splitlines() == [f"the process was killed by {name}", "train: restart 1 of 1"]
  same(tmp_path / "run", alone)


@pytest.mark.parametrize(
  "number, code, restarts",
  [pytest.param(signal.SIGKILL, 137, 1, marks=pytest.mark.slow), (signal.SIGTERM, 143, 0)],
)
def test_it_is_not_restarted_once_more_than_asked_nor_where_it_was_asked_to_stop(number, code, restarts, tmp_path):
  job = Command(*JOB, "--max_restarts=1", f"--workdir={tmp_path / 'run'}")
  for kill in range(restarts + 1):
    job.wait_for(lambda lines=6 + 2 * kill: len(metrics(tmp_path / "run")) > lines)
    os.kill(children(job)[0], number)
  done = job.end()
  assert done.code == code, done
  assert done.error.count(": restart ") == restarts


@pytest.mark.parametrize(
  "codes, resumed, end",
  [([137, 1, 0], [False, True, True], 0), ([137] * 3, [False, True, True], 137), ([2], [False], 2),
   ([143], [False], 143), ([139, 2], [False, True], 2)],
)  # fmt: skip
def test_what_a_restart_is_for(codes, resumed, end, monkeypatch):
  left, result = [*codes], []

  def launch(count, command):
    result.append(processes.from_json(Path(command[-1]).read_text())[2])
    return left.pop(0)

  monkeypatch.setattr(hosts, "launch", launch)
  options = RunOptions(processes=2, max_restarts=2)
  with pytest.raises(Failed) if end else contextlib.nullcontext() as failed:
    processes.launch(print, None, options, 2, begun=lambda: True)
  assert [each.resume for each in result] == resumed
  assert not left and all(each.max_restarts == 0 for each in result)
  assert not failed or failed.value.args == (end,)


def test_a_job_that_was_killed_before_its_folder_was_whole_starts_anew(tmp_path):
  for name in ("about.json", "experiment.json", "metrics.jsonl"):
    (tmp_path / name).touch()
  assert not RunFolder(tmp_path).has_begun()
  RunFolder(tmp_path).check_unused()


def test_a_process_of_a_group_gives_its_place_to_its_child(monkeypatch, capfd):
  place = "1/3@127.0.0.1:1234#2"
  script = f"import os, sys; print(os.environ['{hosts.JOINED}']); sys.exit(5)"
  with monkeypatch.context() as patch:
    patch.setenv(hosts.JOINED, place)
    assert str(hosts.declare()) == place
    code = hosts.launch(8, [sys.executable, "-c", script])
  hosts.declare()
  assert code == 5
  assert capfd.readouterr().out == place + "\n"


def test_a_process_whose_launcher_no_longer_reads_ends_all_the_same():
  script = "import os, sys; from ddl.run.exit_codes import exit_code; sys.stdin.read(); "
  script += "sys.exit(exit_code('train', lambda: os.kill(os.getpid(), 15) or 0))"
  process = subprocess.Popen([sys.executable, "-c", script], cwd=ROOT, stdin=-1, stdout=-1, stderr=-1)
  for pipe in (process.stdout, process.stderr, process.stdin):
    pipe.close()
  assert process.wait(60) == 143


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
@pytest.mark.parametrize("rank", [0, 1])
def test_local_processes_go_on(number, rank, tmp_path):
  whole = tmp_path / "whole"
  assert Command(*JOB, "--processes=2", f"--workdir={whole}").end().code == 0
  job = Command(*JOB, "--processes=2", "--max_restarts=1", f"--workdir={tmp_path / 'run'}")
  job.wait_for(lambda: len(metrics(tmp_path / "run")) > 4)
  os.kill(children(job)[rank], number)
  done = job.end()
  assert done.code == 0, done
  assert "train: restart 1 of 1" in done.error.splitlines()
  same(tmp_path / "run", whole)


@pytest.mark.slow
def test_a_command_per_host_goes_on(tmp_path):
  whole = tmp_path / "whole"
  assert Command(*JOB, "--processes=2", f"--workdir={whole}").end().code == 0
  with socket.socket() as free:
    free.bind(("127.0.0.1", 0))
    where = f"--coordinator=127.0.0.1:{free.getsockname()[1]}"
  flags = ("--max_restarts=1", where, "--num_processes=2", f"--workdir={tmp_path / 'run'}")
  jobs = [Command(*JOB, *flags, f"--process_id={rank}") for rank in (0, 1)]
  jobs[0].wait_for(lambda: len(metrics(tmp_path / "run")) > 4)
  os.kill(children(jobs[1])[0], signal.SIGKILL)
  ends = [each.end() for each in jobs]
  assert [each.code for each in ends] == [0, 0], ends
  same(tmp_path / "run", whole)
