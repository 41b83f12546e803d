"""The pictures of learning curves: labels of the small axes, and notes on workers that are equal at evaluations."""

import base64
import json
import re

from helpers.comparisons import comparison, rising

from experiments.report import reader
from experiments.report.figures import curves, line_data
from experiments.report.figures.line_styles import line_styles


def test_small_axes_are_labelled(tmp_path):
  folder = comparison(tmp_path, {"easgd": [rising(0.1, 0.5, 0.96)] * 2, "local_sgd": [rising(0.1, 0.6, 0.9)] * 2})
  found = reader.read(folder)
  for x, words in (("examples", "examples"), ("bytes_sent", "bytes sent")):
    picture = curves.picture(line_data.chart(found, x, "test_loss"), found, line_styles(found))
    for uri in (picture.wide, picture.narrow):
      svg = base64.b64decode(uri.partition("base64,")[2]).decode()  # a comment holds the text of what is drawn as paths
      assert "<!-- test loss -->" in svg and re.search(rf"<!-- {words}, [^>]* -->", svg)


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
  chart = line_data.chart(reader.read(folder), "examples", "distance")
  (note,) = [note for note in chart.notes if any(label in note for label in labels)]
  assert [label for label in labels if label in note] == ["local_sgd"]
