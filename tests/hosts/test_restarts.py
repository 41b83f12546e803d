"""`--max_restarts`: a job restarts after a process is killed, with the results of an undisturbed job."""

import contextlib
import functools
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
  "--config.steps=1000", "--config.eval_every=50", "--checkpoint_every=50", "--peer_timeout=3",
)  # fmt: skip


def children(command):
  pid = command.process.pid
  return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def assert_equal(folder, whole):
  assert metrics(folder) == metrics(whole)
  assert (folder / "model.msgpack").read_bytes() == (whole / "model.msgpack").read_bytes()


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
  """Return a function: number of processes -> folder of an undisturbed run."""

  @functools.cache
  def run(processes):
    folder = tmp_path_factory.mktemp("undisturbed") / "run"
    assert Command(*JOB, f"--processes={processes}", f"--workdir={folder}").end().code == 0
    return folder

  return run


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV])
def test_a_single_process_is_restarted(number, undisturbed, tmp_path):
  job = Command(*JOB, "--max_restarts=1", f"--workdir={tmp_path / 'run'}")
  job.wait_for(lambda: len(metrics(tmp_path / "run")) > 4)
  [pid] = children(job)
  os.kill(pid, number)
  done = job.end()
  assert done.code == 0, done
  name = signal.Signals(number).name
  assert done.error.splitlines() == [f"the process was killed by {name}", "train: restart 1 of 1"]
  assert_equal(tmp_path / "run", undisturbed(1))


@pytest.mark.slow
@pytest.mark.parametrize("number, code, restarts", [(signal.SIGKILL, 137, 1), (signal.SIGTERM, 143, 0)])
def test_restarts_end_after_their_number_and_after_sigterm(number, code, restarts, tmp_path):
  job = Command(*JOB, "--max_restarts=1", f"--workdir={tmp_path / 'run'}")
  for kill in range(restarts + 1):
    job.wait_for(lambda lines=4 + 2 * kill: len(metrics(tmp_path / "run")) > lines)
    os.kill(children(job)[0], number)
  done = job.end()
  assert done.code == code, done
  assert done.error.count(": restart ") == restarts


@pytest.mark.parametrize(
  "codes, resumed, end",
  [([137, 1, 0], [False, True, True], 0), ([137] * 3, [False, True, True], 137), ([2], [False], 2),
   ([143], [False], 143), ([139, 2], [False, True], 2)],
)  # fmt: skip
def test_processes_restart_after_signals_but_not_after_errors_or_stops(codes, resumed, end, monkeypatch):
  remaining, result = [*codes], []

  def launch(count, command):
    result.append(processes.from_json(Path(command[-1]).read_text())[2])
    return remaining.pop(0)

  monkeypatch.setattr(hosts, "launch", launch)
  options = RunOptions(processes=2, max_restarts=2)
  with pytest.raises(Failed) if end else contextlib.nullcontext() as failed:
    processes.launch(print, None, options, 2, begun=lambda: True)
  assert [child.resume for child in result] == resumed
  assert not remaining and all(child.max_restarts == 0 for child in result)
  assert not failed or failed.value.args == (end,)


def test_a_folder_without_a_complete_start_is_unused(tmp_path):
  for name in ("about.json", "experiment.json", "metrics.jsonl"):
    (tmp_path / name).touch()
  assert not RunFolder(tmp_path).has_begun()
  RunFolder(tmp_path).check_unused()


def test_a_process_of_a_group_starts_one_child_with_its_rank(monkeypatch, capfd):
  info = "1/3@127.0.0.1:1234#2"
  script = f"import os, sys; print(os.environ['{hosts.JOINED}']); sys.exit(5)"
  with monkeypatch.context() as patch:
    patch.setenv(hosts.JOINED, info)
    assert str(hosts.declare()) == info
    code = hosts.launch(8, [sys.executable, "-c", script])
  hosts.declare()
  assert code == 5
  assert capfd.readouterr().out == info + "\n"


def test_a_process_with_closed_pipes_exits():
  script = "import os, sys; from ddl.run.exit_codes import exit_code; sys.stdin.read(); "
  script += "sys.exit(exit_code('train', lambda: os.kill(os.getpid(), 15) or 0))"
  process = subprocess.Popen([sys.executable, "-c", script], cwd=ROOT, stdin=-1, stdout=-1, stderr=-1)
  for pipe in (process.stdout, process.stderr, process.stdin):
    pipe.close()
  assert process.wait(60) == 143


@pytest.mark.slow
@pytest.mark.parametrize(("number", "rank"), [(signal.SIGKILL, 0), (signal.SIGSTOP, 1)])
def test_local_processes_are_restarted(number, rank, undisturbed, tmp_path):
  job = Command(*JOB, "--processes=2", "--max_restarts=1", f"--workdir={tmp_path / 'run'}")
  job.wait_for(lambda: len(metrics(tmp_path / "run")) > 4)
  os.kill(children(job)[rank], number)
  done = job.end()
  assert done.code == 0, done
  assert "train: restart 1 of 1" in done.error.splitlines()
  assert_equal(tmp_path / "run", undisturbed(2))


@pytest.mark.slow
def test_commands_of_several_hosts_are_restarted(undisturbed, tmp_path):
  with socket.socket() as free:
    free.bind(("127.0.0.1", 0))
    where = f"--coordinator=127.0.0.1:{free.getsockname()[1]}"
  flags = ("--max_restarts=1", where, "--num_processes=2", f"--workdir={tmp_path / 'run'}")
  jobs = [Command(*JOB, *flags, f"--process_id={rank}") for rank in (0, 1)]
  jobs[0].wait_for(lambda: len(metrics(tmp_path / "run")) > 4)
  os.kill(children(jobs[1])[0], signal.SIGKILL)
  ends = [command.end() for command in jobs]
  assert [done.code for done in ends] == [0, 0], ends
  assert_equal(tmp_path / "run", undisturbed(2))
