"""The figures of a comparison as pandas frames, and as CSV and JSON beside its report."""

import json
import math

import numpy as np
import pandas as pd
import pytest
from helpers.comparisons import comparison, realistic, rising
from scipy import stats

from ddl.report import findings, frames, page, reader
from ddl.report import table as table_rows
from ddl.report.figures import curves


@pytest.fixture
def small(tmp_path):
  """Two labels that meet the target at steps 20, 30, 50 and 10, 20, 30; one that meets it with one seed of three."""

  def at(*numbers):
    return [rising(*[0.1] * number, *[0.95] * (7 - number)) for number in numbers]

  runs = {"easgd": at(2, 3, 5), "local_sgd": at(1, 2, 3), "never": [*at(4), *[rising(*[0.1] * 7)] * 2]}
  folder = comparison(tmp_path, runs)
  info = json.loads((folder / "comparison.json").read_text())
  clock = [0.1 * number for number in range(7)]
  info["clusters"] = [
    {"name": "near", "title": "", "source": "", "bandwidth": 1e9, "latency": 1e-6, "link": "between nodes",
     "flop_per_example": 1.0, "params_bytes": 1.0, "break_even": {"winner": "local_sgd", "crossings": [],
     "searched": [1.0, 2.0], "ends": [{"ratio": 1, "first": "easgd", "second": "local_sgd"}] * 2},
     "algorithms": {label: {"seconds": [clock] * 3, "step_seconds": 1.0, "seconds_per_step": 0.01} for label in runs}}
  ]  # fmt: skip
  (folder / "comparison.json").write_text(json.dumps(info))
  return folder


def test_the_frame_of_metrics_has_every_evaluation(small):
  found = frames.metrics_frame(reader.read(small))
  assert len(found) == 3 * 3 * 7
  unknown = {"virtual_seconds", "grad_norm2", "grad_noise", "noise_scale", "test_perplexity", "present"}  # of no run
  known = [name for name in reader.COLUMNS if name not in unknown]
  assert list(found.columns) == ["label", "seed", *known, "predicted_seconds_near"]
  assert found["step"].dtype == found["seed"].dtype == np.int64
  one = found[(found.label == "easgd") & (found.seed == 2)]
  assert one.step.tolist() == [0, 10, 20, 30, 40, 50, 60]
  np.testing.assert_allclose(one.test_accuracy, [0.1] * 5 + [0.95] * 2)
  np.testing.assert_allclose(one.bytes_sent, 100 * one.step)
  np.testing.assert_allclose(one.predicted_seconds_near, one.step / 100)
  assert one.train_loss.isna().tolist() == [True] + [False] * 6


def test_the_frame_of_results_is_the_table_of_the_page(small):
  found = reader.read(small)
  frame, rows = frames.table_frame(found), {row.label: row for row in table_rows.rows(found)}
  assert frame.label.tolist() == ["easgd", "local_sgd", "never"] and frame.reached.tolist() == [3, 3, 1]
  names = {"step_to_target": "step", "examples_to_target": "examples", "seconds_to_target": "seconds",
           "bytes_sent_to_target": "bytes_sent", "test_accuracy": "test_accuracy"}  # fmt: skip
  wanted = [f"{name}{end}" for name in (*names, "predicted_seconds_to_target_near") for end in ("", "_low", "_high")]
  assert {*wanted, *(f"{name}_mark" for name in names)} <= set(frame.columns)
  for name, column in names.items():
    marks = table_rows.marks(list(rows.values()), column)
    for _, line in frame.iterrows():
      estimate = rows[line.label].estimates[column]
      assert line[name] == estimate.mean
      if estimate.interval:
        assert (line[f"{name}_low"], line[f"{name}_high"]) == estimate.interval
      if line.label != "never" or column == "test_accuracy":
        assert (None if pd.isna(line[f"{name}_mark"]) else line[f"{name}_mark"]) == marks.get(line.label)
  assert frame.step_to_target_mark.tolist()[2] == "partial" and math.isnan(frame.step_to_target_low[2])
  np.testing.assert_allclose(frame.predicted_seconds_to_target_near, frame.step_to_target / 100)


