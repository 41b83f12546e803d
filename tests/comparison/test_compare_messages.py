"""What `compare` says on its way: once, and of each label."""

import json
import shutil

import jax
import pandas as pd
import pytest
from helpers.commands import ROOT, Command
from helpers.comparisons import undrawn

import ddl
from ddl.comparison import label_runs, predict
from ddl.names import slug
from ddl.report import figure
from ddl.run.exit_codes import Failed

CONFIG = """
from ddl.config import base

def get_config():
  config = base()
  config.model.hidden = (4,)
  config.optimizer.momentum = 0.9
  config.workers, config.batch, config.steps, config.eval_every = 2, 4, 2, 2
  config.compare.seeds, config.compare.target = (0, 1, 2), 0.5
  config.compare.algorithms = {
    "slow, heavy": {"algorithm": {"name": "sma", "period": 1}},
    "sync": {"algorithm": "sync_sgd"},
    "few": {"algorithm": {"name": "local_sgd", "period": 1}, "wrapper": {"name": "topk"}},
    "tuned": {"algorithm": {"name": "local_sgd", "period": 1}},
  }
  return config
"""


@pytest.mark.slow
def test_a_warning_once_per_label_and_what_a_sweep_did_not_tune(tmp_path):
  (tmp_path / "config.py").write_text(CONFIG)
  best = {"tuned": {"best": {"optimizer": {"learning_rate": 0.03}}, "trials": []}}
  (tmp_path / "tuned.json").write_text(json.dumps({"algorithms": best}))
  done = Command(
    "compare", f"--config={tmp_path}/config.py", f"--tuned={tmp_path}/tuned.json", f"--workdir={tmp_path}/c"
  ).end()
  assert done.code == 0, done.error
  assert done.error.count("config.optimizer.momentum adds a second one") == 1, done.error
  assert done.error.count("topk is designed for gradients") == 1, done.error
  (reported,) = [line for line in done.out.splitlines() if "has no settings for" in line]
  assert '"slow, heavy", sync and few:' in reported and "tuned.json" in reported.partition("sets")[0]


# ---- what fails after the last run

SMALL = {"model": {"hidden": (4,)}, "workers": 2, "batch": 4, "steps": 2, "eval_every": 2}
LABELS = {"a/b": {"algorithm": "sync_sgd"}, "c": {"algorithm": {"name": "local_sgd", "period": 2}}}
COMPARE = {"seeds": (0, 1), "target": 0.5, "algorithms": LABELS}


def broken(*_, **__):
  raise ValueError("min() arg is\nan empty sequence")


@pytest.mark.parametrize("late", ["predictions", "pictures"])
def test_a_late_error_keeps_the_comparison(tmp_path, monkeypatch, late):
  """Labels and clusters may have any name: none of their files lies outside of the folder."""
  (tmp_path / "far/away").mkdir(parents=True)
  cluster = tmp_path / "far/away/mine 1.toml"
  shutil.copy(ROOT / "configs/clusters/k80_10g.toml", cluster)
  monkeypatch.chdir(tmp_path)
  with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"), undrawn():
    with monkeypatch.context() as patch:
      patch.setattr(*((predict, "add_clusters") if late == "predictions" else (figure, "save_all")), broken)
      with pytest.raises(Failed) as failed:
        ddl.compare(compare=COMPARE, clusters=["far/away/mine 1.toml"], workdir="c", **SMALL)
    code, reported = failed.value.args
    assert code == 1 and "ValueError: min() arg is an empty sequence" in reported and "\n" not in reported
    assert f"write the report with `python run.py compare --resume --workdir={tmp_path}/c`" in reported
    loaded = ddl.load(tmp_path / "c")
    for name in ("table", "pairs"):
      assert len(pd.read_csv(tmp_path / f"c/{name}.csv")) == len(getattr(loaded, name)) > 0
    assert sorted(each.name for each in tmp_path.iterdir()) == ["c", "far"]
    monkeypatch.chdir("/")
    loaded = ddl.compare(workdir=tmp_path / "c", options=ddl.RunOptions(resume=True))
  [entry] = loaded.info["clusters"]
  assert (entry["name"], entry["file"]) == ("mine 1.toml", str(cluster))
  assert loaded.report.exists() and (tmp_path / "c/figures/accuracy_on_mine_1.toml.svg").exists()
  assert "predicted_seconds_to_target_mine 1.toml" in loaded.table
  assert {each["label"]: each["runs"][0] for each in loaded.info["algorithms"]} == {
    "a/b": "a_b/seed-0",
    "c": "c/seed-0",
  }


@pytest.mark.parametrize("name", ["table.csv", "report.html", "comparison.json", "figures"])
def test_what_is_in_the_way_of_the_report_is_refused_before_any_run(tmp_path, name):
  (tmp_path / "c").mkdir()
  (tmp_path / "c" / name).touch() if name == "figures" else (tmp_path / "c" / name).mkdir()
  with pytest.raises(ValueError, match=f"but {name} is a f|holds a comparison already|contain"):
    ddl.compare(compare=COMPARE, workdir=tmp_path / "c", **SMALL)
  assert [each.name for each in (tmp_path / "c").iterdir()] == [name]


def test_two_clusters_that_would_share_files(tmp_path):
  for name in ("a b.toml", "a_b.toml"):
    shutil.copy(ROOT / "configs/clusters/k80_10g.toml", tmp_path / name)
  names = [str(tmp_path / name) for name in ("a b.toml", "a_b.toml")]
  with pytest.raises(ValueError, match="cluster must not contain both"):
    ddl.compare(compare=COMPARE, clusters=names, workdir=tmp_path / "c", **SMALL)


@pytest.mark.parametrize(
  "text, name", [("local SGD", "local_SGD"), ("..", "__"), (".", "_"), ("a/../b", "a_.._b"), ("é.x-1", "é.x-1")]
)
def test_names_of_files(text, name):
  assert slug(text) == name


def test_long_names_of_files():
  one, other = slug("é" * 300 + "a"), slug("é" * 300 + "b")
  assert one != other and max(len(each.encode()) for each in (one, other)) <= 200


@pytest.mark.parametrize(
  "damage",
  [lambda text: b"", lambda text: text[: len(text) // 2], lambda text: b"\xff" + text],
  ids=["empty", "cut", "byte"],
)
def test_damaged_metrics_of_a_complete_run_are_found_before_others_train(tmp_path, damage, monkeypatch):
  with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"), undrawn():
    ddl.compare(compare=COMPARE | {"seeds": (0,)}, only=["c"], workdir=tmp_path / "c", **SMALL)
    file = tmp_path / "c/c/seed-0/metrics.jsonl"
    file.write_bytes(damage(file.read_bytes()))
    monkeypatch.setattr(label_runs, "run", lambda *_: pytest.fail("a run was started"))
    with pytest.raises(ValueError, match=f"{file}.*; remove c/c/seed-0 to train this run again"):
      ddl.compare(compare=COMPARE, workdir=tmp_path / "c", options=ddl.RunOptions(resume=True), **SMALL)
