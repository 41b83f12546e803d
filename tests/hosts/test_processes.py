"""Two real local processes joined by jax.distributed: the results of one process, signals and errors."""

import json
import os
import signal
import socket
import sys
import threading

import jax
import numpy as np
import pytest
from flax import serialization
from helpers.commands import Command, complaint, metrics

from ddl import hosts
from ddl.algorithms import COLLECTIVE
from ddl.hosts import launcher

TRAIN = ["train", "--config=configs/digits.py", "--config.algorithm.name=dasgd", "--config.algorithm.delay=3"]
SHORT = ["--config.steps=400", "--config.eval_every=20", "--devices=2", "--steps_per_call=5"]


def launched(script, count=3):
  """Run Python code that can use `rank`, without JAX, with `hosts.launch`."""
  rank = f"import os, sys, time\nrank = int(os.environ['{hosts.JOINED}'].split('/')[0])\n"
  return hosts.launch(count, [sys.executable, "-c", rank + script])


@pytest.mark.parametrize(
  "script, code, error",
  [
    ("pass", 0, ""),
    ("sys.exit(f'from {rank}') if rank == 2 else time.sleep(60)", 1, "[2] from 2\n"),
    ("print(f'from {rank}', file=sys.stderr); sys.exit(2)", 2, "from 0\n"),  # printed only once
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
def test_the_first_failure_stops_all_processes(script, code, error, capfd, monkeypatch):
  monkeypatch.setattr(launcher, "FAILING", 1.0)
  assert launched(script) == code
  assert capfd.readouterr().err == error


def test_a_signal_reaches_each_process_once():
  """Each process has its own session, so that a terminal's Ctrl-C reaches it only through the launcher."""
  assert launched("assert os.getsid(0) == os.getpid() and os.getpgid(0) != os.getpgid(os.getppid())") == 0
  timer = threading.Timer(1.0, os.kill, (os.getpid(), signal.SIGTERM))
  timer.start()
  script = "import signal; signal.signal(15, lambda *_: sys.exit(128 + 15)); time.sleep(60)"
  assert launched(script) == 128 + 15


@pytest.mark.parametrize("every", [9, pytest.param(1, marks=pytest.mark.slow)])
def test_algorithms_equal_their_references(every):
  names = [*COLLECTIVE][::every]
  done = Command(*names, file="tests/helpers/process_twins.py").end()
  assert done.code == 0, done
  for name in names:
    assert f"{name} equals its reference" in done.out


@pytest.mark.slow
def test_processes_listen_only_at_loopback_and_use_no_proxy():
  proxies = dict.fromkeys(("http_proxy", "https_proxy", "HTTPS_PROXY", "grpc_proxy"), "http://127.0.0.1:9")
  done = Command(file="tests/helpers/process_listening.py", **proxies).end()
  assert done.code == 0 and not done.error, done
  result = [json.loads(line.partition(" ")[2]) for line in done.out.splitlines() if line.startswith("listening ")]
  loopback = {"0100007F", "0000000000000000FFFF00000100007F"}  # 127.0.0.1, also as an IPv6 address
  assert len(result) == 2 and all(result) and {address for rows in result for address in rows} <= loopback, result


@pytest.mark.slow
def test_a_run_stopped_by_sigterm_is_resumed(tmp_path):
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
  rows, expected = metrics(tmp_path / "two"), metrics(tmp_path / "one")
  assert [row["step"] for row in rows] == list(range(0, 401, 20))
  for row, expected_row in zip(rows, expected, strict=True):
    assert row.keys() == expected_row.keys()
    for key, value in row.items():  # float32, with sums in another order
      np.testing.assert_allclose(value, expected_row[key], rtol=1e-2, atol=3e-3, err_msg=f"{key} at {row['step']}")


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 2])
def test_devices_of_a_worker_may_be_in_several_processes(tmp_path, workers):
  rng = np.random.default_rng(0)
  np.savez(tmp_path / "x.npz", image=rng.random((7200, 8, 8, 1), np.float32), label=rng.integers(10, size=7200))
  more = ["--config.steps=40", "--config.eval_every=20", f"--config.workers={workers}", "--config.noise_batches=2"]
  more += ["--config.data.name=npz", f"--config.data.path={tmp_path}/x.npz"]  # three batches of test examples
  flags = [*TRAIN, *more, "--members=2", f"--devices={2 * workers}", "--sharding=tensor"]
  for name, count in (("two", 2), ("one", 1)):
    done = Command(*flags, f"--processes={count}", f"--workdir={tmp_path / name}").end()
    assert done.code == 0, done
  for row, expected in zip(metrics(tmp_path / "two"), metrics(tmp_path / "one"), strict=True):
    assert row.keys() == expected.keys()
    for key, value in row.items():
      np.testing.assert_allclose(value, expected[key], rtol=1e-4, atol=1e-5, err_msg=f"{key} at {row['step']}")
  two, one = (
    serialization.msgpack_restore((tmp_path / name / "model.msgpack").read_bytes()) for name in ("two", "one")
  )
  jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5), two["params"], one["params"])


@pytest.mark.slow
@pytest.mark.parametrize(
  "differs, words",
  [
    ("--config.optimizer.learning_rate=0.07", ("config.optimizer.learning_rate", "0.07 in process 1")),
    ("--config.batch=8", ("config.batch", "8 in process 1")),
  ],
)
def test_processes_with_different_settings_exit_before_the_first_step(tmp_path, differs, words):
  with socket.socket() as free:
    free.bind(("127.0.0.1", 0))
    where = f"--coordinator=127.0.0.1:{free.getsockname()[1]}"
  flags = [*TRAIN, *SHORT, f"--workdir={tmp_path}/run", where, "--num_processes=2"]
  processes = [Command(*flags, f"--process_id={rank}", *more) for rank, more in enumerate([[], [differs]])]
  for process in processes:
    line = complaint(process.end())
    assert all(word in line for word in words), line
  assert not (tmp_path / "run" / "metrics.jsonl").exists()


def test_an_error_of_one_process_stops_both(tmp_path):
  (tmp_path / "config.json").write_text("{}")
  line = complaint(Command(*TRAIN, *SHORT, "--processes=2", f"--workdir={tmp_path}").end())
  assert "already contains a run" in line
