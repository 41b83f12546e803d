"""`compare` and `sweep` from config to report: budget, seeds, what a resume skips, what a sweep hands on."""

import json
from types import SimpleNamespace

import pytest
from commands import Command, complaint

from experiments import compare
from experiments.config import base

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
  found = json.loads((path / "sweep" / "tuned.json").read_text())["algorithms"]
  for label, slug in (("EASGD", "EASGD"), ("local SGD", "local_SGD")):
    trials = found[label]["trials"]
    assert len(trials) == 2
    best = max(trials, key=lambda t: (t["validation"]["accuracy"], -t["validation"]["loss"]))
    assert found[label]["best"] == best["setting"]
    config = json.loads((path / "compare" / slug / "seed-0" / "config.json").read_text())
    assert config["optimiser"]["learning_rate"] == best["setting"]["optimiser"]["learning_rate"]
    assert config["data"]["validation"] == 0.0
  trial = json.loads((path / "sweep" / "EASGD" / "trial-0" / "config.json").read_text())
  assert trial["data"]["validation"] == 0.2
  assert "tuned.json" in out


def test_the_report_is_written_and_a_resume_skips_what_is_complete(folders):
  path, _, out = folders
  page = path / "compare" / "report.html"
  assert "http" not in page.read_text().split("<body")[1].split("arXiv")[0].replace("http://www.w3.org", "")
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


def test_an_unknown_label_is_one_line():
  done = Command("compare", *SMALL[:-1], "--only=lokal SGD").end()
  assert done.code == 2
  assert "did you mean 'local SGD'" in done.error
  assert len(done.error.splitlines()) == 1


@pytest.mark.parametrize(
  "flags, words",
  [
    (("--config.compare.seeds=(0,0)",), "different integers"),
    (("--config.compare.seeds=(0,-1)",), "different integers"),
    (("--config.compare.expected=(('EASGD','EASDG'),)",), "EASDG"),
    (("--resume", "--workdir=runs/that-never-were"), "holds no comparison"),
  ],
)
def test_what_is_wrong_is_said_before_anything_runs(tmp_path, flags, words):
  assert words in complaint(Command("compare", SMALL[0], f"--workdir={tmp_path}/a", *flags).end())
  assert not (tmp_path / "a").exists()


def test_one_budget_of_examples():
  def resolved(**changes):
    return SimpleNamespace(resolved={"model": {}, "workers": 8, "batch": 16, "steps": 400, **changes})

  config = base()
  compare._check(config, {"a": resolved(), "b": resolved(workers=4, batch=32)})
  with pytest.raises(ValueError, match="b: 25600"):
    compare._check(config, {"a": resolved(), "b": resolved(workers=4)})
