"""A resume that asks for some of a comparison's labels: the report keeps the others, which are only read."""

import json
from dataclasses import replace

import jax
import pytest
from helpers.comparisons import undrawn

import ddl
from ddl.comparison import record
from ddl.config import default_experiment
from ddl.config.comparison import Comparison
from ddl.config.options import RunOptions

SMALL = {"model": {"hidden": (8,)}, "workers": 2, "batch": 16, "steps": 8, "eval_every": 4}
LABELS = {
  "sync": {"algorithm": "sync_sgd"}, "local": {"algorithm": {"name": "local_sgd", "period": 2}},
  "elastic": {"algorithm": {"name": "easgd", "period": 2}},
}  # fmt: skip


@pytest.fixture(autouse=True)
def as_users_run():
  with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"), undrawn():
    yield


def compared(folder, labels, only=(), target=0.5, seeds=(0,), resume=True, **more):
  labels = {label: LABELS.get(label, {"algorithm": {"name": "local_sgd", "period": 4}}) for label in labels}
  settings = {"seeds": seeds, "target": target, "algorithms": labels}
  options = RunOptions(resume=resume)
  return ddl.compare(compare=settings, only=only, workdir=folder, options=options, **SMALL | more)


def labels(compared):
  return [entry["label"] for entry in compared.info["algorithms"]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
  """Three labels; then one of them with another target; the folder between, as (labels, times of the metrics)."""
  path = tmp_path_factory.mktemp("compare") / "c"
  with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"), undrawn():
    compared(path, LABELS, resume=False, clusters=["ethernet_10g"])
    (path / "sync/seed-0/result.json").unlink()  # as if it had not ended
    before = {file: file.stat().st_mtime_ns for file in path.glob("*/*/metrics.jsonl")}
    return compared(path, LABELS, only=["local"], target=0.3), before


def test_the_labels_that_are_not_asked_for_stay_and_are_only_read(folder):
  result, before = folder
  assert labels(result) == ["sync", "local", "elastic"] == list(result.table.label)
  assert result.info["target"]["value"] == 0.3
  assert before == {file: file.stat().st_mtime_ns for file in before}
  assert not (result.folder / "sync/seed-0/result.json").exists()
  assert [*result.info["config"]["algorithms"]] == ["sync", "local", "elastic"]


def test_clusters_stay_and_are_of_the_target_now(folder):
  (entry,) = folder[0].info["clusters"]
  assert entry["name"] == "ethernet_10g" and [*entry["algorithms"]] == ["sync", "local", "elastic"]
  recorded = json.loads((folder[0].folder / "experiment.json").read_text())["options"]
  assert recorded["cluster"] == ["ethernet_10g"] and set(recorded["only"]) == set(LABELS)


@pytest.mark.slow
def test_labels_that_are_only_read_keep_their_own_seeds(tmp_path, capsys):
  compared(tmp_path / "c", ["sync", "local"], resume=False, seeds=(0, 1), target=0.01)
  result = compared(tmp_path / "c", ["sync", "local"], only=["local"], seeds=(0, 1, 2), target=0.01)
  assert [len(entry["runs"]) for entry in result.info["algorithms"]] == [2, 3]
  assert list(result.table.reached) == list(result.table.seeds) == [2, 2]  # of the seeds that both have
  assert all(row.seeds == 2 for row in result.pairs.itertuples())
  assert "training incomplete seeds of local first" in capsys.readouterr().out
  other = compared(tmp_path / "c", ["sync", "local"], only=["local"], seeds=(5,), target=0.01)
  assert [entry["runs"] for entry in other.info["algorithms"]] == [["sync/seed-0", "sync/seed-1"], ["local/seed-5"]]
  assert "No seed is common" in repr(other)
  compared(tmp_path / "c", ["sync", "local"], seeds=(0, 1, 2), target=0.01)
  assert "training incomplete seeds of sync first" in capsys.readouterr().out


@pytest.mark.slow
def test_clusters_are_of_the_seeds_that_all_labels_have(tmp_path):
  compared(tmp_path / "c", ["sync", "local"], resume=False, target=0.9, clusters=["ethernet_10g"])
  result = compared(tmp_path / "c", ["sync", "local"], only=["local"], seeds=(0, 1), target=0.9)
  (cluster,) = result.info["clusters"]
  assert {label: len(each["seconds"]) for label, each in cluster["algorithms"].items()} == {"sync": 1, "local": 1}
  assert set(result.metrics.query("predicted_seconds_ethernet_10g.isna()").seed) == {1}
  other = compared(tmp_path / "c", ["sync", "local"], only=["local"], seeds=(5, 6), target=0.9)  # none in common
  (cluster,) = other.info["clusters"]
  assert {label: len(each["seconds"]) for label, each in cluster["algorithms"].items()} == {"sync": 1, "local": 2}
  assert "so they are not ranked" in repr(other) and cluster["break_even"] is None


def test_a_folder_of_a_comparison_says_how_to_go_on(folder):
  with pytest.raises(ValueError, match=r"already contains a comparison; pass resume"):
    compared(folder[0].folder, LABELS, resume=False)
  with pytest.raises(ValueError, match=r"options must be a ddl\.RunOptions"):
    ddl.compare(compare={"algorithms": LABELS}, workdir=folder[0].folder, options={"resume": True})  # pyright: ignore


def test_a_new_label_stands_behind_the_one_before_it(tmp_path):
  compared(tmp_path / "c", ["sync", "elastic"], resume=False)
  assert labels(compared(tmp_path / "c", LABELS, only=["sync", "local"])) == ["sync", "local", "elastic"]


def test_a_label_of_another_budget_is_refused_and_the_report_left(folder):
  result, _ = folder
  page = result.report.read_bytes()
  with pytest.raises(ValueError, match=r"sync, local, elastic.*the same for all labels") as error:
    compared(result.folder, ["other", *LABELS], only=["other"], steps=16)
  assert "\n" not in str(error.value) and result.report.read_bytes() == page


@pytest.fixture
def one(tmp_path):
  """A folder with a comparison of the label a alone, at a point of a grid; and an experiment that fits it."""
  whole = default_experiment(workers=2, steps=8)
  (tmp_path / "a/seed-0").mkdir(parents=True)
  (tmp_path / "a/seed-0/config.json").write_text(json.dumps(whole.to_json()))
  entry = {"label": "a", "runs": ["a/seed-0"], "group": "a", "point": {"workers": 2}}
  (tmp_path / "comparison.json").write_text(json.dumps({"algorithms": [entry], "grid": {"workers": [2]}}))
  return tmp_path, whole


def test_another_grid_is_refused(one):
  folder, whole = one
  asked, options = Comparison({"b": whole}, grid={"workers": (2, 4)}), RunOptions(resume=True)
  joined = record.joined(folder, asked, options)
  assert joined.read == {"a": ["a/seed-0"]} and joined.comparison.place("a").point == {"workers": 2}
  assert joined.comparison.grid == {"workers": (2, 4)} and [*joined.comparison.experiments] == ["a", "b"]
  with pytest.raises(ValueError, match=r"over no keys, got .* a comparison over workers"):
    record.joined(folder, replace(asked, grid={}), options)
  assert not record.joined(folder, asked, RunOptions()).read


def test_command_and_record_are_of_all_labels(one):
  folder, whole = one
  asked = Comparison({"b": whole}, grid={"workers": (2, 4)}, clusters=("near", "far"))
  words = ("--config=f.py", "--only", "b", "--cluster=near,far")
  recorded = {
    "arguments": [*words],
    "options": {"only": ["b"]},
    "config": {"compare": {"algorithms": {"b": {}, "a": {}}}},
  }
  given = RunOptions(resume=True, command=("python", "run.py", "compare", *words), recorded=recorded)
  result = record.joined(folder, asked, given).options
  assert (
    list(result.command[3:]) == ["--config=f.py", "--only=a,b", "--cluster=near,far"] == result.recorded["arguments"]
  )
  assert result.recorded["options"] == {"only": ["b", "a"], "cluster": ["near", "far"]}
  assert recorded["options"] == {"only": ["b"]}
