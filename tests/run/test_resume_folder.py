"""A resume needs only the folder: no config file, no flags, and any working directory."""

import json
import os
import re
import shutil
import signal

import numpy as np
import pytest
from absl import flags
from helpers.commands import ROOT, Command, complaint, metrics
from helpers.sessions import at_call, send
from sklearn.datasets import load_digits

from ddl.config.base import absolute
from ddl.config.comparison import in_order
from ddl.library import resume
from experiments.command_line import cli, config_flag, shared_flags
from experiments.commands import compare as _  # noqa: F401 (its flags)
from experiments.commands import sweep as __  # noqa: F401

CONFIG = """
from ddl.config import base


def get_config():
  config = base()
  config.model.hidden, config.workers, config.batch, config.steps, config.eval_every = (8,), 4, 8, {steps}, 10
  config.data.name, config.data.path = "npz", "digits.npz"
  config.compare.seeds, config.compare.expected = (0, 1), (("late", "early"),)
  config.compare.algorithms = {{
    "late": {{"algorithm": {{"name": "local_sgd", "period": 5}}, "optimizer": {{"momentum": None}}}},
    "early": {{"algorithm": {{"name": "sync_sgd"}}, "model": {{"hidden": (8,)}}}},
    "unused": {{"algorithm": {{"name": "easgd", "period": 5}}}},
  }}
  config.sweep.space = {{"late": {{"period": (2, 9)}}, "unused": {{"period": [2, 5]}}}}
  return config
"""
ANYWHERE = str(ROOT / "run.py")


@pytest.fixture
def home(tmp_path):
  """A working directory with a config file and its data set, with relative paths."""
  (tmp_path / "home").mkdir()
  x, y = load_digits(return_X_y=True)
  np.savez(tmp_path / "home" / "digits.npz", image=x.reshape(-1, 8, 8).astype(np.float32), label=y)
  write(tmp_path / "home", 40)
  return tmp_path / "home"


def write(home, steps):
  (home / "mine.py").write_text(CONFIG.format(steps=steps))


def started(home, command, *arguments):
  return Command(command, "--config=mine.py", *arguments, file=ANYWHERE, cwd=home)


def resumed(command, folder, *more):
  return Command(command, "--resume", f"--workdir={folder}", *more, file=ANYWHERE, cwd="/")


SERVER = ("--config.algorithm.name=async_easgd", "--config.algorithm.period=2")


@pytest.mark.slow
@pytest.mark.parametrize(
  "flags",
  [
    ("--config.algorithm.name=dasgd", "--config.algorithm.delay=1", "--steps_per_call=3", "--devices=2"),
    (*SERVER, "--config.barrier.name=ssp", "--config.barrier.bound=2", "--steps_per_call=4", "--devices=1"),
  ],
  ids=["collective", "server"],
)
def test_a_stopped_run_is_resumed_in_another_folder(home, tmp_path, flags, call, monkeypatch):
  monkeypatch.chdir(home)
  with at_call(monkeypatch, 6, send(signal.SIGTERM)):
    assert call("train", "--config=mine.py", *flags, "--workdir=run")[0] == 128 + signal.SIGTERM
  assert call("train", "--config=mine.py", *flags, "--workdir=whole")[0] == 0
  (home / "mine.py").unlink()
  shutil.move(home / "run", tmp_path / "moved")
  monkeypatch.chdir("/")
  before = len(metrics(tmp_path / "moved"))
  code, out, error = call("train", "--resume", f"--workdir={tmp_path}/moved", "--config.batch=4")
  assert code == 2 and "batch: 8 recorded, 4 now" in error
  code, out, error = call("train", "--resume", f"--workdir={tmp_path}/moved")
  assert code == 0 and not error and out.startswith(f"{tmp_path}/moved: resuming with the config and options")
  assert metrics(tmp_path / "moved") == metrics(home / "whole") and 1 < before < 5


