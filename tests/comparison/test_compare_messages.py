"""Warnings and errors of `compare`, and the names of its files."""

import shutil

import jax
import pandas as pd
import pytest
from helpers.commands import ROOT, Command
from helpers.comparisons import undrawn, write_tuned

import ddl
from ddl.comparison import label_runs, predict
from ddl.config.base import load as load_config
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
    "few": {"algorithm": {"name": "local_sgd", "period": 1}, "wrapper": {"name": "int8"}},
    "tuned": {"algorithm": {"name": "local_sgd", "period": 1}},
  }
  return config
"""


@pytest.mark.slow
def test_a_warning_is_printed_once_per_label_and_untuned_labels_are_named(tmp_path):
  (tmp_path / "config.py").write_text(CONFIG)
  config = load_config(tmp_path / "config.py")
  write_tuned(tmp_path / "tuned.json", config, {"tuned": {"optimizer": {"learning_rate": 0.03}}})
  done = Command(
    "compare", f"--config={tmp_path}/config.py", f"--tuned={tmp_path}/tuned.json", f"--workdir={tmp_path}/c"
  ).end()
  assert done.code == 0, done.error
  assert done.error.count("config.optimizer.momentum adds a second one") == 1, done.error
  assert done.error.count("int8 is designed for gradients") == 1, done.error
  assert any(line.startswith("tuned: learning_rate 0.03, the best of ") for line in done.out.splitlines()), done.out
  (untuned,) = [line for line in done.out.splitlines() if "has no settings for" in line]
  assert '"slow, heavy", sync and few:' in untuned and "tuned.json" in untuned.partition("sets")[0]


# ---- errors after the last run

SMALL = {"model": {"hidden": (4,)}, "workers": 2, "batch": 4, "steps": 2, "eval_every": 2}
LABELS = {"a/b": {"algorithm": "sync_sgd"}, "c": {"algorithm": {"name": "local_sgd", "period": 2}}}
COMPARE = {"seeds": (0, 1), "target": 0.5, "algorithms": LABELS}


def broken(*_, **__):
  raise ValueError("min() arg is\nan empty sequence")


@pytest.mark.slow
@pytest.mark.parametrize("late", ["predictions", "figures"])
def test_a_late_error_keeps_the_comparison(tmp_path, monkeypatch, late):
  """Names of labels and clusters contain slashes and spaces, but all files are inside the folder."""
  (tmp_path / "far/away").mkdir(parents=True)
  cluster = tmp_path / "far/away/mine 1.toml"
  shutil.copy(ROOT / "configs/clusters/k80_10g.toml", cluster)
  monkeypatch.chdir(tmp_path)
  with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"), undrawn():
    with monkeypatch.context() as patch:
      patch.setattr(*((predict, "add_clusters") if late == "predictions" else (figure, "save_all")), broken)
      with pytest.raises(Failed) as failed:
        ddl.compare(compare=COMPARE, clusters=["far/away/mine 1.toml"], workdir="c", **SMALL)
    code, message = failed.value.args
    assert code == 1 and "ValueError: min() arg is an empty sequence" in message and "\n" not in message
    assert f"write the report with `python run.py compare --resume --workdir={tmp_path}/c`" in message
    loaded = ddl.load(tmp_path / "c")
    for name in ("table", "pairs"):
      assert len(pd.read_csv(tmp_path / f"c/{name}.csv")) == len(getattr(loaded, name)) > 0
    assert sorted(file.name for file in tmp_path.iterdir()) == ["c", "far"]
    monkeypatch.chdir("/")
    loaded = ddl.compare(workdir=tmp_path / "c", options=ddl.RunOptions(resume=True))
  [entry] = loaded.info["clusters"]
  assert (entry["name"], entry["file"]) == ("mine 1.toml", str(cluster))
  assert loaded.report.exists() and (tmp_path / "c/figures/accuracy_on_mine_1.toml.svg").exists()
  assert "predicted_seconds_to_target_mine 1.toml" in loaded.table
  runs = {entry["label"]: entry["runs"][0] for entry in loaded.info["algorithms"]}
  assert runs == {"a/b": "a_b/seed-0", "c": "c/seed-0"}


@pytest.mark.parametrize("name", ["table.csv", "report.html", "comparison.json", "figures"])
def test_files_in_place_of_the_report_are_refused_before_any_run(tmp_path, name):
  (tmp_path / "c").mkdir()
  (tmp_path / "c" / name).touch() if name == "figures" else (tmp_path / "c" / name).mkdir()
  with pytest.raises(ValueError, match=f"named {name}|contains a comparison"):
    ddl.compare(compare=COMPARE, workdir=tmp_path / "c", **SMALL)
  assert [file.name for file in (tmp_path / "c").iterdir()] == [name]


def test_clusters_that_would_share_files_are_refused(tmp_path):
  for name in ("a b.toml", "a_b.toml"):
    shutil.copy(ROOT / "configs/clusters/k80_10g.toml", tmp_path / name)
  names = [str(tmp_path / name) for name in ("a b.toml", "a_b.toml")]
  with pytest.raises(ValueError, match="cluster must not contain both"):
    ddl.compare(compare=COMPARE, clusters=names, workdir=tmp_path / "c", **SMALL)


@pytest.mark.parametrize(
  "text, name", [("local SGD", "local_SGD"), ("..", "__"), (".", "_"), ("a/../b", "a_.._b"), ("é.x-1", "é.x-1")]
)
def test_a_slug_has_no_special_characters(text, name):
  assert slug(text) == name


def test_long_slugs_are_shortened_and_differ():
  first, second = slug("é" * 300 + "a"), slug("é" * 300 + "b")
  assert first != second and max(len(first.encode()), len(second.encode())) <= 200


@pytest.mark.slow
def test_damaged_metrics_of_a_complete_run_are_refused_before_any_run(tmp_path, monkeypatch):
  with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"), undrawn():
    ddl.compare(compare=COMPARE | {"seeds": (0,)}, only=["c"], workdir=tmp_path / "c", **SMALL)
    file = tmp_path / "c/c/seed-0/metrics.jsonl"
    text = file.read_bytes()
    monkeypatch.setattr(label_runs, "run", lambda *_: pytest.fail("a run was started"))
    for damaged in (b"", text[: len(text) // 2], b"\xff" + text):
      file.write_bytes(damaged)
      with pytest.raises(ValueError, match=f"{file}.*; remove c/c/seed-0 to train this run again"):
        ddl.compare(compare=COMPARE, workdir=tmp_path / "c", options=ddl.RunOptions(resume=True), **SMALL)
