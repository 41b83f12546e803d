"""The pictures of learning curves: labels of the small axes, and notes on workers that are equal at evaluations."""

import base64
import json
import re

import numpy as np
import pytest
from helpers.comparisons import comparison, rising

from ddl.report import reader, table
from ddl.report.figures import curve_data, curves
from ddl.report.figures.style import line_styles


def test_small_axes_are_labelled(tmp_path):
  folder = comparison(tmp_path, {"easgd": [rising(0.1, 0.5, 0.96)] * 2, "local_sgd": [rising(0.1, 0.6, 0.9)] * 2})
  found = reader.read(folder)
  for x, words in (("examples", "examples"), ("bytes_sent", "bytes sent")):
    picture = curves.picture(curve_data.chart(found, x, "test_loss"), found, line_styles(found))
    for uri in (picture.wide, picture.narrow):
      svg = base64.b64decode(uri.partition("base64,")[2]).decode()  # a comment holds the text of what is drawn as paths
      assert "<!-- test loss -->" in svg and re.search(rf"<!-- {words}, [^>]* -->", svg)


@pytest.mark.parametrize("x", ["seconds", "bytes_sent", "examples"])
def test_a_line_ends_at_the_figure_of_the_table_whatever_each_seed_took(tmp_path, x):
  """The second seed takes three times as long: what it has in the end counts in the line as in the table."""
  seeds = [rising(0.1, 0.5, 0.6 + 0.1 * n, 0.7 + 0.1 * n) for n in range(3)]
  for line in seeds[1]:
    line |= {"seconds": 3 * line["seconds"], "bytes_sent": 3 * line["bytes_sent"]}
  found = reader.read(comparison(tmp_path, {"easgd": seeds}))
  (line,) = curve_data.chart(found, x, "test_accuracy").lines
  (row,) = table.rows(found)
  assert line.mean[-1] == pytest.approx(0.8) == row.estimates["test_accuracy"].mean
  columns = [run.columns[x] for run in found.results[0].runs]
  assert line.x[-1] == pytest.approx(np.mean(columns, axis=0)[-1]) and not line.stopped
  assert (line.band[0][-1], line.band[1][-1]) == pytest.approx(row.estimates["test_accuracy"].interval)


def test_workers_that_are_equal_whenever_they_are_evaluated_are_told_from_those_that_always_are(tmp_path):
  apart, equal = rising(0.1, 0.5, 0.96, distance=1.0), rising(0.1, 0.5, 0.96)
  late = [line | {"distance": float(line["step"] == 20)} for line in equal]
  labels = ("easgd", "local_sgd", "dasgd", "sync_sgd", "alone", "each step")
  folder = comparison(
    tmp_path,
    dict(zip(labels, ([apart] * 2, [equal] * 2, [equal, late], [equal] * 2, [equal] * 2, [equal] * 2), strict=True)),
    settings={"alone": {"workers": 1}},
  )
  info = json.loads((folder / "comparison.json").read_text())
  for entry in info["algorithms"]:
    entry["hyper"] = {"period": 1 if entry["label"] == "each step" else 10}
    entry["taxonomy"] |= {"payload": "gradients"} if entry["label"] == "sync_sgd" else {}
  (folder / "comparison.json").write_text(json.dumps(info))
  chart = curve_data.chart(reader.read(folder), "examples", "distance")
  (note,) = [note for note in chart.notes if any(label in note for label in labels)]
  assert [label for label in labels if label in note] == ["local_sgd"]