def test_the_frame_of_pairs_against_scipy(small):
  frame = frames.pairs_frame(reader.read(small)).set_index(["quantity", "first", "second"])
  assert len(frame) == 6 * 3 and set(frame.loc["predicted_seconds"].cluster) == {"near"}
  logs = np.log([[20, 30, 50], [10, 20, 30]])
  wanted = stats.ttest_rel(*logs)
  for quantity in ("step", "examples", "bytes_sent", "seconds", "predicted_seconds"):
    line = frame.loc[(quantity, "easgd", "local_sgd")]
    low, high = wanted.confidence_interval(0.95)
    np.testing.assert_allclose(
      line[["estimate", "low", "high", "p", "p_holm"]].astype(float),
      [50 ** (1 / 3) / 10 ** (1 / 3) * 6 ** (1 / 3) / 6 ** (1 / 3), math.exp(low), math.exp(high), wanted.pvalue,
       wanted.pvalue],
      rtol=1e-9,
    )  # fmt: skip
    assert (line.scale, line.seeds, line.missing_first, line.missing_second) == ("ratio", 3, 0, 0)
    unmet = frame.loc[(quantity, "easgd", "never")]
    assert (unmet.seeds, unmet.missing_first, unmet.missing_second) == (1, 0, 2)
    assert math.isnan(unmet.p) and unmet.significant is pd.NA and unmet.more_seeds is pd.NA
  score = frame.loc[("test_accuracy", "easgd", "local_sgd")]
  assert (score.scale, score.estimate, score.p, score.significant) == ("difference", 0.0, 1.0, False)


def test_the_files_have_the_figures_of_the_frames_and_of_the_page(tmp_path, monkeypatch):
  monkeypatch.setattr(curves, "pictures", lambda comparison: [])
  folder = realistic(tmp_path)
  page.write_report(folder)
  found = reader.read(folder)
  table, told = table_rows.rows(found), json.loads((folder / "findings.json").read_text())
  made = {
    "table": frames.table_frame(found),
    "pairs": frames.pairs_frame(found),
    "metrics": frames.metrics_frame(found),
  }
  for name, frame in made.items():
    again = pd.read_csv(folder / f"{name}.csv", dtype=frame.dtypes.to_dict())
    pd.testing.assert_frame_equal(again, frame, rtol=1e-14)
  assert [(each["subject"] or "", each["text"]) for each in told["findings"]] == findings.finding(found, table)
  assert told["target"] == {"metric": "test_accuracy", "value": 0.95}
  for name in ("table", "pairs"):
    assert [list(line) for line in told[name]] == [list(made[name].columns)] * len(made[name])
    for column in made[name]:
      for value, wanted in zip((line[column] for line in told[name]), made[name][column], strict=True):
        assert value is None if pd.isna(wanted) or wanted in (math.inf, -math.inf) else value == wanted


def test_comparisons_without_results_or_of_one_seed_have_frames(tmp_path):
  nothing = reader.read(comparison(tmp_path / "nothing", {"easgd": [], "local_sgd": [None]}))
  assert len(frames.metrics_frame(nothing)) == 0 and frames.table_frame(nothing).step_to_target.isna().all()
  assert (frames.pairs_frame(nothing).seeds == 0).all()
  one = reader.read(comparison(tmp_path / "one", {label: [rising(0.1, 0.96)] for label in ("easgd", "local_sgd")}))
  assert frames.pairs_frame(one).p.isna().all() and frames.table_frame(one).step_to_target_low.isna().all()
  alone = reader.read(comparison(tmp_path / "alone", {"easgd": [rising(0.1, 0.96)] * 2}))
  assert len(frames.pairs_frame(alone)) == 0 and "p_holm" in frames.pairs_frame(alone)
