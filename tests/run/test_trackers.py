"""Hooks for Weights & Biases and MLflow: with modules that store runs in memory, and with the packages if installed."""

import os
import signal
import sys
import types

import pytest
from helpers.commands import metrics
from helpers.comparisons import undrawn
from helpers.trackers import FakeMLflow, FakeWandb, RealMLflow, RealWandb

import ddl
from ddl import hosts
from ddl.config.user_code import custom
from ddl.errors import OptionError
from ddl.run.exit_codes import Stopped
from ddl.run.processes import to_json

SMALL = {"model": {"hidden": (8,)}, "workers": 2, "batch": 16, "steps": 12, "eval_every": 2}


@pytest.fixture(params=["fake wandb", "offline wandb", "fake mlflow", "installed wandb", "installed mlflow"])
def tracker(request, monkeypatch, tmp_path):
  """A hook, and the tracker that stores its runs."""
  kind, name = request.param.split()
  for variable in ("WANDB_PROJECT", "MLFLOW_EXPERIMENT_NAME"):
    monkeypatch.delenv(variable, raising=False)
  if kind == "installed":
    store = {"wandb": RealWandb, "mlflow": RealMLflow}[name](tmp_path, monkeypatch)
  else:
    store = FakeMLflow() if name == "mlflow" else FakeWandb("offline" if kind == "offline" else "online")
    monkeypatch.setitem(sys.modules, name, store)
  return types.SimpleNamespace(name=name, hook=getattr(ddl.trackers, name), stored=store.stored)


@pytest.mark.parametrize("tracker", ["fake wandb", "fake mlflow", "installed wandb", "installed mlflow"], indirect=True)
@pytest.mark.slow
def test_each_run_of_a_comparison_is_a_run_of_the_tracker(tracker, tmp_path):
  too_fast = {"algorithm": "local_sgd", "optimizer": {"learning_rate": 1e30}}
  with undrawn():
    ddl.compare(
      algorithms={"A": "sync_sgd", "too fast": too_fast}, seeds=2, workdir=tmp_path / "digits", hooks=[tracker.hook],
      **SMALL,
    )  # fmt: skip
  runs = {run.name: run for run in tracker.stored()}
  names = ["A/seed-0", "A/seed-1", "too_fast/seed-0", "too_fast/seed-1"]
  assert sorted(runs) == names and len(tracker.stored()) == 4
  for name, run in runs.items():
    assert run.lines == metrics(tmp_path / "digits" / name, timeless=False)
    assert (run.project, run.group) == ("ddl", "digits")
    assert run.state == ("finished" if name.startswith("A") else "failed")
    settings = {key: run.config[key] for key in ("label", "seed", "algorithm.name", "batch", "model.hidden")}
    label, seed = name.split("/seed-")
    algorithm = {"A": "sync_sgd", "too_fast": "local_sgd"}[label]
    assert settings == dict(label=label, seed=seed, batch="16", **{"algorithm.name": algorithm, "model.hidden": "[8]"})
  assert [len(runs[name].lines) for name in names] == [7, 7, 1, 1]


@pytest.mark.sampled(2)
def test_a_resumed_run_continues_the_run_of_the_tracker(tracker, tmp_path, monkeypatch):
  """After an exception between two checkpoints, and after a signal."""
  monkeypatch.setenv("WANDB_PROJECT", "mine")
  monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", "mine")

  steps = []

  def stop(info):
    steps.append(info.step)
    if steps == [0, 2, 4, 6]:
      raise RuntimeError
    if info.step == 8:
      os.kill(os.getpid(), signal.SIGTERM)

  def states():
    return [run.state for run in tracker.stored()]

  run = {"workdir": tmp_path / "run", "hooks": [tracker.hook, stop]}
  options = ddl.RunOptions(checkpoint_every=4, steps_per_call=2)
  with pytest.raises(RuntimeError):
    ddl.train(options=options, **run, **SMALL)
  assert states() == ["failed"]
  assert [line["step"] for line in tracker.stored()[0].lines] == [0, 2, 4, 6]
  resumed = ddl.RunOptions(resume=True)
  with pytest.raises(Stopped):
    ddl.train(options=resumed, **run)
  assert steps[4:6] == [6, 8]
  assert states() == ["failed" if tracker.name == "wandb" else "killed"]
  ddl.train(options=resumed, workdir=tmp_path / "run", hooks=[tracker.hook])
  (stored,) = tracker.stored()
  assert (stored.name, stored.project, stored.group, stored.state) == ("sync_sgd/seed-0", "mine", None, "finished")
  lines = metrics(tmp_path / "run")
  assert [{key: line[key] for key in line if key != "seconds"} for line in stored.lines] == lines
  assert [line["step"] for line in lines] == [0, 2, 4, 6, 8, 10, 12]


@pytest.mark.parametrize("tracker", ["fake wandb", "fake mlflow"], indirect=True)
def test_a_resumed_run_logs_what_the_tracker_has_lost(tracker, tmp_path):
  """A crash can destroy lines before the restored checkpoint."""

  def crash(info):
    if info.step == 10:
      raise RuntimeError

  options = ddl.RunOptions(checkpoint_every=8, steps_per_call=2)
  with pytest.raises(RuntimeError):
    ddl.train(options=options, workdir=tmp_path / "run", hooks=[tracker.hook, crash], **SMALL)
  del tracker.stored()[0].lines[1:]
  ddl.train(options=ddl.RunOptions(resume=True), workdir=tmp_path / "run", hooks=[tracker.hook])
  assert [line["step"] for line in tracker.stored()[0].lines] == [0, 2, 4, 6, 8, 10, 12]


@pytest.mark.parametrize("tracker", ["fake wandb"], indirect=True)
def test_only_the_main_process_logs(tracker, tmp_path, monkeypatch):
  infos = []
  ddl.train(workdir=tmp_path / "run", hooks=[infos.append], **SMALL)
  monkeypatch.setattr(hosts, "is_main", lambda: False)
  tracker.hook(infos[0])
  tracker.hook.close(infos[0], "complete")
  assert tracker.stored() == []


@pytest.mark.parametrize("name, package", [("wandb", "wandb"), ("mlflow", "mlflow-skinny")])
@pytest.mark.parametrize("module", [None, types.ModuleType("wandb")], ids=["missing", "folder of offline runs"])
def test_a_missing_package_is_an_error_before_the_folder_is_created(name, package, module, tmp_path, monkeypatch):
  monkeypatch.setitem(sys.modules, name, module)
  with pytest.raises(OptionError) as error:
    ddl.train(workdir=tmp_path / "run", hooks=[getattr(ddl.trackers, name)], **SMALL)
  assert error.value.option == name and f"pip install {package}`" in error.value.advice
  assert not (tmp_path / "run").exists()


def test_trackers_have_an_address():
  for name in ("wandb", "mlflow"):
    hook = getattr(ddl.trackers, name)
    assert custom(hook) == {"name": f"ddl.trackers:{name}"}
    with pytest.raises(OptionError, match="hooks must be module-level functions"):
      to_json(ddl.RunOptions(processes=2, hooks=(hook,)))
