"""Batches of seeds in a comparison: which share a program, and bit-exact resume."""

import json
import os
import shutil
import signal

import jax
import jax.numpy as jnp
import pytest
from helpers.commands import Command, metrics
from helpers.comparisons import undrawn
from helpers.sessions import at_call, send

from ddl.api import Model
from ddl.comparison.compare import compare
from ddl.config import default_experiment
from ddl.config.comparison import Comparison
from ddl.config.options import RunOptions
from ddl.engine import execution
from ddl.run.exit_codes import Stopped

SMALL = {"workers": 2, "batch": 8, "steps": 20, "eval_every": 10, "model": {"hidden": (8,)}}
SEEDS = (0, 1, 2)


@pytest.fixture(autouse=True)
def as_commands_do():
  with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"), undrawn():
    yield


def run(path, names=("local_sgd",), seeds=SEEDS, **options):
  labels = {name: default_experiment(algorithm={"name": name}, **SMALL) for name in names}
  return compare(
    Comparison(labels, seeds=seeds, target=0.5), RunOptions(workdir=str(path), print_table=False, **options)
  )


def together(path, name="local_sgd"):
  return [json.loads((path / name / f"seed-{s}" / "about.json").read_text())["layout"]["together"] for s in SEEDS]


def all_metrics(path):
  return [metrics(path / "local_sgd" / f"seed-{seed}") for seed in SEEDS]


@pytest.mark.slow
def test_runs_missing_after_a_kill_have_the_same_bits(tmp_path):
  run(tmp_path / "whole")
  assert together(tmp_path / "whole") == [3, 3, 3]
  shutil.copytree(tmp_path / "whole", tmp_path / "killed")
  label = tmp_path / "killed" / "local_sgd"
  shutil.rmtree(label / "seed-0")  # not begun
  (label / "seed-2" / "result.json").unlink()  # begun
  run(tmp_path / "killed", resume=True)
  assert all_metrics(tmp_path / "killed") == all_metrics(tmp_path / "whole")
  run(tmp_path / "killed", seeds=(*SEEDS, 3, 4), resume=True)
  assert all_metrics(tmp_path / "killed") == all_metrics(tmp_path / "whole")
  groups = json.loads((label / "together.json").read_text())["runs"]
  assert groups == [["seed-0", "seed-1", "seed-2"], ["seed-3", "seed-4"]]


@pytest.mark.slow
def test_a_killed_comparison_resumes_from_checkpoints(tmp_path, monkeypatch):
  """The crash is in the third of four calls; complete runs have no checkpoint."""
  how = {"steps_per_call": 5, "checkpoint_every": 5}
  run(tmp_path / "whole", **how)
  folders = [tmp_path / "whole" / "local_sgd" / f"seed-{seed}" for seed in SEEDS]
  assert not any((folder / "checkpoints").exists() for folder in folders)

  def crash():
    shutil.copytree(tmp_path / "first", tmp_path / "killed")

  with at_call(monkeypatch, 3, crash):
    run(tmp_path / "first", **how)
  steps = [int(file.name) for file in (tmp_path / "killed" / "local_sgd" / "seed-0" / "checkpoints").iterdir()]
  assert max(steps) in (5, 10)
  run(tmp_path / "killed", resume=True, **how)
  assert all_metrics(tmp_path / "killed") == all_metrics(tmp_path / "whole")


@pytest.mark.slow
def test_a_stop_saves_the_current_seeds_and_a_resume_trains_all(tmp_path, monkeypatch):
  monkeypatch.setattr(execution, "runs_per_program", lambda *_: 2)
  run(tmp_path / "whole")
  with at_call(monkeypatch, 1, send(signal.SIGTERM)), pytest.raises(Stopped) as stopped:
    run(tmp_path / "stopped")
  assert "stopped and saved during local_sgd, 2 seeds; resume with: " in stopped.value.message
  shutil.rmtree(tmp_path / "stopped" / "local_sgd" / "seed-1" / "checkpoints")  # killed before seed 1 was saved
  run(tmp_path / "stopped", resume=True)
  assert all_metrics(tmp_path / "stopped") == all_metrics(tmp_path / "whole")


@pytest.mark.slow
def test_a_folder_without_together_json_trains_each_seed_separately(tmp_path, monkeypatch):
  with monkeypatch.context() as patch:
    patch.setattr(execution, "runs_per_program", lambda *_: 1)
    run(tmp_path / "separate")
  shutil.copytree(tmp_path / "separate", tmp_path / "old")
  label = tmp_path / "old" / "local_sgd"
  (label / "together.json").unlink()  # as written by earlier versions
  (label / "seed-1" / "result.json").unlink()
  run(tmp_path / "old", resume=True)
  assert all_metrics(tmp_path / "old") == all_metrics(tmp_path / "separate")


@pytest.mark.slow
def test_a_comparison_with_a_server_algorithm_trains_each_seed_separately(tmp_path):
  run(tmp_path, names=("local_sgd", "async_sgd"))
  assert together(tmp_path) == together(tmp_path, "async_sgd") == [1, 1, 1]


MB = 2**20


@pytest.mark.parametrize(
  "dense, size, workers, call_bytes, expected",
  [
    (True, 2**15, 8, 1, 16), (True, 2**15 + 1, 8, 1, 1), (False, 4, 8, 1, 1),  # mostly dispatch
    (True, 4, 8, 8 * MB, 16), (True, 4, 8, 16 * MB, 8), (True, 4, 8, 500 * MB, 1), (True, 2**15, 512, 1, 2),  # memory
  ],
)  # fmt: skip
def test_small_models_share_a_program(dense, size, workers, call_bytes, expected):
  model = Model(lambda key: (jnp.zeros(size, jnp.float32), {}), lambda *_: None, dense=dense)  # pyright: ignore
  assert execution.runs_per_program(model, workers, call_bytes) == expected


@pytest.mark.slow
def test_several_processes_stop_and_resume_to_the_same_bits(tmp_path):
  flags = ("--config=configs/digits_compare.py", "--only=local SGD", "--config.compare.seeds=0,1,2")
  whole, stopped = (("compare", *flags, "--config.steps=2000", "--processes=2", f"--workdir={path}") for path in "ab")

  def start(arguments, *more):
    return Command(*(word.replace("--workdir=", f"--workdir={tmp_path}/") for word in arguments), *more)

  assert start(whole).end().code == 0
  begun = start(stopped)
  lines = tmp_path / "b" / "local_SGD" / "seed-2" / "metrics.jsonl"
  begun.wait_for(lambda: lines.exists() and lines.read_text().count("\n") > 3)
  os.kill(begun.process.pid, signal.SIGTERM)
  done = begun.end()
  assert done.code == 128 + signal.SIGTERM and "Traceback" not in done.error, done
  assert start(stopped, "--resume").end().code == 0
  for seed in SEEDS:
    a, b = (metrics(tmp_path / name / "local_SGD" / f"seed-{seed}") for name in "ab")
    assert a == b and len(a) == 201
