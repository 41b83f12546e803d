"""`compare` and `sweep` from config to report: budgets, seeds, resume, and tuned settings."""

import contextlib
import io
import json
import shutil
from dataclasses import replace

import jax
import pytest
from helpers.commands import ROOT, Command, metrics
from helpers.comparisons import Tags, undrawn

import ddl
from ddl.config import default_experiment
from ddl.config.comparison import Comparison

CONFIG = "configs/digits_compare.py"
SMALL = {"steps": 30, "eval_every": 10, "workers": 2}
LABELS = ["local SGD", "EASGD"]


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
  """(folder of a sweep and of a comparison with its settings, output of the sweep, output of the comparison)."""
  path, outs = tmp_path_factory.mktemp("runs"), (io.StringIO(), io.StringIO())
  with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"), undrawn():
    with contextlib.redirect_stdout(outs[0]):
      ddl.sweep(ROOT / CONFIG, only=LABELS, trials=2, workdir=path / "sweep", **SMALL)
    with contextlib.redirect_stdout(outs[1]):
      tuned = path / "sweep/tuned.json"
      ddl.compare(ROOT / CONFIG, only=LABELS, seeds=2, tuned=tuned, workdir=path / "compare", **SMALL)
  return path, outs[0].getvalue(), outs[1].getvalue()


def test_runs_have_equal_examples_and_labels_share_initial_parameters(folders):
  runs = {path.parent.name + path.name: metrics(path) for path in folders[0].glob("compare/*/seed-*")}
  assert len(runs) == 4
  assert {tuple(line["examples"] for line in run) for run in runs.values()} == {(0, 320, 640, 960)}
  first = {name: run[0]["test_loss"] for name, run in runs.items()}
  assert first["EASGDseed-0"] == first["local_SGDseed-0"] != first["EASGDseed-1"]


def test_labels_have_equal_trials_and_compare_uses_the_best(folders):
  path, out, _ = folders
  tuned = json.loads((path / "sweep" / "tuned.json").read_text())["algorithms"]
  for label, slug in (("EASGD", "EASGD"), ("local SGD", "local_SGD")):
    trials = tuned[label]["trials"]
    assert len(trials) == 2
    best = max(trials, key=lambda trial: (trial["validation"]["accuracy"], -trial["validation"]["loss"]))
    assert tuned[label]["best"] == best["setting"]
    config = json.loads((path / "compare" / slug / "seed-0" / "config.json").read_text())
    assert config["optimizer"]["learning_rate"] == best["setting"]["optimizer"]["learning_rate"]
    assert config["data"]["validation"] == 0.0
  trial = json.loads((path / "sweep" / "EASGD" / "trial-0" / "seed-0" / "config.json").read_text())
  assert trial["data"]["validation"] == 0.2
  assert "tuned.json" in out


def test_the_report_is_self_contained_and_a_resume_skips_complete_runs(folders, call):
  path, _, out = folders
  page = path / "compare" / "report.html"
  for _, attrs in Tags(page.read_text()).tags:
    assert all(attrs[name].startswith(("data:", "#")) for name in ("src", "srcset", "href") if name in attrs)
  assert str(page) in out
  before = {file: file.stat().st_mtime_ns for file in path.glob("compare/*/seed-*/metrics.jsonl")}
  code, out, error = call("compare", "--resume", f"--workdir={path}/compare")
  assert code == 0, error
  assert len(before) == 4 and {file: file.stat().st_mtime_ns for file in before} == before
  assert "EASGD" in out and "regenerated" not in out


@pytest.mark.slow
def test_a_resume_without_config_trains_the_missing_run(folders):
  path, run = folders[0] / "compare", "EASGD/seed-1"
  before = {file: file.stat().st_mtime_ns for file in path.glob("*/*/metrics.jsonl") if run not in str(file)}
  lines = metrics(path / run)
  shutil.rmtree(path / run)  # as if stopped before this run
  done = Command("compare", "--resume", f"--workdir={path}", "--config.compare.target=0.5").end()
  assert done.code == 0 and not done.error, done
  assert f"{path}: resuming with the config and options recorded in its experiment.json\n" in done.out
  assert metrics(path / run) == lines and len(before) == 3
  assert {file: file.stat().st_mtime_ns for file in before} == before
  assert f"the report in {path} is regenerated: target 0.95 before, 0.5 now\n" in done.out
  assert json.loads((path / "comparison.json").read_text())["target"]["value"] == 0.5


@pytest.mark.parametrize(
  "flags, words",
  [
    (("--only=lokal SGD",), "'local SGD'"),
    (("--config.compare.seeds=(0,0)",), "config.compare.seeds must be "),
    (("--config.compare.seeds=(0,-1)",), "config.compare.seeds must be an integer >= 0, got -1"),
    (("--config.compare.expected=(('EASGD','EASDG'),)",), "EASDG"),
    (("--config.compare.expected=1",), "config.compare.expected must be "),
    (("--resume", "--workdir=runs/that-never-were"), "workdir must be an existing folder with resume"),
  ],
)
def test_errors_are_reported_before_any_run(wrong, tmp_path, flags, words):
  wrong([f"--config={CONFIG}", f"--workdir={tmp_path}/a", *flags], words, command="compare")
  assert not (tmp_path / "a").exists()


def test_labels_must_have_equal_budgets_of_examples():
  whole = default_experiment(workers=8, batch=16, steps=400)
  Comparison({"a": whole, "b": replace(whole, workers=4, batch=32)})
  with pytest.raises(ValueError, match="b: 25600"):
    Comparison({"a": whole, "b": replace(whole, workers=4)})
  with pytest.raises(ValueError, match=r"config\.model must be the same .* for b\."):
    Comparison({"a": whole, "b": whole.changed({"model": {"hidden": (3,)}})})
