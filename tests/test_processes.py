"""Two real local processes, joined by jax.distributed: the same numbers as one, and a common end."""

import os
import signal
import time

import numpy as np
from commands import Command, complaint, metrics

from ddl.algorithms import COLLECTIVE

TRAIN = ["train", "--config=configs/digits.py", "--config.algorithm.name=dasgd", "--config.algorithm.delay=3"]
SHORT = ["--config.steps=400", "--config.eval_every=20", "--devices=2", "--steps_per_call=5"]


def test_every_algorithm_equals_its_twin():
  done = Command(file="tests/process_twins.py").end()
  assert done.code == 0, done
  for name in COLLECTIVE:
    assert f"{name} equals its twin" in done.out


def test_stopped_twice_and_resumed_is_one_run(tmp_path):
  """SIGTERM to the parent stops and saves both processes; so does the Ctrl-C of a terminal, which reaches its group."""
  command = [*TRAIN, *SHORT, "--processes=2", f"--workdir={tmp_path}/two"]
  one = Command(*TRAIN, *SHORT, f"--workdir={tmp_path}/one")
  for number in (signal.SIGTERM, signal.SIGINT):
    lines = len(metrics(tmp_path / "two"))
    process = Command(*command, *["--resume"][: lines > 0])
    process.wait_for(lambda lines=lines: len(metrics(tmp_path / "two")) > lines + 2)
    send = os.kill if number == signal.SIGTERM else os.killpg
    send(process.process.pid, number)
    done = process.end()
    assert done.code == 128 + number and "Traceback" not in done.error, done
    assert "and saved; continue with --resume" in done.out
    assert lines + 3 <= len(metrics(tmp_path / "two")) < 21
  done = Command(*command, "--resume").end()
  assert done.code == 0, done
  assert one.end().code == 0
  ours, theirs = metrics(tmp_path / "two"), metrics(tmp_path / "one")
  assert [line["step"] for line in ours] == list(range(0, 401, 20))
  for mine, other in zip(ours, theirs, strict=True):
    assert mine.keys() == other.keys()
    for key, value in mine.items():  # float32, and sums in another order
      np.testing.assert_allclose(value, other[key], rtol=1e-2, atol=3e-3, err_msg=f"{key} at {mine['step']}")


def test_what_one_process_finds_wrong_ends_both_at_once(tmp_path):
  (tmp_path / "config.json").write_text("{}")
  began = time.monotonic()
  line = complaint(Command(*TRAIN, *SHORT, "--processes=2", f"--workdir={tmp_path}").end())
  assert "holds a run already" in line and time.monotonic() - began < 40