@pytest.mark.slow
def test_a_stopped_run_of_two_processes_is_resumed_in_another_folder(home, tmp_path):
  write(home, 300)
  flags = ("--config.algorithm.name=local_sgd", "--config.algorithm.period=4", "--devices=2", "--processes=2")
  command = started(home, "train", *flags, "--workdir=run")
  command.wait_for(lambda: len(metrics(home / "run")) > 3)
  os.kill(command.process.pid, signal.SIGTERM)
  done = command.end()
  assert done.code == 128 + signal.SIGTERM, done
  whole = started(home, "train", *flags, "--workdir=whole").end()
  assert whole.code == 0, whole
  (home / "mine.py").unlink()
  shutil.move(home / "run", tmp_path / "moved")
  before = len(metrics(tmp_path / "moved"))
  assert "batch: 8 recorded, 4 now" in complaint(resumed("train", tmp_path / "moved", "--config.batch=4").end())
  done = resumed("train", tmp_path / "moved").end()
  assert done.code == 0 and "Traceback" not in done.error, done
  assert metrics(tmp_path / "moved") == metrics(home / "whole") and 3 < before < 31


@pytest.mark.slow
def test_a_stopped_comparison_and_its_sweep_are_resumed_with_the_recorded_config(home, tmp_path):
  for command, more in (("sweep", ("--trials=2",)), ("compare", ("--tuned=sweep/tuned.json",))):
    done = started(home, command, "--only=early,late", "--devices=1", *more, f"--workdir={command}").end()
    assert done.code == 0, done
  edge = re.compile("the best [a-z_]+, [0-9.]+, is the (smallest|largest) value tried; raise config.sweep.trials, or ")
  forget_last_trial(home / "sweep" / "study.journal")
  write(home, 50)  # the folders record 40
  for command, run in (("sweep", "early/trial-1/seed-0"), ("compare", "late/seed-1")):
    folder = tmp_path / command
    shutil.move(home / command, folder)
    files = {path: path.stat().st_mtime_ns for path in folder.glob("*/**/metrics.jsonl") if run not in str(path)}
    before = of_run(folder / run), (folder / "tuned.json").read_bytes().split(b'"about"')[0]
    shutil.rmtree(folder / run)
    done = resumed(command, folder).end()
    assert done.code == 0 and all(edge.search(line) for line in done.error.splitlines()), done.error
    assert (of_run(folder / run), (folder / "tuned.json").read_bytes().split(b'"about"')[0]) == before
    assert files == {path: path.stat().st_mtime_ns for path in files} and len(files) == 3


def forget_last_trial(journal):
  """Remove the last trial, as if the sweep had been stopped before it."""
  lines = journal.read_text().splitlines(keepends=True)
  last = max(n for n, line in enumerate(lines) if json.loads(line)["op_code"] == 4)  # a new trial
  journal.write_text("".join(lines[:last]))


def of_run(folder):
  config, about = (json.loads((folder / name).read_text()) for name in ("config.json", "about.json"))
  assert config["steps"] == 40 and about["layout"]["devices"] == 1
  return metrics(folder), config


def test_a_record_restores_config_and_options(home, monkeypatch):
  """The order of the labels, tuples and None are preserved; flags of the resume override the record."""
  monkeypatch.chdir(home)
  arguments = ["--only=late,early", "--devices=2", "--trials=3", "--workdir=run"]

  def parsed(*words):
    for name in flags.FLAGS:
      flags.FLAGS[name].unparse()
    cli.parse("sweep", list(words))

  parsed(*arguments)
  config = config_flag.read("sweep", ["--config=mine.py"])[0]
  config.times.path = "a.csv"
  absolute(config)
  options = shared_flags.run_options()
  more = {"only": flags.FLAGS.only, "tuned": "x/tuned.json"}
  stored = resume.record("sweep", config, options, ["--config=mine.py", *arguments], **more)
  (home / "run").mkdir()
  (home / "run" / "experiment.json").write_text(json.dumps(stored))
  parsed("--resume", "--workdir=run", "--devices=1")
  recorded = resume.read("sweep", shared_flags.run_options())
  result = resume.config_of(recorded)
  shared_flags.restore(recorded.options)
  assert result.to_dict() == config.to_dict()
  assert (result.times.path, result.data.path) == (f"{home}/a.csv", f"{home}/digits.npz")
  assert in_order(result.compare.algorithms) == in_order(config.compare.algorithms)
  assert list(in_order(result.compare.algorithms)) == ["late", "early", "unused"]
  assert result.compare.expected == (("late", "early"),) and result.compare.algorithms.early.model.hidden == (8,)
  assert flags.FLAGS.only == ["late", "early"] and recorded.options["tuned"] == "run/tuned.json"
  assert flags.FLAGS.devices == 1 and shared_flags.run_options().devices == 1
  assert recorded.arguments == ["--config=mine.py", *arguments[:-1]]
