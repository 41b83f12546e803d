"""Costs of a target that was reached before the first evaluation: marked in tables, told of by rankings."""

import pandas as pd
from helpers.comparisons import comparison, finding_of, rising, rows_of, undrawn_page

from ddl.report import findings, grid_data, grid_page, page, reader
from ddl.report import table as table_rows
from ddl.report.cells import column
from ddl.report.wording import BEFORE

SOON, LATE = rising(0.1, 0.96, 0.97, 0.97), rising(0.1, 0.5, 0.96, 0.97)
AT = "1,280"  # examples of the first evaluation


def test_the_table_the_page_and_the_findings_tell_of_it(tmp_path):
  folder = comparison(tmp_path, {"easgd": [SOON] * 2, "local_sgd": [SOON, LATE], "dasgd": [LATE] * 2})
  rows = rows_of(folder)
  assert [rows[label].early for label in ("easgd", "local_sgd", "dasgd")] == [2, 1, 0]
  assert rows["easgd"].first == 1280
  marked = {cell.text.endswith(table_rows.EARLY) for cell in column(list(rows.values()), "step")[:2]}
  assert marked == {True} and "\N{DAGGER}" not in column(list(rows.values()), "step")[2].text
  assert "\N{DAGGER}" not in column(list(rows.values()), "test_accuracy")[0].text
  for text in (page.table(folder), undrawn_page(folder), str(finding_of(folder))):
    assert BEFORE in text and AT in text.replace("\N{NO-BREAK SPACE}", " ") and "config.eval_every" in text
  assert "local_sgd (1 of 2 seeds)" in finding_of(folder)[f"{BEFORE} (\N{DAGGER})"]
  frame = pd.read_csv(folder / "table.csv")
  assert list(frame.early) == [2, 1, 0]


def test_the_ranking_says_that_its_order_is_a_guess(tmp_path):
  folder = comparison(tmp_path, {"easgd": [SOON] * 3, "dasgd": [LATE] * 3})
  found = reader.read(folder)
  table = table_rows.rows(found)
  sentence = findings.headline(table, found)
  assert "easgd did before the first evaluation" in sentence and len(sentence.split()) <= findings.WORDS
  assert any(text.startswith("easgd") and "\N{DAGGER}" in text for text in finding_of(folder).values())
  calm = comparison(tmp_path / "calm", {"easgd": [LATE] * 3, "dasgd": [LATE] * 3})
  assert BEFORE not in str(finding_of(calm)) + page.table(calm) + undrawn_page(calm)


def test_a_grid_says_it_too(tmp_path):
  places = {f"easgd, workers {n}": {"group": "easgd", "point": {"workers": n}} for n in (1, 2)}
  runs = {"easgd, workers 1": [LATE] * 2, "easgd, workers 2": [SOON] * 2}
  found = reader.read(comparison(tmp_path, runs, places=places, grid={"workers": [1, 2]}))
  table = table_rows.rows(found)
  told = dict(grid_page.finding(found, table))
  assert "easgd, workers 2" in told[f"{BEFORE} (\N{DAGGER})"] and "before the first evaluation" in told[""]
  charts = grid_data.charts(found, table, "workers")
  noted = [chart.quantity for chart in charts if any(BEFORE in note for note in chart.notes)]
  assert noted == ["speedup", "examples", "bytes_sent", "seconds"]


def test_a_speedup_over_an_early_baseline_is_marked_and_there_is_no_slope(tmp_path):
  places = {f"easgd, workers {n}": {"group": "easgd", "point": {"workers": n}} for n in (1, 2, 4)}

  def told(name, first):
    runs = dict(zip(places, ([first] * 2, [LATE] * 2, [LATE] * 2), strict=True))
    sizes = {label: {"workers": n, "steps": 3200 // n} for label, n in zip(places, (1, 2, 4), strict=True)}
    made = comparison(tmp_path / name, runs, settings=sizes, places=places, grid={"workers": [1, 2, 4]})
    found = reader.read(made)
    table = table_rows.rows(found)
    (key,) = grid_page.section(found, table)["against"]
    notes = " ".join(note for picture in (*key.pictures, *key.costs) for note in picture.caption)
    return dict(grid_page.finding(found, table))["easgd, workers"], key.slopes, notes

  text, slopes, notes = told("early", SOON)
  assert "\N{DAGGER} with 4 over" in text.partition("speed-up")[2].partition(";")[0]
  assert "no slope of steps: points" in text and "mostly invented" in text and "; slope" not in text
  assert {cell.kind for cell in slopes.columns["steps to 95 %"]} == {"partial"} and "mostly invented" in slopes.left_out
  assert "No slope of easgd" in notes and "Slopes" not in notes.replace("No slope", "")
  text, slopes, notes = told("calm", LATE)
  assert "\N{DAGGER}" not in text and "; slope of steps" in text and "Slopes in log" in notes
  assert slopes.left_out == "" and {cell.kind for cell in slopes.columns["steps to 95 %"]} == {""}
