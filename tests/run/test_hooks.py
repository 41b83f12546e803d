"""User-defined hooks of `ddl.train`, `ddl.compare` and the command line."""

import contextlib
import functools
import os
import pickle
import signal
from pathlib import Path

import jax
import numpy as np
import pytest
from helpers.commands import metrics
from helpers.comparisons import undrawn

import ddl
from ddl.run.batch import Diverged
from ddl.run.checkpoints import RunCheckpoints
from ddl.run.exit_codes import Stopped

SMALL = {"model": {"hidden": (8,)}, "workers": 2, "batch": 16, "steps": 8, "eval_every": 4}
FILE = """
def note(info):
  with open(info.folder / "calls", "a") as file:
    file.write(f"{info.step} {info.last} {(info.folder / 'result.json').exists()}\\n")

value = 3
"""


@pytest.mark.parametrize("algorithm", ["local_sgd", "async_sgd"])
@pytest.mark.sampled(2)
def test_a_hook_is_called_after_each_evaluation_and_at_the_end(algorithm, tmp_path):
  calls = []
  run = ddl.train(algorithm=algorithm, workdir=tmp_path / "run", hooks=[calls.append], **SMALL)
  assert [info.step for info in calls] == [0, 4, 8]
  assert [info.first for info in calls] == [True, False, False]
  assert [info.last for info in calls] == [False, False, True]
  assert [dict(info.metrics) for info in calls] == metrics(tmp_path / "run", timeless=False)
  jax.tree.map(np.testing.assert_array_equal, calls[-1].params, run.params)
  assert {info.folder for info in calls} == {tmp_path / "run"} and all(info.trainer for info in calls)
  assert calls[0].components.experiment.steps == 8


def test_every_run_of_a_comparison_calls_the_hooks(tmp_path):
  calls = []
  with undrawn():
    ddl.compare(algorithms={"A": "sync_sgd"}, seeds=2, workdir=tmp_path, hooks=[calls.append], **SMALL)
  ends = {(info.folder.parent.name, info.components.experiment.seed) for info in calls if info.last}
  assert ends == {("A", 0), ("A", 1)} and len(calls) == 6


@pytest.mark.slow
def test_a_command_imports_hooks_by_address_and_does_not_record_them(call, tmp_path):
  (tmp_path / "mine.py").write_text(FILE)
  flags = ["--config=configs/digits.py", "--config.model.hidden=(8,)", "--config.steps=4", "--config.eval_every=2"]
  code, _, error = call("train", *flags, f"--hooks={tmp_path}/mine.py:note", f"--workdir={tmp_path}/run")
  assert code == 0, error
  assert (tmp_path / "run/calls").read_text().split("\n") == ["0 False False", "2 False False", "4 True True", ""]
  assert "mine.py" not in (tmp_path / "run/experiment.json").read_text()


@pytest.mark.parametrize("address", ["mine.py:value", "mine.py:missing", "missing.py:note", "note"])
def test_an_address_of_no_function_is_refused_before_training(wrong, address, tmp_path):
  (tmp_path / "mine.py").write_text(FILE)
  flags = ["--config=configs/digits.py", f"--workdir={tmp_path}/run", f"--hooks={tmp_path}/{address}"]
  wrong(flags, "hooks must be ", address)
  assert not (tmp_path / "run").exists()


def test_a_tracker_needs_its_address(wrong):
  wrong(["--config=configs/digits.py", "--hooks=wandb"], "hooks must be FILE.py:NAME or ", "ddl.trackers:wandb")


@pytest.mark.parametrize("hooks", [3, ["mine.py:note"], [None], len])
def test_hooks_must_be_a_list_of_functions(hooks, tmp_path):
  with pytest.raises(ValueError, match="hooks must be a list of functions"):
    ddl.train(workdir=tmp_path / "run", hooks=hooks, **SMALL)


def test_hooks_of_several_processes_must_have_an_address(tmp_path):
  with pytest.raises(ValueError, match="top level of a file"):
    ddl.train(workdir=tmp_path / "run", hooks=[functools.partial(print)], options=ddl.RunOptions(processes=2), **SMALL)
  options = ddl.RunOptions(processes=2, hooks=("mine.py:note",))
  assert pickle.loads(pickle.dumps(options)) == options


class Recorder(ddl.RunHook):
  """A hook that records its calls, and calls `at_4` at step 4."""

  def __init__(self, at_4=lambda: None):
    self.calls, self.at_4 = [], at_4

  def check(self):
    self.calls.append("check")

  def __call__(self, info):
    self.calls.append(info.step)
    if info.step == 4:
      self.at_4()

  def close(self, info, outcome):
    self.calls.append((outcome, info.step, info.last))


def stop():
  os.kill(os.getpid(), signal.SIGTERM)


def interrupt():
  raise KeyboardInterrupt


def fail():
  raise RuntimeError


@pytest.mark.parametrize(
  "action, learning_rate, error, calls",
  [
    (bool, 0.1, None, [0, 4, 8, 12, 16, ("complete", 16, True)]),
    (bool, 1e30, Diverged, [0, ("diverged", 0, False)]),
    (stop, 0.1, Stopped, [0, 4, 8, ("stopped", 8, False)]),
    (fail, 0.1, RuntimeError, [0, 4, ("failed", 4, False)]),
    (interrupt, 0.1, KeyboardInterrupt, [0, 4, ("stopped", 4, False)]),
  ],
)
@pytest.mark.sampled(2)
def test_a_run_hook_is_closed_with_the_outcome_of_the_run(action, learning_rate, error, calls, tmp_path):
  """Also if the caller handles another exception."""
  hook = Recorder(action)
  changes = {**SMALL, "steps": 16, "optimizer": {"learning_rate": learning_rate}}
  try:
    raise ValueError
  except ValueError:
    with pytest.raises(error) if error else contextlib.nullcontext():
      ddl.train(workdir=tmp_path / "run", hooks=[hook], **changes)
  assert hook.calls == ["check", *calls]


def test_checkpoints_are_complete_if_a_hook_cannot_be_closed(tmp_path, monkeypatch):
  completed, complete, hook = [], RunCheckpoints.close, Recorder(stop)
  monkeypatch.setattr(RunCheckpoints, "close", lambda self: completed.append(complete(self)))
  hook.close = lambda *_: fail()
  with pytest.raises(RuntimeError):
    ddl.train(workdir=tmp_path / "run", hooks=[hook], **{**SMALL, "steps": 16})
  assert completed == [None]


@pytest.mark.parametrize("learning_rate", [0.1, 1e30])
def test_no_event_file_of_tensorboard_remains_open(learning_rate, tmp_path):
  """Also not if the run diverges."""
  pytest.importorskip("tensorboardX")
  optimizer = {"learning_rate": learning_rate}
  if learning_rate < 1:
    ddl.train(workdir=tmp_path / "run", optimizer=optimizer, **SMALL)
  else:
    with pytest.raises(Diverged):
      ddl.train(workdir=tmp_path / "run", optimizer=optimizer, **SMALL)
  files = [Path(link).resolve() for link in Path("/proc/self/fd").iterdir() if link.exists()]
  assert len(list(tmp_path.glob("run/tensorboard/events*"))) == 1
  assert not any(tmp_path in file.parents for file in files)
