"""Faults in two processes: the other process exits with one line, and a resumed run has the same bits."""

import contextlib
import os
import re
import signal
import socket
import subprocess
import time
from pathlib import Path

import pytest
from helpers.commands import Command, complaint, metrics

from experiments.netbench import network

FLAGS = (
  "--config=configs/digits.py", "--config.algorithm.name=dasgd", "--config.workers=2", "--devices=2",
  "--steps_per_call=4", "--config.steps=1000", "--config.eval_every=50", "--checkpoint_every=50", "--peer_timeout=3",
)  # fmt: skip
IS_ADMIN = os.geteuid() == 0 and network.capabilities() >> network.CAP_SYS_ADMIN & 1
pytestmark = pytest.mark.slow


LINES = 21  # of metrics


def start_both(folder, *more, **settings):
  with socket.socket() as free:
    free.bind(("127.0.0.1", 0))
    where = f"--coordinator=127.0.0.1:{free.getsockname()[1]}"
  flags = (*FLAGS, *more, where, "--num_processes=2", f"--workdir={folder}")
  return [Command("train", *flags, f"--process_id={rank}", **settings) for rank in (0, 1)]


def resume(folder, whole):
  """Resume both processes; the result equals that of the undisturbed run `whole` to the last bit."""
  assert len(metrics(folder)) < LINES
  assert [process.end().code for process in start_both(folder, "--resume")] == [0, 0]
  assert metrics(folder) == metrics(whole)
  assert (folder / "model.msgpack").read_bytes() == (whole / "model.msgpack").read_bytes()


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
  """Return the folder of an undisturbed run."""
  folder = tmp_path_factory.mktemp("whole") / "run"
  assert [process.end().code for process in start_both(folder)] == [0, 0]
  return folder


@pytest.mark.parametrize(
  "number, rank, words",
  [
    (signal.SIGKILL, 0, "process 0 of 2 exited or cannot be reached"),
    (signal.SIGKILL, 1, "(another process exited|process 1 of 2 sent no heartbeat)"),
    (signal.SIGSTOP, 0, "process 0 of 2 answered no heartbeat for 3 s"),
    (signal.SIGSTOP, 1, "process 1 of 2 sent no heartbeat for 3 s"),
  ],
)
def test_the_other_process_exits_with_one_line_and_both_resume(number, rank, words, whole, tmp_path):
  folder = tmp_path / "run"
  processes = start_both(folder)
  processes[0].wait_for(lambda: len(metrics(folder)) > 6)
  os.kill(processes[rank].process.pid, number)
  line = complaint(processes[1 - rank].end(), code=1)
  assert re.match(f"train: {words}", line), line
  assert "; this process exits too; saved files remain; resume with: " in line
  assert f" --resume --workdir={folder} --coordinator=127.0.0.1:" in line
  processes[rank].kill()
  resume(folder, whole)


@pytest.mark.parametrize("rank", [0, 1])
def test_sigterm_of_one_process_saves_and_stops_both(rank, whole, tmp_path):
  folder = tmp_path / "run"
  processes = start_both(folder)
  processes[0].wait_for(lambda: len(metrics(folder)) > 6)
  os.kill(processes[rank].process.pid, signal.SIGTERM)
  ends = [process.end() for process in processes]
  assert [done.code for done in ends] == [143, 143], ends
  assert [done.error for done in ends] == ["", ""]
  assert f"and saved; resume with: python run.py train --resume --workdir={folder} --coordinator" in ends[0].out
  resume(folder, whole)


@pytest.mark.skipif(not IS_ADMIN, reason="needs network namespaces")
def test_both_processes_exit_if_the_network_is_cut(whole, tmp_path):
  folder = tmp_path / "run"
  with subprocess.Popen(["unshare", "--net", "sleep", "600"], start_new_session=True) as holder:
    try:
      inside = ["nsenter", f"--target={holder.pid}", "--net"]
      while os.readlink(f"/proc/{holder.pid}/ns/net") == os.readlink("/proc/self/ns/net"):
        time.sleep(0.02)
      subprocess.run([*inside, "ip", "link", "set", "lo", "up"], check=True)
      processes = start_both(folder, within=inside)
      processes[0].wait_for(lambda: len(metrics(folder)) > 6)
      subprocess.run([*inside, "ip", "link", "set", "lo", "down"], check=True)
      lines = [complaint(process.end(), code=1) for process in processes]
    finally:
      holder.kill()
  # Process 0 cannot reach its own service either, and may be the first process reported.
  assert re.match(r"train: process [01] of 2 sent no heartbeat for 3 s; this process exits too; ", lines[0])
  assert lines[1].startswith("train: process 0 of 2 answered no heartbeat for 3 s; this process exits too; ")
  resume(folder, whole)


@pytest.mark.skipif(not IS_ADMIN, reason="needs to mount a file system")
@pytest.mark.parametrize("count", [1, 2])
def test_a_run_stopped_by_a_full_disk_resumes_to_the_same_bits(count, tmp_path):
  disk = tmp_path / "disk"
  disk.mkdir()
  flags = (*FLAGS, f"--processes={count}", f"--workdir={disk / 'run'}")
  assert Command("train", *FLAGS, f"--processes={count}", f"--workdir={tmp_path / 'whole'}").end().code == 0
  subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "none", disk], check=True)
  try:
    job = Command("train", *flags)
    job.wait_for(lambda: len(metrics(disk / "run")) > 6)
    with (disk / "filler").open("wb", buffering=0) as filler, contextlib.suppress(OSError):
      while True:
        filler.write(bytes(4096))
    done = job.end()
    assert done.code == 2 and "no space left on device" in done.error.lower(), done.error
    assert "Traceback" not in done.error, done.error
    (disk / "filler").unlink()
    assert Command("train", *flags, "--resume").end().code == 0
    assert metrics(disk / "run") == metrics(tmp_path / "whole")
    model, expected = ((run / "model.msgpack").read_bytes() for run in (disk / "run", tmp_path / "whole"))
    assert model == expected
  finally:
    subprocess.run(["umount", disk], check=True)


def test_memory_and_open_files_do_not_grow(tmp_path):
  folder = tmp_path / "run"
  flags = ["--config.steps=20000", "--checkpoint_every=200", "--steps_per_call=10"]
  processes = start_both(folder, *flags)

  def used():
    results = []
    for process in processes:
      folder, files = Path(f"/proc/{process.process.pid}"), []
      memory = int((folder / "status").read_text().partition("VmRSS:")[2].split()[0])
      for _ in range(100):  # for a second, because a checkpoint takes long to write on a busy machine
        files.append(len(os.listdir(folder / "fd")))
        time.sleep(0.01)
      results.append((memory, min(files)))  # while a checkpoint is written, it has open files
    return results

  processes[0].wait_for(lambda: len(metrics(folder)) > 133)
  early = used()
  processes[0].wait_for(lambda: len(metrics(folder)) > 330)
  late = used()
  assert [process.end().code for process in processes] == [0, 0]
  for (before, files), (after, more) in zip(early, late, strict=True):
    assert after < 1.05 * before + 5000, (early, late)  # kB
    assert more <= files + 2, (early, late)
