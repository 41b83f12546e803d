"""Folders that contain other work, and diverged runs: a one-line error, exit code 2, no files lost."""

import json
import re
import types
from dataclasses import replace
from importlib import metadata

import jax
import numpy as np
import pytest
from helpers.commands import ROOT, metrics

from ddl.config.base import load as load_config
from ddl.config.experiment import Experiment
from ddl.engine.checkpoint import Checkpoints
from ddl.run import build, processes
from ddl.run.folder import RunFolder, package_versions
from ddl.run.workdir import without
from experiments.command_line import cli

DIGITS = "--config=configs/digits.py"
QUICK = [DIGITS, "--config.model.hidden=(8,)", "--config.steps=4", "--config.eval_every=2", "--devices=1"]


# ---- folders


def test_a_folder_is_resumed_only_with_the_same_config(call, wrong, tmp_path):
  code, out, error = call("train", *QUICK)
  assert code == 0 and not error and "step 4" in out
  assert "\ncompiling\n" in out and float(out.split("compiled in ")[1].split(" s")[0]) > 0
  lines = (tmp_path / "run" / "metrics.jsonl").read_text()
  wrong(QUICK, f"{tmp_path}/run already contains a run", "resume")
  other = [*QUICK, "--resume", "--config.batch=8", "--config.algorithm.name=dasgd"]
  wrong(other, "a different config", "batch: 16 recorded, 8 now", "algorithm.name: sync_sgd recorded, dasgd now")
  (tmp_path / "run" / "result.json").unlink()  # a complete run is not resumed
  wrong([*QUICK, "--resume", "--steps_per_call=1"], "was run with", "steps_per_call")
  wrong([*QUICK, "--resume", f"--workdir={tmp_path}/none"], "workdir must be an existing folder with resume")
  (tmp_path / "file").write_text("")
  wrong([*QUICK, f"--workdir={tmp_path}/file"], f"{tmp_path}/file")
  assert (tmp_path / "run" / "metrics.jsonl").read_text() == lines
  code, out, error = call("train", *QUICK, "--resume", "--devices=2")
  assert code == 0 and not error and "with 1 process, 2 devices," in out and "instead of 1 process, 1 device," in out
  assert (tmp_path / "run" / "metrics.jsonl").read_text() == lines
  about = json.loads((tmp_path / "run" / "about.json").read_text())
  assert about["layout"]["devices"] == 2 and about["layout"]["together"] == 1
  assert [(row["step"], row["bit_exact"], row["before"]["devices"]) for row in about["resharded"]] == [(4, False, 1)]


def test_a_different_sharding_is_named(call, tmp_path):
  split = [*QUICK, "--devices=2", "--config.workers=1", "--members=2", f"--workdir={tmp_path}/split"]
  assert call("train", *split, "--sharding=fsdp")[0] == 0
  (tmp_path / "split" / "result.json").unlink()
  code, out, _ = call("train", *split, "--resume", "--sharding=tensor")
  assert code == 0 and re.search(r"resuming with .*, sharding tensor instead of .*, sharding fsdp: results are", out)


def test_the_folder_of_another_command_is_not_changed(wrong, tmp_path, nothing_starts):
  (tmp_path / "about.json").write_text('{"command": "python run.py compare --config=x.py"}')
  for command in ("train", "compare", "sweep"):
    flags = ["--config=configs/digits_compare.py", f"--workdir={tmp_path}"]
    wrong(flags, f"{tmp_path} contains files of another command", "another workdir", command=command)
  assert [path.name for path in tmp_path.iterdir()] == ["about.json"]


@pytest.mark.parametrize("command", ["compare", "sweep"])
def test_no_model_is_traced_before_the_devices_start(monkeypatch, tmp_path, command):
  """A model may query the backend, which fixes the number of devices."""

  class Started(BaseException):
    pass

  def started(*_):
    raise Started

  monkeypatch.setattr(processes, "start_devices", started)
  monkeypatch.setattr(jax, "default_backend", lambda: pytest.fail("a model was traced"))
  with pytest.raises(Started):
    cli.run(command, ["--config=configs/sc17_lenet.py", f"--workdir={tmp_path}"])


@pytest.fixture
def nothing_starts(monkeypatch):
  """Fail if a test loads data or starts devices."""

  def fail(*_):
    pytest.fail("data was loaded or devices were started")

  monkeypatch.setattr(build, "load", fail)
  monkeypatch.setattr(processes, "start_devices", fail)


def test_folders_are_refused_before_data_is_loaded(wrong, call, tmp_path, nothing_starts):
  config = load_config(ROOT / "configs" / "digits_compare.py")
  label = "--only=EASGD"
  for command, run in (("train", ""), ("compare", "EASGD/seed-1")):
    folder = RunFolder(tmp_path / command / run)
    folder.create(replace(Experiment.from_config(config), batch=3), {"command": "python run.py train --config=x.py"})
    flags = ["--config=configs/digits_compare.py", f"--workdir={tmp_path}/{command}", *[label][: command != "train"]]
    wrong(flags, f"{folder.path} already contains a run", command=command)
    wrong(
      [*flags, "--resume"],
      f"{folder.path} contains a run with a different config (",
      "batch: 3 recorded, ",
      command=command,
    )
  (tmp_path / "train" / "config.json").write_text(json.dumps(Experiment.from_config(config).to_json()))
  (tmp_path / "train" / "result.json").write_text('{"step": 400, "test_loss": 0.25}')
  code, out, error = call("train", "--config=configs/digits_compare.py", f"--workdir={tmp_path}/train", "--resume")
  assert code == 0 and not error and out == f"step 400, test_loss 0.25\n{tmp_path}/train is complete\n"


