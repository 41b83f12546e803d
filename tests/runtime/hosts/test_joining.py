"""Processes that each are started by themselves, with --coordinator: all join, or each ends with one line."""

import os
import signal
import socket
import subprocess
import sys
import threading

import pytest
from helpers.commands import Command, complaint
from helpers.forks import ROOT

from ddl.runtime.hosts import JOINED, rendezvous

TRAIN = (
  "train", "--config=configs/digits.py", "--config.workers=2", "--devices=2", "--config.steps=4",
  "--config.eval_every=4", "--join_timeout=2",
)  # fmt: skip


@pytest.fixture
def where():
  """An address that nobody has."""
  with socket.socket() as free:
    free.bind(("127.0.0.1", 0))
    return f"127.0.0.1:{free.getsockname()[1]}"


def started(folder, coordinator, rank, count=2):
  flags = (f"--coordinator={coordinator}", f"--num_processes={count}", f"--process_id={rank}")
  return Command(*TRAIN, *flags, f"--workdir={folder}/run")


ALONE = """
import os, sys
from ddl.runtime import hosts
if os.environ[hosts.JOINED].startswith("1/"):
  sys.modules["ddl.runtime.hosts.join"]._gloo_at = lambda address: os.kill(os.getpid(), 9)
hosts.declare()
hosts.join(10, 2.0)
"""


def test_one_that_is_killed_before_its_devices_is_missed(where):
  """The other one waits for its devices in C++."""
  ends = [
    subprocess.Popen(
      [sys.executable, "-c", ALONE], cwd=ROOT, env=os.environ | {JOINED: f"{rank}/2@{where}"}, stderr=-1, text=True
    )
    for rank in (0, 1)
  ]
  try:
    told = ends[0].communicate(timeout=40)[1]
    assert [each.wait(10) for each in ends] == [1, -signal.SIGKILL]
    assert told.splitlines()[-1] == "process 1 of 2 has ended"
  finally:
    for each in ends:
      each.kill()


@pytest.mark.slow
def test_two_train_as_one(where, tmp_path):
  first, second = (started(tmp_path, where, rank) for rank in (0, 1))
  assert (first.end().code, second.end().code) == (0, 0)
  assert (tmp_path / "run" / "result.json").exists()


def test_one_that_never_comes(where, tmp_path):
  line = complaint(started(tmp_path, where, 0).end())
  assert line.startswith(f"train: process 1 of 2 has not come to {where} within 2 s; start all, or wait longer")


def test_a_process_0_that_never_comes_and_a_host_that_is_none(where, tmp_path):
  nowhere = started(tmp_path, where, 1), started(tmp_path, "no.such.host.invalid:1234", 1)
  refused, unknown = (complaint(each.end()) for each in nowhere)
  assert refused.startswith(f"train: process 0 was not reached at {where} within 2 s: connection refused")
  assert "no.such.host.invalid:1234 within 2 s: unknown host" in unknown


def test_two_that_contradict_each_other(where):
  """Three processes have come as two: the second with a number that is taken."""
  found = []

  def come(rank, count):
    with pytest.raises(ValueError) as error:
      rendezvous.meet(rank, count, "127.0.0.1", int(where.split(":")[1]), 5.0)
    found.append(str(error.value))

  for others, words in (((1, 3), (1, 3)), "two processes have --process_id=1"), (((1, 4),), "--num_processes=4"):
    found.clear()
    threads = [threading.Thread(target=come, args=each) for each in ((0, 3), *others)]
    for each in threads:
      each.start()
    for each in threads:
      each.join(10)
    assert len(found) == len(threads) and all(words in line for line in found), found


def test_a_port_in_use(tmp_path):
  with socket.create_server(("127.0.0.1", 0)) as used:
    where = f"127.0.0.1:{used.getsockname()[1]}"
    line = complaint(started(tmp_path, where, 0).end())
  assert line == f"train: port {where.split(':')[1]} is in use at {where}; pass another one by --coordinator"


@pytest.mark.parametrize(
  "flags, words",
  [
    (("--coordinator=10.0.0.1:1234",), ("--num_processes=N and --process_id=I",)),
    (("--coordinator=nowhere", "--num_processes=2", "--process_id=0"), ("must be HOST:PORT",)),
    (("--coordinator=a:1", "--num_processes=2", "--process_id=2"), ("--process_id=2 is none of --num_processes=2",)),
    (("--processes=2", "--coordinator=a:1"), ("--processes starts processes here",)),
  ],
)
def test_flags_that_cannot_be(flags, words, wrong):
  wrong(list(flags), *words)
