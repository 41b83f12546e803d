"""What goes wrong in `ddl.train` and its like is told in the words of a call."""

import dataclasses
import importlib

import pytest
from absl import flags

import ddl
from ddl.config.options import RunOptions
from ddl.library.words import words
from ddl.run.workdir import resume_command

SMALL = {"model": {"hidden": (8,)}, "workers": 2, "batch": 16, "steps": 2, "eval_every": 2}


def test_a_cell_that_is_run_again(tmp_path):
  ddl.train(workdir=tmp_path / "a", **SMALL)
  with pytest.raises(ValueError, match="another workdir=") as caught:
    ddl.train(workdir=tmp_path / "a", **SMALL)
  assert "options=ddl.RunOptions(resume=True)" in str(caught.value) and "--" not in str(caught.value)
  assert ddl.train(workdir=tmp_path / "a", options=ddl.RunOptions(resume=True), **SMALL).step == 2
  with pytest.raises(ValueError, match=r"model=\{\"width\": None\}"):
    ddl.train(model={"width": 3}, workdir=tmp_path / "b")


def test_every_flag_of_these_commands_has_words():
  for command in ("train", "compare", "sweep"):
    importlib.import_module(f"experiments.commands.{command}")
  ours = flags.FLAGS.flags_by_module_dict()
  modules = [
    "experiments.command_line.flags",
    *(f"experiments.commands.{name}" for name in ("train", "compare", "sweep")),
  ]
  names = [flag.name for module in modules for flag in ours[module]] + ["workdir", "only", "cluster", "tuned", "config"]
  assert {each.name for each in dataclasses.fields(RunOptions)} & {*names}
  for name in {*names} - {"coordinator", "num_processes", "process_id", "explain"}:  # of a process, or of commands only
    for text in (f"take --{name}.", f"take --{name}=VALUE."):
      assert "--" not in words(text) and words(text).endswith("."), words(text)


@pytest.mark.parametrize(
  ("told", "expected"),
  [
    ("--workdir=a/b: a is a file", "workdir='a/b': a is a file"),
    ("--resume needs --workdir=runs/...", "options=ddl.RunOptions(resume=True) needs workdir='runs/...'"),
    ("--config.model.hidden=(64, 64) sets it, --config.model.hidden=None unsets it",
     'model={"hidden": (64, 64)} sets it, model={"hidden": None} unsets it'),
    ("--config.steps=100;", "steps=100;"),
    ("--only=LABELS picks, --only=a,b too", "only=LABELS picks, only=['a', 'b'] too"),
    ("--overlap=off", "options=ddl.RunOptions(overlap=False)"),
    ("--devices can be 1, 2", "options=ddl.RunOptions(devices=...) can be 1, 2"),
    (resume_command("compare", "/x/y z"), "ddl.compare(..., options=ddl.RunOptions(resume=True), workdir='/x/y z')"),
    ("`python run.py sweep` wrote", "`ddl.sweep(...)` wrote"),
    ("python -m pip --quiet", "python -m pip --quiet"),
  ],
)  # fmt: skip
def test_words(told, expected):
  assert words(told) == expected
