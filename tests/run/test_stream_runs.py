"""Runs on a grain stream: bit-exact resume, other layouts, several runs in one program, and refused settings."""

import json
import os
import signal
from pathlib import Path

import jax
import numpy as np
import pytest
from helpers import streams
from helpers.commands import Command, metrics
from helpers.sessions import Run, at_call, config, send, snapshot

from ddl.engine.execution import ExecutionConfig
from ddl.run import loop

STREAM = {"data": {"name": f"{streams.__file__}:digits"}, "algorithm": {"name": "dasgd", "period": 4, "delay": 3}}
SMALL = {"workers": 2, "batch": 4, "steps": 12, "eval_every": 6}
HOW = ExecutionConfig("vmap", "scan", 3)
FLAGS = (
  "--config=configs/digits.py", f"--config.data.name={streams.__file__}:digits", "--config.model.hidden=(8,)",
  "--config.batch=8", "--config.steps=24", "--config.eval_every=8", "--config.workers=4",
)  # fmt: skip


@pytest.fixture
def as_users_run():
  """The command line does not set strict promotion."""
  with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
    yield


@pytest.mark.slow
@pytest.mark.parametrize("processes", [0, 1])
@pytest.mark.usefixtures("as_users_run")
def test_a_resume_after_a_stop_or_kill_has_the_same_bits(processes, tmp_path, monkeypatch):
  data = STREAM["data"] | {"processes": processes}
  run = Run(config(**STREAM | {"data": data}, **SMALL), how=HOW)
  with at_call(monkeypatch, 4, lambda: snapshot(tmp_path / "whole", tmp_path / "killed")):
    (tmp_path / "killed").mkdir()
    run(tmp_path / "whole", checkpoint_every=3)
  expected = run.outcome(tmp_path / "whole")
  assert len([*(tmp_path / "killed" / "checkpoints").iterdir()]) > 0
  run(tmp_path / "killed", resume=True, checkpoint_every=3)
  assert run.outcome(tmp_path / "killed") == expected
  with at_call(monkeypatch, 2, send(signal.SIGTERM)), pytest.raises(loop.Stopped):
    run(tmp_path / "stopped")
  run(tmp_path / "stopped", resume=True)
  assert run.outcome(tmp_path / "stopped") == expected


@pytest.mark.slow
@pytest.mark.usefixtures("as_users_run")
def test_runs_of_one_program_have_separate_streams(tmp_path, monkeypatch):
  run = Run(config(**STREAM, **SMALL), how=HOW)
  run.together(tmp_path / "whole", {0: 0, 5: 1})
  with at_call(monkeypatch, 2, send(signal.SIGTERM)), pytest.raises(loop.Stopped):
    run.together(tmp_path / "part", {0: 0, 5: 1})
  run.together(tmp_path / "part", {0: 0, 5: 1}, resume=True)
  result = [run.outcome(tmp_path / "whole" / f"seed-{seed}") for seed in (0, 5)]
  assert result[0] != result[1]
  assert result == [run.outcome(tmp_path / "part" / f"seed-{seed}") for seed in (0, 5)]


def losses(folder: Path):
  return [line["train_loss"] for line in metrics(folder)[1:]]


@pytest.mark.slow
def test_batches_do_not_depend_on_the_devices(call, tmp_path, monkeypatch):
  assert call("train", *FLAGS, "--devices=1", f"--workdir={tmp_path}/one")[0] == 0
  with at_call(monkeypatch, 2, send(signal.SIGTERM)):
    code = call("train", *FLAGS, "--devices=1", "--steps_per_call=5", f"--workdir={tmp_path}/two")[0]
    assert code == 128 + signal.SIGTERM
  assert call("train", *FLAGS, "--devices=2", "--resume", f"--workdir={tmp_path}/two")[0] == 0
  np.testing.assert_allclose(losses(tmp_path / "one"), losses(tmp_path / "two"), rtol=1e-4)  # float32


@pytest.mark.slow
def test_two_processes_save_the_stream_positions_of_all_workers(tmp_path):
  for flags in (("--processes=2", "--config.steps=8"), ("--config.steps=8",)):
    done = Command("train", *FLAGS, *flags, "--devices=2", f"--workdir={tmp_path}/{len(flags)}").end()
    assert done.code == 0, done.error
  result = [json.loads((tmp_path / f"{k}/checkpoints/8/figures/metadata").read_text())["streams"] for k in (1, 2)]
  assert result[0] == result[1] and {*result[0]} == {"0", "1", "2", "3"}
  np.testing.assert_allclose(losses(tmp_path / "1"), losses(tmp_path / "2"), rtol=1e-4)  # float32


@pytest.mark.slow
def test_ctrl_c_does_not_end_the_prefetch_processes(tmp_path):
  folder = tmp_path / "a"
  command = Command(
    "train", *FLAGS, "--config.steps=1000000", "--config.data.processes=1", "--config.workers=2", f"--workdir={folder}"
  )
  command.wait_for(lambda: len(metrics(folder)) > 2)
  os.killpg(command.process.pid, signal.SIGINT)
  done = command.end(60)
  assert done.code == 128 + signal.SIGINT and "Traceback" not in done.error, done
  assert [*(folder / "checkpoints").iterdir()]


@pytest.mark.parametrize(
  "flags, words",
  [
    (("--config.algorithm.name=async_easgd", "--config.algorithm.period=4"), ("stream", "async_easgd")),
    (("--config.partition.name=sharded",), ("stream", "config.partition.name")),
    (("--config.noise_batches=2",), ("stream", "config.noise_batches")),
    (("--batch_stats=reestimate",), ("stream", "batch_stats")),
    (("--config.data.examples=24",), ("worker", "step", "repeat()")),
  ],
)
def test_settings_that_a_stream_does_not_support_are_refused(wrong, tmp_path, flags, words):
  wrong([*FLAGS, f"--workdir={tmp_path}/a", *flags], *words)