@pytest.mark.parametrize("runtime", ["simulator", "ray"])
def test_a_complete_run_is_not_trained_again(call, tmp_path, nothing_starts, runtime):
  config = load_config(ROOT / "configs" / "async_easgd_digits.py")
  RunFolder(tmp_path / "run").create(Experiment.from_config(config), {})
  (tmp_path / "run" / "result.json").write_text('{"step": 400, "test_loss": 0.25}')
  flags = ("--config=configs/async_easgd_digits.py", "--resume", f"--runtime={runtime}")
  assert call("train", *flags)[:2] == (0, f"step 400, test_loss 0.25\n{tmp_path}/run is complete\n")


def test_missing_and_damaged_records_of_the_command_are_refused(wrong, tmp_path, nothing_starts):
  wrong(["--resume", "--workdir="], "workdir must be set with resume (to the folder to resume")
  wrong(["--resume"], f"workdir must be an existing folder with resume, got {tmp_path}/run.")
  (tmp_path / "run").mkdir()
  file = tmp_path / "run" / "experiment.json"
  wrong(["--resume"], f"{file}, ", "is missing", "pass the original config and options")
  good = {"command": "train", "arguments": [], "options": {}, "config": {}}
  damaged = [
    {"arguments": 3}, {"options": []}, {"options": {"no_such_flag": 1}}, {"options": {"devices": "two"}}, {"config": 3},
    {"config": {"no_such_key": 1}}, {"config": {"steps": "two"}}, {"config": {"model": 3}},
  ]  # fmt: skip
  for text in ("{", "{}", "[]", '{"command": 3}', *[json.dumps(good | change) for change in damaged]):
    file.write_text(text)
    wrong(["--resume"], f"{file} is damaged", "pass the original config and options")
  for options in ({}, {"cluster": ["ethernet_10g"]}):  # not a flag of `train`
    file.write_text(json.dumps(good | {"command": "compare", "options": options}))
    wrong(["--resume"], "was written by compare")


def test_recorded_arguments_exclude_the_folder_and_resume():
  words = ["--config", "x.py", "--workdir", "a b", "-resume", "--workdir=c", "--resume=true", "--workdirs=1", "workdir"]
  assert without(words) == ["--config", "x.py", "--workdirs=1", "workdir"]


# ---- divergence

RATE = "--config.optimizer.learning_rate="


def finite(folder, step):
  checkpoints = Checkpoints(folder / "checkpoints")
  assert checkpoints.steps()[0] == step
  leaves = jax.tree.leaves(checkpoints._manager.restore(step).carry)
  checkpoints.close()
  return leaves and all(np.isfinite(x).all() for x in leaves)


@pytest.mark.parametrize("algorithm", ["sync_sgd", "local_sgd"])
@pytest.mark.sampled(2)
def test_a_diverged_run_keeps_the_last_good_checkpoint(wrong, tmp_path, algorithm):
  arguments = [
    DIGITS, "--devices=1", "--config.steps=600", "--config.eval_every=2", "--config.data.name=least_squares",
    "--config.model.name=linear", "--config.model.hidden=None", "--checkpoint_every=1",
    f"--config.algorithm.name={algorithm}", f"{RATE}30.0",
  ]  # fmt: skip
  error = wrong(arguments, f"{algorithm} diverged: ", "learning_rate below 30.0", "checkpoint was saved at step ")
  lines = metrics(tmp_path / "run")
  assert len(lines) > 2 and all(np.isfinite(value) for line in lines for value in line.values())
  step = int(re.search(r"saved at step (\d+)", error)[1])
  assert finite(tmp_path / "run", step) and step == lines[-1]["step"]
  assert not (tmp_path / "run" / "result.json").exists()
  again = wrong([*arguments, "--resume"], "diverged: ")
  assert again == error and metrics(tmp_path / "run") == lines


def test_overflowing_parameters_with_a_finite_loss_are_reported(wrong, tmp_path):
  """The first step's loss is finite, but its update is not."""
  error = wrong(
    [*QUICK, "--checkpoint_every=1", "--steps_per_call=1", f"{RATE}3e38", "--config.optimizer.weight_decay=3e38"],
    "diverged: ",
    "after step 1",
  )
  assert "no checkpoint was saved" in error and len(metrics(tmp_path / "run")) == 1


def test_a_non_finite_loss_is_reported_with_its_step(wrong):
  wrong([*QUICK, "--steps_per_call=4", "--config.eval_every=4", f"{RATE}3e38"], "its loss is ", " at step 2;")


def test_versions_include_the_compiler_and_accelerator_plugins(monkeypatch):
  installed = [
    ("jax", "1"),
    ("jaxlib", "2"),
    ("jax_cuda12_plugin", "3"),
    ("jaxtyping", "4"),
    ("numpy", "5"),
    (None, "6"),
  ]
  packages = [types.SimpleNamespace(name=name, version=version) for name, version in installed]
  monkeypatch.setattr(metadata, "distributions", lambda: packages)
  versions = package_versions.__wrapped__()  # not cached
  assert {key: versions[key] for key in versions.keys() - {"python", "ddl"}} == {
    "jax": "1", "jaxlib": "2", "jax-cuda12-plugin": "3", "numpy": "5",
  }  # fmt: skip
