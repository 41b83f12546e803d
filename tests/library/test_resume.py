"""A resume without a config uses the config and options recorded in the folder."""

import json
import shutil

import jax
import pytest
from helpers.commands import Command, metrics
from helpers.comparisons import undrawn

import ddl

SMALL = {"model": {"hidden": (8,)}, "workers": 2, "batch": 16, "steps": 8, "eval_every": 4}
LABELS = {
  "sync": {"algorithm": "sync_sgd"}, "local": {"algorithm": {"name": "local_sgd", "period": 2}},
  "elastic": {"algorithm": {"name": "easgd", "period": 2}},
}  # fmt: skip
RESUME = ddl.RunOptions(resume=True)


@pytest.fixture(autouse=True)
def as_users_run():
  with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"), undrawn():
    yield


@pytest.mark.slow
def test_an_unfinished_comparison_is_refused_by_load_and_resumed_without_a_config(tmp_path):
  folder = tmp_path / "three"
  compare = {"seeds": (0, 1), "target": 0.3, "algorithms": LABELS}
  ddl.compare(compare=compare, only=["sync", "local"], clusters=["ethernet_10g"], workdir=folder, **SMALL)
  record, whole = (json.loads((folder / f"{name}.json").read_text()) for name in ("experiment", "comparison"))
  (folder / "comparison.json").unlink()
  shutil.rmtree(folder / "local/seed-1")
  modified = (folder / "sync/seed-0/metrics.jsonl").stat().st_mtime_ns
  with pytest.raises(ValueError, match="is not finished") as error:
    ddl.load(folder)
  text = str(error.value)
  assert f"`python run.py compare --resume --workdir={folder}`" in text and str(folder / "local/seed-0") in text
  assert f"ddl.compare(workdir='{folder}', options=ddl.RunOptions(resume=True))" in text and "\n" not in text
  compared = ddl.compare(workdir=folder, options=RESUME)
  assert (folder / "sync/seed-0/metrics.jsonl").stat().st_mtime_ns == modified
  again = compared.info
  for key in ("config", "target", "seeds", "grid"):
    assert again[key] == whole[key]
  assert [entry["runs"] for entry in again["algorithms"]] == [entry["runs"] for entry in whole["algorithms"]]
  assert [entry["name"] for entry in again["clusters"]] == ["ethernet_10g"]
  assert json.loads((folder / "experiment.json").read_text()) == record
  words = r"was written by compare and cannot be resumed by train\. Resume it with compare\.$"
  with pytest.raises(ValueError, match=words):
    ddl.train(workdir=folder, options=RESUME)


def test_a_resumed_run_uses_the_recorded_config_and_options(tmp_path):
  first = ddl.train(workdir=tmp_path / "a", algorithm={"name": "easgd", "period": 2}, seed=3,
                    options=ddl.RunOptions(overlap=False, steps_per_call=2), **SMALL)  # fmt: skip
  lines, record = metrics(first.folder), json.loads((first.folder / "experiment.json").read_text())
  (first.folder / "result.json").unlink()
  shutil.copytree(first.folder, tmp_path / "b")
  again = ddl.train(workdir=tmp_path / "b", options=RESUME)
  assert again.config == first.config and metrics(again.folder) == lines
  assert json.loads((again.folder / "experiment.json").read_text()) == record


@pytest.mark.parametrize("damage", ["missing", "damaged", "empty"])
def test_a_missing_or_damaged_record_is_refused_with_advice(tmp_path, damage):
  (tmp_path / "a").mkdir()
  if damage != "missing":
    (tmp_path / "a/experiment.json").write_text("{" if damage == "damaged" else "{}")
  reason = "missing" if damage == "missing" else "damaged"
  with pytest.raises(ValueError, match=f"experiment.json.*{reason}.*pass the original"):
    ddl.compare(workdir=tmp_path / "a", options=RESUME)
  with pytest.raises(ValueError, match="workdir must be an existing folder with resume"):
    ddl.sweep(workdir=tmp_path / "absent", options=RESUME)


@pytest.mark.slow
def test_a_resumed_sweep_uses_the_recorded_trials_and_labels(tmp_path):
  sweep = {"trials": 2, "space": {"local": {"period": [2, 4]}}}
  settings = {"compare": {"algorithms": LABELS}, "sweep": sweep, **SMALL}
  swept = ddl.sweep(workdir=tmp_path / "s", only=["local"], **settings)
  info = swept.info
  (tmp_path / "s/tuned.json").unlink()
  with pytest.raises(ValueError, match=r"python run\.py sweep --resume"):
    ddl.load(tmp_path / "s")
  assert ddl.sweep(workdir=tmp_path / "s", options=RESUME).info == info


@pytest.mark.slow
def test_the_library_resumes_a_comparison_of_the_command(tmp_path):
  done = Command("compare", "--config=configs/digits_compare.py", "--config.steps=8", "--config.compare.seeds=(0,)",
                 "--only=local SGD", "--overlap=off", f"--workdir={tmp_path}/c").end()  # fmt: skip
  assert done.code == 0, done.error
  before = json.loads((tmp_path / "c/comparison.json").read_text())
  (tmp_path / "c/comparison.json").unlink()
  compared = ddl.compare(workdir=tmp_path / "c", options=RESUME)
  assert compared.info["config"] == before["config"] and [*compared.runs] == ["local SGD"]
