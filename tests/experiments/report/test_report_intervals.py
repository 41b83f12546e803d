"""Intervals of accuracies end at 0 and 100 %, alike in tables, files and pictures; those of differences do not."""

import csv

import pandas as pd
import pytest
from helpers.comparisons import comparison, rising, rows_of, undrawn_page

from ddl.report import frames, interactive_chart, page, reader, wording
from ddl.report.cells import column
from ddl.report.figures import curve_data, curves
from ddl.report.statistics import summary

HIGH, LOW = (0.999, 0.97, 0.998), (0.001, 0.02, 0.0)  # accuracies at the end of three seeds


@pytest.fixture
def folder(tmp_path):
  runs = {"easgd": [rising(0.1, 0.5, end) for end in HIGH], "local_sgd": [rising(0.1, 0.05, end) for end in LOW]}
  return comparison(tmp_path, runs)


def test_tables_and_files_agree(folder):
  for label, seeds, cut in (("easgd", HIGH, 1), ("local_sgd", LOW, 0)):
    mean, half = summary(seeds)
    ends = [mean - half, mean + half]
    assert not 0 <= ends[cut] <= 1
    ends[cut] = float(cut)
    assert rows_of(folder)[label].estimates["test_accuracy"].interval == pytest.approx(ends)
    undrawn_page(folder)
    frame = pd.read_csv(folder / "table.csv").set_index("label")
    shown = frame.loc[label, ["test_accuracy_low", "test_accuracy_high"]]
    assert list(shown) == pytest.approx(ends)
  cells = column(list(rows_of(folder).values()), "test_accuracy")
  mean, half = summary(HIGH)
  assert cells[0].text == f"{100 * mean:.2f} ({100 * (mean - half):.2f} to 100.00) %"
  assert cells[0].text in page.table(folder) and wording.CUT in " ".join(wording.legend(reader.read(folder)))


def test_pictures_agree(folder, tmp_path):
  found = reader.read(folder)
  with curves.pictures(found)[0].save(tmp_path / "a.csv").open() as file:
    rows = [row for row in csv.DictReader(file) if row["line"] == "mean"]
  edges = [float(row[f"test_accuracy_{end}"]) for row in rows for end in ("low", "high")]
  assert min(edges) == 0 and max(edges) == 1
  for line in curve_data.chart(found, "examples", "test_accuracy").lines:
    assert line.band[0].min() >= 0 and line.band[1].max() <= 1
  for line in interactive_chart.content(found)["lines"]:
    _, low, high = line["y"]["test_accuracy"]
    assert min(low) >= 0 and max(high) <= 1


def test_differences_of_accuracies_stay_symmetric(folder):
  frame = frames.pairs_frame(reader.read(folder))
  (pair,) = frame[frame.quantity == "test_accuracy"].to_dict("records")
  assert pair["high"] > 1 and pair["high"] - pair["estimate"] == pytest.approx(pair["estimate"] - pair["low"])
