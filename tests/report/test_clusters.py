"""`compare --cluster`: the report's section on clusters, and invalid options."""

import contextlib
import io
import json
import math
import re
import shutil

import jax
import pytest
from helpers.comparisons import comparison, edited, frames_of, meets_at, undrawn

import ddl
from ddl.config.options import RunOptions
from ddl.report import clusters, curves, formats, frames, reader
from ddl.report.tables import column


def numbers(text):
  """Return the numbers in a text with their units."""
  return re.findall(r"\d+(?:\.\d+)?(?: [kMGP]?B/s)?", text)


def test_break_even_bandwidths_in_a_sentence():
  break_even = {"winner": "a", "searched": [1e3, 1e15], "crossings": []}
  entry = {"bandwidth": 1e9, "link": "between nodes", "break_even": break_even}
  assert numbers(clusters.break_even(entry)) == ["1.00 kB/s", "1.00 PB/s"]
  entry["break_even"]["crossings"] = [
    {"other": "b", "mean": 9.9e6, "bandwidths": [9e6, 1.1e7, None]},
    {"other": "c", "mean": 2e9, "bandwidths": [None, None, None]},
  ]
  below, above = clusters.break_even(entry).split("; ")[:2]
  half = 12.7062047361747 * math.log(11 / 9) / 2  # t(0.975, 1) s / sqrt(2) of two logarithms
  mean, low, high = (float(value.split()[0]) for value in numbers(below)[:3])
  assert mean == pytest.approx(math.sqrt(99), rel=1e-2) and numbers(below)[3:] == ["2", "3"]
  assert (low, high) == (pytest.approx(mean / math.exp(half), rel=1e-2), pytest.approx(mean * math.exp(half), rel=1e-2))
  assert "below" in below and "above" in above and numbers(above) == ["2.00 GB/s"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
  path = tmp_path_factory.mktemp("runs") / "compare"
  settings = {
    "config": "configs/async_easgd_digits.py", "only": ("sync SGD", "Async EASGD"), "workdir": path, "steps": 60,
    "workers": 2, "times": {"slow": (1.0, 3.0)}, "compare": {"seeds": (0, 1), "target": 0.5},
  }  # fmt: skip
  with undrawn(), jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
    ddl.compare(**settings)
    assert "clusters" not in json.loads((path / "comparison.json").read_text())
    assert "On other clusters" not in (path / "report.html").read_text()
    before = {p: p.stat().st_mtime_ns for p in path.glob("*/seed-*/metrics.jsonl")}
    with contextlib.redirect_stdout(io.StringIO()) as out:
      print(ddl.compare(**settings, clusters=("ethernet_10g", "h100_ib400"), options=RunOptions(resume=True)))
  assert len(before) == 4 and {p: p.stat().st_mtime_ns for p in before} == before  # nothing was trained again
  return path, out.getvalue()


@pytest.mark.slow
def test_resume_adds_clusters_without_training(folder):
  path, out = folder
  entries = json.loads((path / "comparison.json").read_text())["clusters"]
  assert [entry["name"] for entry in entries] == ["ethernet_10g", "h100_ib400"]
  assert entries[0]["link"] == "between nodes" and entries[1]["link"] == "inside a node"
  for entry in entries:
    assert f"Fastest to 50 % on {entry['name']} with 2 workers: " in out
    # forward; gradients of weights, and of all inputs but the first layer's
    matrices = 2 * (2 * 64 * 64 + 3 * 64 * 64 + 3 * 64 * 10)
    assert matrices < entry["flop_per_example"] < 1.2 * matrices
    for label, figures in entry["algorithms"].items():
      runs = [reader.read_run(p) for p in sorted((path / label.replace(" ", "_")).glob("seed-*"))]
      assert [len(clock) for clock in figures["seconds"]] == [len(run["step"]) for run in runs]
      assert all(clock[0] == 0 and clock == sorted(clock) for clock in figures["seconds"])
      assert figures["seconds_per_step"] > figures["step_seconds"] > 0
      assert ("staleness" in figures) == (label == "Async EASGD")
    assert (path / f"figures/accuracy_on_{entry['name']}.png").exists()
  page = (path / "report.html").read_text()
  assert "On other clusters" in page and "predicted time to 50 %" in page and "arXiv 1708.02983, table 2" in page
  assert page.count('<figure id="accuracy_on_') == 2
  for picture, entry in zip(curves.on_clusters(frames_of(path)), entries, strict=True):
    assert f"predicted seconds on {entry['name']}" in json.dumps(picture.spec())
    assert f"predicted_seconds_{entry['name']}" in picture.data
  assert "One node of h100_ib400 holds all workers" in page


def test_predicted_seconds_to_the_target_are_within_the_recorded_times(folder):
  result = frames_of(folder[0])
  for name, entry in result.comparison.clusters.items():
    column_of = f"predicted_seconds_to_target_{name}"
    for label, seconds in result.runs.groupby("label")[column_of]:
      clocks = entry["algorithms"][label]["seconds"]
      assert all(clock[0] < cost <= clock[-1] for cost, clock in zip(seconds, clocks, strict=True))
    table = result.table.set_index("label")
    assert (table[f"{column_of}_low"] > 0).all() and (table[f"{column_of}_low"] < table[column_of]).all()
    winner = table[column_of].idxmin()
    assert entry["break_even"]["winner"] == winner  # both by the geometric mean
    (sentence,) = [text for text in clusters.sentences_of(result) if f" on {name} with 2 workers: " in text]
    assert re.split(r": (?:no clear winner; )?", sentence)[1].startswith(f"{winner} (")


def test_cluster_seconds_must_match_the_metrics(folder, tmp_path):
  path = tmp_path / "compare"
  shutil.copytree(folder[0], path)
  with edited(path) as info:
    info["clusters"][0]["algorithms"]["sync SGD"]["seconds"][1].pop()
  with pytest.raises(ValueError, match=r"3 predicted times on ethernet_10g .* sync SGD, seed 1"):
    reader.read(path)


def test_a_target_that_no_algorithm_reaches_and_a_wrapped_label(folder):
  result = frames.build(reader.read(folder[0])._replace(target=1.1))
  assert "110 % on ethernet_10g with 2 workers: no algorithm" in clusters.sentences_of(result)[0]
  cells = column(result, frames.quantity("predicted_seconds_ethernet_10g"))
  assert [cell.text for cell in cells] == ["never", "never"] and clusters.caveats(result)["wrapped"] == []
  result.comparison.infos[1]["settings"]["wrapper"] = {"name": "topk", "share": 0.1}
  assert clusters.caveats(result)["wrapped"] == result.labels[1:]


def on_cluster(path, runs, seeds=None):
  """Return the sentence on a cluster with steps of 1 ms. seeds: label -> number of seeds with predicted seconds."""
  clock = [1e-3 * line["step"] for line in meets_at(0)[0]]
  counts = {label: len(lines) for label, lines in runs.items()} | (seeds or {})
  near = {"name": "near", "bandwidth": 1e9, "link": "between nodes"}
  near["break_even"] = {"winner": "sync", "crossings": [], "searched": [1.0, 2.0]}
  near["algorithms"] = {label: {"seconds": [clock] * count} for label, count in counts.items()}
  comparison(path, runs, clusters=[near])
  return clusters.sentences_of(frames_of(path))[0]


def test_only_labels_with_every_seed_are_ranked_on_a_cluster(tmp_path):
  runs = {"sync": meets_at(*[17] * 5), "local": meets_at(4, 4, 4, 0, 0)}
  claim = "Fastest to 95 % on near with 8 workers: sync (170 ms)"
  reported = on_cluster(tmp_path / "one", runs)
  assert reported.startswith(f"{claim}; no other algorithm reaches 95 % with every seed. At every bandwidth ")
  reported = on_cluster(tmp_path / "two", runs | {"slow": meets_at(*[19] * 5)})
  assert reported.startswith(f"{claim}; slow takes 1.12 times as long") and "local" not in reported


def test_predictions_cover_only_the_common_seeds(tmp_path):
  reported = on_cluster(tmp_path, {"sync": meets_at(*[9] * 4), "slow": meets_at(*[12] * 2)}, {"sync": 2})
  assert reported.startswith("Fastest to 95 % on near with 8 workers: sync ")
  frame = frames.metrics_frame(reader.read(tmp_path))
  assert frame.query("seed > 1").predicted_seconds_near.isna().all()
  assert frame.query("seed < 2").predicted_seconds_near.notna().all()


@pytest.mark.parametrize(
  ("mean", "ends", "text", "interval"),
  [
    (1.5, (1.0, 2.25), "1.50 s", "1.00 to 2.25 s"),
    (0.0123, (0.0009, 1.5), "12.3 ms", "0.9 to 1,500.0 ms"),
    (4.2e-9, (4.2e-9, 4.2e-9), "4.20 ns", "4.20 to 4.20 ns"),
    (0.0, (0.0, 0.0), "0 s", "0 to 0 s"),
    (12345.6, (12335.6, 12355.6), "12,346 s", "12,336 to 12,356 s"),
  ],
)
def test_an_interval_has_the_unit_of_its_mean(mean, ends, text, interval):
  assert formats.figure("seconds", mean) == text and formats.interval("seconds", mean, ends) == interval
