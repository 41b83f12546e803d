"""Processes started by ddl exit soon after their launcher, even if it is killed."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from helpers.forks import ROOT

from ddl.hosts import LAUNCHER

MARK = "DDL_TESTS_ORPHANS"
CHILD = """
import ctypes, multiprocessing, os, signal, time
from ddl.hosts import launcher
launcher.SAVING = 1.0
signal.signal(signal.SIGTERM, lambda *_: None)
multiprocessing.get_context("fork").Process(target=time.sleep, args=(60,)).start()  # like a prefetching process
launcher.follow_launcher()
assert launcher.LAUNCHER not in os.environ  # its children do not inherit it
print("follows", flush=True)
ctypes.CDLL(None).sleep(60)  # in C, as in a collective
"""
LAUNCHING = """
import os, subprocess, sys, time
subprocess.Popen([sys.executable, "-c", sys.argv[1]], env=os.environ | {sys.argv[2]: str(os.getpid())})
time.sleep(60)
"""
JOB = ("--config.workers=2", "--devices=2", "--processes=2", "--config.steps=200000", "--config.eval_every=100")
JOBS = {
  "train": ("train", "--config=configs/digits.py", *JOB),
  "elastic": (
    "train",
    "--config=configs/digits.py",
    "--config.elastic=True",
    "--config.algorithm.name=local_sgd",
    *JOB,
  ),
  "compare": ("compare", "--config=configs/digits_compare.py", "--only=sync_sgd", *JOB),
  "sweep": ("sweep", "--config=configs/digits_compare.py", *JOB),
}


def marked(mark):
  """Return the running processes with this mark in their environment, which children inherit."""
  results = []
  for folder in Path("/proc").iterdir():
    try:
      is_marked = folder.name.isdigit() and f"{MARK}={mark}".encode() in (folder / "environ").read_bytes()
      if is_marked and (folder / "stat").read_text().rpartition(")")[2].split()[0] != "Z":
        results.append(int(folder.name))
    except OSError:
      continue
  return results


def wait(condition, seconds):
  until = time.monotonic() + seconds
  while not condition():
    assert time.monotonic() < until, "timeout"
    time.sleep(0.05)


@pytest.fixture
def start(tmp_path):
  """Return a function that starts a marked process; kill all marked processes at the end."""
  mark = tmp_path.name + str(os.getpid())

  def run(*words):
    with (tmp_path / "out").open("w") as out:
      process = subprocess.Popen(
        [sys.executable, *words], env=os.environ | {MARK: mark}, cwd=ROOT, stdout=out, stderr=out,
        start_new_session=True,
      )  # fmt: skip
    return process, lambda: marked(mark)

  yield run
  for pid in marked(mark):
    os.kill(pid, signal.SIGKILL)


def test_a_process_in_a_c_call_exits_with_its_launcher(start, tmp_path):
  launcher, left = start("-c", LAUNCHING, CHILD, LAUNCHER)
  wait(lambda: "follows" in (tmp_path / "out").read_text(), 60)
  assert len(left()) == 3
  launcher.kill()
  launcher.wait()
  wait(lambda: not left(), 10)


@pytest.mark.slow
@pytest.mark.parametrize(("job", "whole_group"), [("train", True), *((job, False) for job in JOBS)])
def test_no_process_of_a_job_survives_its_launcher(job, whole_group, start, tmp_path):
  run = tmp_path / "run"
  launcher, left = start("run.py", *JOBS[job], f"--workdir={run}", "--peer_timeout=600")
  wait(lambda: any(file.stat().st_size for file in run.glob("**/metrics.jsonl")), 300)
  assert len(left()) >= 3
  (os.killpg if whole_group else os.kill)(launcher.pid, signal.SIGKILL)
  launcher.wait()
  wait(lambda: not left(), 30)
