"""A resume with --only: the report keeps all labels, and the runs of the others are only read."""

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

pytestmark = pytest.mark.slow

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
  """A comparison of two labels, extended by a third with another target; and the first two labels' files before."""
  path = tmp_path_factory.mktemp("compare") / "c"
  with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"), undrawn():
    compared(path, ["sync", "elastic"], resume=False, clusters=["ethernet_10g"])
    (path / "elastic/seed-0/result.json").unlink()  # as if the run was stopped
    before = {file: file.stat().st_mtime_ns for file in path.glob("*/*/metrics.jsonl")}
    return compared(path, LABELS, only=["sync", "local"], target=0.3), before


def test_a_new_label_is_inserted_and_other_labels_are_only_read(folder):
  result, before = folder
  assert labels(result) == ["sync", "local", "elastic"] == list(result.table.label)
  assert result.info["target"]["value"] == 0.3
  assert len(before) == 2 and before == {file: file.stat().st_mtime_ns for file in before}
  assert not (result.folder / "elastic/seed-0/result.json").exists()
  assert [*result.info["config"]["algorithms"]] == ["sync", "local", "elastic"]


def test_predictions_of_clusters_cover_all_labels(folder):
  (entry,) = folder[0].info["clusters"]
  assert entry["name"] == "ethernet_10g" and [*entry["algorithms"]] == ["sync", "local", "elastic"]
  recorded = json.loads((folder[0].folder / "experiment.json").read_text())["options"]
  assert recorded["cluster"] == ["ethernet_10g"] and set(recorded["only"]) == set(LABELS)


def test_labels_that_are_only_read_keep_their_seeds(tmp_path, capsys):
  compared(tmp_path / "c", ["sync", "local"], resume=False, seeds=(0, 1), target=0.01)
  result = compared(tmp_path / "c", ["sync", "local"], only=["local"], seeds=(0, 1, 2), target=0.01)
  assert [len(entry["runs"]) for entry in result.info["algorithms"]] == [2, 3]
  assert list(result.table.reached) == list(result.table.seeds) == [2, 2]  # of common seeds
  assert all(row.seeds == 2 for row in result.pairs.itertuples())
  assert "training incomplete seeds of local first" in capsys.readouterr().out
  other = compared(tmp_path / "c", ["sync", "local"], only=["local"], seeds=(5,), target=0.01)
  assert [entry["runs"] for entry in other.info["algorithms"]] == [["sync/seed-0", "sync/seed-1"], ["local/seed-5"]]
  assert "no seed is common" in repr(other)
  compared(tmp_path / "c", ["sync", "local"], seeds=(0, 1, 2), target=0.01)
  assert "training incomplete seeds of sync first" in capsys.readouterr().out


def test_predictions_are_for_common_seeds(tmp_path):
  compared(tmp_path / "c", ["sync", "local"], resume=False, target=0.9, clusters=["ethernet_10g"])
  result = compared(tmp_path / "c", ["sync", "local"], only=["local"], seeds=(0, 1), target=0.9)
  (cluster,) = result.info["clusters"]
  assert {label: len(entry["seconds"]) for label, entry in cluster["algorithms"].items()} == {"sync": 1, "local": 1}
  assert set(result.metrics.query("predicted_seconds_ethernet_10g.isna()").seed) == {1}
  other = compared(tmp_path / "c", ["sync", "local"], only=["local"], seeds=(5, 6), target=0.9)  # no common seed
  (cluster,) = other.info["clusters"]
  assert {label: len(entry["seconds"]) for label, entry in cluster["algorithms"].items()} == {"sync": 1, "local": 2}
  assert "so they are not ranked" in repr(other) and cluster["break_even"] is None


def test_models_are_saved_only_with_keep_models(folder):
  with pytest.raises(ValueError, match="keep_models"):
    _ = folder[0].runs["local"][0].params


def test_the_folder_of_a_comparison_is_refused_without_resume(folder):
  with pytest.raises(ValueError, match=r"already contains a comparison\. Pass resume"):
    compared(folder[0].folder, LABELS, resume=False)
  with pytest.raises(ValueError, match=r"options must be a ddl\.RunOptions"):
    ddl.compare(compare={"algorithms": LABELS}, workdir=folder[0].folder, options={"resume": True})  # pyright: ignore


def test_a_label_of_another_budget_is_refused_and_the_report_unchanged(folder):
  result, _ = folder
  page = result.report.read_bytes()
  with pytest.raises(ValueError, match=r"sync, local, elastic.*the same for all compared algorithms") as error:
    compared(result.folder, ["other", *LABELS], only=["other"], steps=16)
  assert "\n" not in str(error.value) and result.report.read_bytes() == page


@pytest.fixture
def recorded(tmp_path):
  """The folder of a comparison of label a at a point of a grid, and its experiment."""
  experiment = default_experiment(workers=2, steps=8)
  (tmp_path / "a/seed-0").mkdir(parents=True)
  (tmp_path / "a/seed-0/config.json").write_text(json.dumps(experiment.to_json()))
  entry = {"label": "a", "runs": ["a/seed-0"], "group": "a", "point": {"workers": 2}}
  (tmp_path / "comparison.json").write_text(json.dumps({"algorithms": [entry], "grid": {"workers": [2]}}))
  return tmp_path, experiment


def test_a_grid_over_other_keys_is_refused(recorded):
  folder, experiment = recorded
  comparison, options = Comparison({"b": experiment}, grid={"workers": (2, 4)}), RunOptions(resume=True)
  joined = record.joined(folder, comparison, options)
  assert joined.read == {"a": ["a/seed-0"]} and joined.comparison.place("a").point == {"workers": 2}
  assert joined.comparison.grid == {"workers": (2, 4)} and [*joined.comparison.experiments] == ["a", "b"]
  with pytest.raises(ValueError, match=r"over no keys, got .* \(grid over workers\)"):
    record.joined(folder, replace(comparison, grid={}), options)
  assert not record.joined(folder, comparison, RunOptions()).read


def test_command_and_record_have_all_labels(recorded):
  folder, experiment = recorded
  comparison = Comparison({"b": experiment}, grid={"workers": (2, 4)}, clusters=("near", "far"))
  words = ("--config=f.py", "--only", "b", "--cluster=near,far")
  content = {
    "arguments": [*words],
    "options": {"only": ["b"]},
    "config": {"compare": {"algorithms": {"b": {}, "a": {}}}},
  }
  options = RunOptions(resume=True, command=("python", "run.py", "compare", *words), recorded=content)
  result = record.joined(folder, comparison, options).options
  arguments = ["--config=f.py", "--only=a,b", "--cluster=near,far"]
  assert list(result.command[3:]) == arguments == result.recorded["arguments"]
  assert result.recorded["options"] == {"only": ["b", "a"], "cluster": ["near", "far"]}
  assert content["options"] == {"only": ["b"]}
