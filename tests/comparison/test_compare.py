"""`compare` and `sweep` from config to report: budget, seeds, what a resume skips, what a sweep hands on."""

import json
import shutil
from dataclasses import replace

import pytest
from helpers.commands import Command, metrics
from helpers.comparisons import Tags

from ddl.config import default_experiment
from ddl.config.comparison import Comparison

SMALL = (
  "--config=configs/digits_compare.py",
  "--config.steps=30",
  "--config.eval_every=10",
  "--config.workers=2",
  "--only=local SGD,EASGD",
)


def run(command, *more):
  done = Command(command, *SMALL, *more).end()
  assert done.code == 0, done.error
  return done.out


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
  path = tmp_path_factory.mktemp("runs")
  sweep = run("sweep", f"--workdir={path / 'sweep'}", "--trials=2")
  compare = run(
    "compare",
    "--config.compare.seeds=(0,1)",
    f"--workdir={path / 'compare'}",
    f"--tuned={path / 'sweep' / 'tuned.json'}",
  )
  return path, sweep, compare


def lines(path):
  return [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]


def test_every_algorithm_gets_the_same_examples_and_starts_alike(folders):
  runs = {p.parent.name + p.name: lines(p) for p in folders[0].glob("compare/*/seed-*")}
  assert len(runs) == 4
  assert {tuple(line["examples"] for line in run) for run in runs.values()} == {(0, 320, 640, 960)}
  first = {name: run[0]["test_loss"] for name, run in runs.items()}
  assert first["EASGDseed-0"] == first["local_SGDseed-0"] != first["EASGDseed-1"]


def test_a_sweep_gives_each_as_many_trials_and_its_best_is_used(folders):
  path, out, _ = folders
  record = json.loads((path / "sweep" / "tuned.json").read_text())["algorithms"]
  for label, slug in (("EASGD", "EASGD"), ("local SGD", "local_SGD")):
    trials = record[label]["trials"]
    assert len(trials) == 2
    best = max(trials, key=lambda t: (t["validation"]["accuracy"], -t["validation"]["loss"]))
    assert record[label]["best"] == best["setting"]
    config = json.loads((path / "compare" / slug / "seed-0" / "config.json").read_text())
    assert config["optimizer"]["learning_rate"] == best["setting"]["optimizer"]["learning_rate"]
    assert config["data"]["validation"] == 0.0
  trial = json.loads((path / "sweep" / "EASGD" / "trial-0" / "seed-0" / "config.json").read_text())
  assert trial["data"]["validation"] == 0.2
  assert "tuned.json" in out


def test_the_report_is_written_and_a_resume_skips_what_is_complete(folders):
  path, _, out = folders
  page = path / "compare" / "report.html"
  for _, attrs in Tags(page.read_text()).tags:
    assert all(attrs[name].startswith(("data:", "#")) for name in ("src", "srcset", "href") if name in attrs)
  assert str(page) in out
  before = {p: p.stat().st_mtime_ns for p in path.glob("compare/*/seed-*/metrics.jsonl")}
  again = run(
    "compare",
    "--config.compare.seeds=(0,1)",
    f"--workdir={path / 'compare'}",
    f"--tuned={path / 'sweep' / 'tuned.json'}",
    "--resume",
  )
  assert {p: p.stat().st_mtime_ns for p in before} == before
  assert again.split("algorithm ")[1].split("s; report")[0][:200] == out.split("algorithm ")[1][:200]
  assert "regenerated" not in again


@pytest.mark.slow
def test_the_folder_knows_how_to_go_on(folders):
  path, run = folders[0] / "compare", "EASGD/seed-1"
  kept = {p: p.stat().st_mtime_ns for p in path.glob("*/*/metrics.jsonl") if run not in str(p)}
  before = metrics(path / run)
  shutil.rmtree(path / run)  # as if it had been stopped before it
  done = Command("compare", "--resume", f"--workdir={path}", "--config.compare.target=0.5").end()
  assert done.code == 0 and not done.error, done
  assert f"{path}: resuming with the config and options recorded in its experiment.json\n" in done.out
  assert metrics(path / run) == before and len(kept) == 3
  assert {p: p.stat().st_mtime_ns for p in kept} == kept
  assert f"the report in {path} is regenerated: target 0.95 before, 0.5 now\n" in done.out
  page = json.loads((path / "comparison.json").read_text())
  assert page["target"]["value"] == 0.5 and "--only=local SGD,EASGD" in page["command"]


def test_an_unknown_label_is_one_line(wrong):
  wrong([*SMALL[:-1], "--only=lokal SGD"], "'local SGD'", command="compare")


@pytest.mark.parametrize(
  "flags, words",
  [
    (("--config.compare.seeds=(0,0)",), "config.compare.seeds must be one or more different"),
    (("--config.compare.seeds=(0,-1)",), "config.compare.seeds must be an integer >= 0, got -1."),
    (("--config.compare.expected=(('EASGD','EASDG'),)",), "EASDG"),
    (("--config.compare.expected=1",), "config.compare.expected must be pairs of labels"),
    (("--resume", "--workdir=runs/that-never-were"), "cannot be resumed"),
  ],
)
def test_what_is_wrong_is_said_before_anything_runs(wrong, tmp_path, flags, words):
  wrong([SMALL[0], f"--workdir={tmp_path}/a", *flags], words, command="compare")
  assert not (tmp_path / "a").exists()


def test_one_budget_of_examples():
  whole = default_experiment(workers=8, batch=16, steps=400)
  Comparison({"a": whole, "b": replace(whole, workers=4, batch=32)})
  with pytest.raises(ValueError, match="b: 25600"):
    Comparison({"a": whole, "b": replace(whole, workers=4)})
  with pytest.raises(ValueError, match=r"config\.model must be the same for all labels .* b"):
    Comparison({"a": whole, "b": whole.changed({"model": {"hidden": (3,)}})})
