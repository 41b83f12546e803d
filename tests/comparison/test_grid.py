"""A comparison over a grid, and its extension to a larger grid."""

import pytest
from helpers.commands import metrics
from helpers.comparisons import undrawn

import ddl
from ddl.config.options import RunOptions

SMALL = {"model": {"hidden": (4,)}, "batch": 8, "workers": 2, "steps": 8, "eval_every": 4}


@pytest.fixture(autouse=True)
def empty_figures():
  """Figures are tested with the report."""
  with undrawn():
    yield


@pytest.mark.slow
def test_a_larger_grid_extends_the_folder_of_a_smaller_one(tmp_path):
  labels = {"sync": {"algorithm": "sync_sgd"}, "local": {"algorithm": {"name": "local_sgd", "period": 3}}}
  settings = {"seeds": (0,), "target": 0.1, "algorithms": labels, "grid": {"workers": (1, 2), "algorithm.period": (2,)}}
  compared = ddl.compare(compare=settings, workdir=tmp_path / "c", **SMALL)
  assert compared.info["grid"] == {"workers": [1, 2], "algorithm.period": [2]}
  entries = {entry["label"]: entry for entry in compared.info["algorithms"]}
  assert list(entries) == ["sync, workers 1", "sync, workers 2", "local, workers 1", "local, workers 2"]
  last = entries["local, workers 2"]
  assert (last["group"], last["point"]) == ("local", {"workers": 2, "algorithm.period": 2})
  assert entries["sync, workers 1"]["point"] == {"workers": 1} and last["hyper"] == {"period": 2}
  one, two = (metrics(tmp_path / "c" / label / "seed-0") for label in ("local__workers_1", "local__workers_2"))
  assert [line["step"] for line in one] == [0, 8, 16] and [line["step"] for line in two] == [0, 4, 8]
  assert [line["examples"] for line in one] == [line["examples"] for line in two] == [0, 64, 128]
  before = {file: file.stat().st_mtime_ns for file in tmp_path.glob("c/*/seed-0/metrics.jsonl")}
  larger = settings | {"grid": {"workers": (1, 2, 4), "algorithm.period": (2,)}}
  ddl.compare(compare=larger, only=["local"], workdir=compared.folder, options=RunOptions(resume=True), **SMALL)
  again = ddl.load(compared.folder).info
  result = [(entry["group"], entry["point"]["workers"]) for entry in again["algorithms"]]
  assert result == [("sync", 1), ("sync", 2), ("local", 1), ("local", 2), ("local", 4)]  # keeps sync
  assert again["grid"] == {"workers": [1, 2, 4], "algorithm.period": [2]}
  assert {file: file.stat().st_mtime_ns for file in before} == before
  assert [line["step"] for line in metrics(tmp_path / "c/local__workers_4/seed-0")] == [0, 2, 4]


def test_an_unknown_grid_key_is_refused_before_anything_is_written(tmp_path):
  with pytest.raises(ValueError, match=r"keys of config\.compare\.grid must be config keys.*'workesr'.*'workers'"):
    ddl.compare(compare={"grid": {"workesr": (1, 2)}}, workdir=tmp_path / "c", **SMALL)
  assert not (tmp_path / "c").exists()
