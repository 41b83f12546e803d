"""Two real processes and a fault: each that is left ends in time with one line, and both go on to the same end."""

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
  "--steps_per_call=4", "--config.steps=4000", "--config.eval_every=100", "--checkpoint_every=100", "--peer_timeout=3",
)  # fmt: skip
ROOTLIKE = os.geteuid() == 0 and network.capabilities() >> network.CAP_SYS_ADMIN & 1
pytestmark = pytest.mark.slow


def both(folder, *more, **settings):
  with socket.socket() as free:
    free.bind(("127.0.0.1", 0))
    where = f"--coordinator=127.0.0.1:{free.getsockname()[1]}"
  message = (*FLAGS, *more, where, "--num_processes=2", f"--workdir={folder}")
  return [Command("train", *message, f"--process_id={rank}", **settings) for rank in (0, 1)]


def go_on(folder, whole):
  """Both resume, and come to the end of the undisturbed run, to the last bit."""
  assert len(metrics(folder)) < 41
  assert [each.end().code for each in both(folder, "--resume")] == [0, 0]
  assert metrics(folder) == metrics(whole)
  assert (folder / "model.msgpack").read_bytes() == (whole / "model.msgpack").read_bytes()


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
  """The folder of an undisturbed run."""
  folder = tmp_path_factory.mktemp("whole") / "run"
  assert [each.end().code for each in both(folder)] == [0, 0]
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
def test_the_other_ends_with_one_line_and_both_go_on(number, rank, words, whole, tmp_path):
  folder = tmp_path / "run"
  processes = both(folder)
  processes[0].wait_for(lambda: len(metrics(folder)) > 6)
  os.kill(processes[rank].process.pid, number)
  began = time.monotonic()
  line = complaint(processes[1 - rank].end(), code=1)
  assert time.monotonic() - began < 10
  assert re.match(f"train: {words}", line), line
  assert "; this process exits too; saved files remain; resume with: " in line
  assert f" --resume --workdir={folder} --coordinator=127.0.0.1:" in line
  processes[rank].kill()
  go_on(folder, whole)


@pytest.mark.parametrize("rank", [0, 1])
def test_where_one_is_to_stop_both_save_and_end(rank, whole, tmp_path):
  folder = tmp_path / "run"
  processes = both(folder)
  processes[0].wait_for(lambda: len(metrics(folder)) > 6)
  os.kill(processes[rank].process.pid, signal.SIGTERM)
  began = time.monotonic()
  ends = [each.end() for each in processes]
  assert time.monotonic() - began < 20
  assert [each.code for each in ends] == [143, 143], ends
  assert [each.error for each in ends] == ["", ""]
  assert f"and saved; resume with: python run.py train --resume --workdir={folder} --coordinator" in ends[0].out
  go_on(folder, whole)


@pytest.mark.skipif(not ROOTLIKE, reason="makes network namespaces")
def test_both_end_when_the_network_between_them_is_cut(whole, tmp_path):
  """In a namespace of their own, whose loopback goes down."""
  folder = tmp_path / "run"
  with subprocess.Popen(["unshare", "--net", "sleep", "600"], start_new_session=True) as holder:
    try:
      inside = ["nsenter", f"--target={holder.pid}", "--net"]
      while os.readlink(f"/proc/{holder.pid}/ns/net") == os.readlink("/proc/self/ns/net"):
        time.sleep(0.02)
      subprocess.run([*inside, "ip", "link", "set", "lo", "up"], check=True)
      processes = both(folder, within=inside)
      processes[0].wait_for(lambda: len(metrics(folder)) > 6)
      subprocess.run([*inside, "ip", "link", "set", "lo", "down"], check=True)
      lines = [complaint(each.end(), code=1) for each in processes]
    finally:
      holder.kill()
  # Process 0 reaches its own service no longer either, so that it may be the first to be missed.
  assert re.match(r"train: process [01] of 2 sent no heartbeat for 3 s; this process exits too; ", lines[0])
  assert lines[1].startswith("train: process 0 of 2 answered no heartbeat for 3 s; this process exits too; ")
  go_on(folder, whole)


@pytest.mark.skipif(not ROOTLIKE, reason="mounts a file system")
@pytest.mark.parametrize("count", [1, 2])
def test_a_full_disk_ends_the_run_and_nothing_is_lost(count, tmp_path):
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
    (disk / "filler").unlink()
    assert Command("train", *flags, "--resume").end().code == 0
    assert metrics(disk / "run") == metrics(tmp_path / "whole")
    models = [(each / "model.msgpack").read_bytes() for each in (disk / "run", tmp_path / "whole")]
    assert models[0] == models[1]
  finally:
    subprocess.run(["umount", disk], check=True)


def test_a_long_run_does_not_grow(tmp_path):
  """Of both processes memory and open files, after a third of the run and at its end."""
  folder = tmp_path / "run"
  flags = [f"--config.steps={40_000}", "--checkpoint_every=400", "--steps_per_call=20"]
  processes = both(folder, *flags)

  def used():
    results = []
    for each in processes:
      status = Path(f"/proc/{each.process.pid}/status").read_text()
      results.append((int(status.partition("VmRSS:")[2].split()[0]), len(os.listdir(f"/proc/{each.process.pid}/fd"))))
    return results

  processes[0].wait_for(lambda: len(metrics(folder)) > 133)
  early = used()
  processes[0].wait_for(lambda: len(metrics(folder)) > 390)
  late = used()
  assert [each.end().code for each in processes] == [0, 0]
  for (before, files), (after, more) in zip(early, late, strict=True):
    assert after < 1.05 * before + 5000, (early, late)  # kB
    assert more <= files + 2, (early, late)
