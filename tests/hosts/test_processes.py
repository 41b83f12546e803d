"""Two real local processes, joined by jax.distributed: the same numbers as one, and a common end."""

import json
import os
import signal
import socket
import sys
import threading
import time

import jax
import numpy as np
import pytest
from flax import serialization
from helpers.commands import Command, complaint, metrics

from ddl import hosts
from ddl.algorithms import COLLECTIVE

TRAIN = ["train", "--config=configs/digits.py", "--config.algorithm.name=dasgd", "--config.algorithm.delay=3"]
SHORT = ["--config.steps=400", "--config.eval_every=20", "--devices=2", "--steps_per_call=5"]


def launched(script, count=3):
  """`hosts.launch` of Python code in which `rank` is known, without JAX."""
  rank = f"import os, sys, time\nrank = int(os.environ['{hosts.JOINED}'].split('/')[0])\n"
  return hosts.launch(count, [sys.executable, "-c", rank + script])


@pytest.mark.parametrize(
  "script, code, error",
  [
    ("pass", 0, ""),
    ("sys.exit(f'from {rank}') if rank == 2 else time.sleep(60)", 1, "[2] from 2\n"),
    ("print(f'from {rank}', file=sys.stderr); sys.exit(2)", 2, "from 0\n"),  # a user's mistake is said once
    (
      "time.sleep(0.3 * (rank != 1)); print(f'from {rank}', file=sys.stderr); sys.exit(1 + rank)",
      2,
      "from 0\n[1] from 1\n[2] from 2\n",
    ),
    (
      "os.kill(os.getpid(), 9 if rank == 1 else 0); time.sleep(60)",
      128 + 9,
      "process 1 of 3 was killed by SIGKILL, so the others were stopped\n",
    ),
  ],
)
def test_the_first_to_fail_ends_the_others(script, code, error, capfd):
  assert launched(script) == code
  assert capfd.readouterr().err == error


def test_a_signal_reaches_each_process_once():
  """A terminal sends its Ctrl-C to all processes of its session's foreground group, the parent's."""
  assert launched("assert os.getsid(0) == os.getpid() and os.getpgid(0) != os.getpgid(os.getppid())") == 0
  timer = threading.Timer(1.0, os.kill, (os.getpid(), signal.SIGTERM))
  timer.start()
  script = "import signal; signal.signal(15, lambda *_: sys.exit(128 + 15)); time.sleep(60)"
  assert launched(script) == 128 + 15


@pytest.mark.parametrize("every", [5, pytest.param(1, marks=pytest.mark.slow)])
def test_algorithms_equal_their_twins(every):
  names = [*COLLECTIVE][::every]
  done = Command(*names, file="tests/helpers/process_twins.py").end()
  assert done.code == 0, done
  for name in names:
    assert f"{name} equals its twin" in done.out


@pytest.mark.slow
def test_they_listen_at_loopback_alone_and_ask_no_proxy():
  proxies = dict.fromkeys(("http_proxy", "https_proxy", "HTTPS_PROXY", "grpc_proxy"), "http://127.0.0.1:9")
  done = Command(file="tests/helpers/process_listening.py", **proxies).end()
  assert done.code == 0 and not done.error, done
  result = [json.loads(line.partition(" ")[2]) for line in done.out.splitlines() if line.startswith("listening ")]
  loopback = {"0100007F", "0000000000000000FFFF00000100007F"}  # 127.0.0.1, also as an IPv6 address
  assert len(result) == 2 and all(result) and {each for rows in result for each in rows} <= loopback, result


@pytest.mark.slow
def test_stopped_and_resumed_is_one_run(tmp_path):
  """SIGTERM to the parent stops and saves both processes."""
  command = [*TRAIN, *SHORT, "--processes=2", f"--workdir={tmp_path}/two"]
  one = Command(*TRAIN, *SHORT, f"--workdir={tmp_path}/one")
  process = Command(*command)
  process.wait_for(lambda: len(metrics(tmp_path / "two")) > 2)
  os.kill(process.process.pid, signal.SIGTERM)
  done = process.end()
  assert done.code == 128 + signal.SIGTERM and "Traceback" not in done.error, done
  assert "and saved; " in done.out and "python run.py train --resume --workdir=" in done.out
  assert 3 <= len(metrics(tmp_path / "two")) < 21
  done = Command(*command, "--resume").end()
  assert done.code == 0, done
  assert one.end().code == 0
  ours, theirs = metrics(tmp_path / "two"), metrics(tmp_path / "one")
  assert [line["step"] for line in ours] == list(range(0, 401, 20))
  for mine, other in zip(ours, theirs, strict=True):
    assert mine.keys() == other.keys()
    for key, value in mine.items():  # float32, and sums in another order
      np.testing.assert_allclose(value, other[key], rtol=1e-2, atol=3e-3, err_msg=f"{key} at {mine['step']}")


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 2])
def test_members_of_a_worker_may_be_in_several_processes(tmp_path, workers):
  """One worker over two processes, and one in each beside it; the model that is saved is whole."""
  rng = np.random.default_rng(0)
  np.savez(tmp_path / "x.npz", image=rng.random((7200, 8, 8, 1), np.float32), label=rng.integers(10, size=7200))
  more = ["--config.steps=40", "--config.eval_every=20", f"--config.workers={workers}", "--config.noise_batches=2"]
  more += ["--config.data.name=npz", f"--config.data.path={tmp_path}/x.npz"]  # three batches of test examples
  flags = [*TRAIN, *more, "--members=2", f"--devices={2 * workers}", "--sharding=tensor"]
  for name, count in (("two", 2), ("one", 1)):
    done = Command(*flags, f"--processes={count}", f"--workdir={tmp_path / name}").end()
    assert done.code == 0, done
  for mine, other in zip(metrics(tmp_path / "two"), metrics(tmp_path / "one"), strict=True):
    assert mine.keys() == other.keys()
    for key, value in mine.items():
      np.testing.assert_allclose(value, other[key], rtol=1e-4, atol=1e-5, err_msg=f"{key} at {mine['step']}")
  two, one = (
    serialization.msgpack_restore((tmp_path / name / "model.msgpack").read_bytes()) for name in ("two", "one")
  )
  jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5), two["params"], one["params"])


@pytest.mark.parametrize(
  "differs, words",
  [
    ("--config.optimizer.learning_rate=0.07", ("config.optimizer.learning_rate", "0.07 in process 1")),
    pytest.param("--steps_per_call=7", ("options.steps_per_call", "7 in process 1"), marks=pytest.mark.slow),
    pytest.param("--config.batch=8", ("config.batch", "8 in process 1"), marks=pytest.mark.slow),
  ],
)
def test_two_that_differ_end_before_the_first_step(tmp_path, differs, words):
  with socket.socket() as free:
    free.bind(("127.0.0.1", 0))
    where = f"127.0.0.1:{free.getsockname()[1]}"
  flags = [*TRAIN, *SHORT, f"--workdir={tmp_path}/run"]
  both = [Command(*flags, *more, **{hosts.JOINED: f"{rank}/2@{where}"}) for rank, more in enumerate([[], [differs]])]
  for each in both:
    line = complaint(each.end())
    assert all(word in line for word in words), line
  assert not (tmp_path / "run" / "metrics.jsonl").exists()


def test_what_one_process_finds_wrong_ends_both_at_once(tmp_path):
  (tmp_path / "config.json").write_text("{}")
  began = time.monotonic()
  line = complaint(Command(*TRAIN, *SHORT, "--processes=2", f"--workdir={tmp_path}").end())
  assert "already contains a run" in line and time.monotonic() - began < 40
